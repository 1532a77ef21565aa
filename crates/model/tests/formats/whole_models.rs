//! Whole models written by other programs: this crate's fixtures, and the shared test data where it is present.

use crate::test_data::test_data;
use realizar_compute::DType;
use realizar_model::gguf;
use realizar_model::source::{self, Format, TensorSource};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Every GGUF file of the fixtures and of the shared data.
fn ggufs() -> Vec<PathBuf> {
    let mut files = Vec::new();
    files_with_extension(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data"), "gguf", &mut files);
    assert!(!files.is_empty(), "the fixtures are part of the project");
    if let Some(data) = test_data("") {
        let n_fixtures = files.len();
        files_with_extension(&data, "gguf", &mut files);
        assert!(files.len() >= n_fixtures + 17, "{files:?}");
    }
    files
}

fn files_with_extension(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_with_extension(&path, extension, found);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
}

fn f32s(model: &dyn TensorSource, name: &str) -> (Vec<usize>, Vec<f32>) {
    let view = model.tensor(name).unwrap();
    let mut values = vec![0.0; view.shape.iter().product()];
    (view.dtype.spec().dequantize)(&view.bytes, &mut values);
    (view.shape, values)
}

#[test]
fn every_gguf_opens() {
    for file in ggufs() {
        let model = source::open(&file).unwrap();
        let is_vocabulary = file.parent().unwrap().ends_with("tokenizers/gguf");
        assert_eq!(model.tensors().is_empty(), is_vocabulary, "{}", file.display());
        for info in model.tensors() {
            let view = model.tensor(&info.name).unwrap();
            assert_eq!(Some(view.bytes.len()), info.dtype.bytes_for(info.n_elements()), "{}", info.name);
        }
        if is_vocabulary {
            let tokens = model.metadata().get_strings("tokenizer.ggml.tokens").unwrap().unwrap();
            assert!(tokens.len() > 30_000, "{}", file.display());
        }
    }
}

/// Metadata keeps the exact types of the file and tensors their order, so a copy by our writer is the file itself, but
/// for the padding at the end that some writers leave out.
#[test]
fn a_copy_of_a_gguf_is_the_same_file() {
    for file in ggufs() {
        let model = source::open(&file).unwrap();
        if model.metadata().get_usize("split.count").unwrap().is_some_and(|count| count > 1) {
            continue; // What was opened is more than this file.
        }
        // They have vectors written as matrices of one row, and the reader leaves out such dimensions.
        let with_unit_dims = [
            "ernie4_5-moe",
            "granite-hybrid",
            "granite-hybrid-dense",
            "qwen2moe",
            "qwen35moe",
            "qwen3next",
            "jina-bert-v3",
            "modern-bert-reranker",
            "nomic-bert-moe",
            "xlm-roberta",
            "xlm-roberta-reranker",
        ];
        if with_unit_dims.iter().any(|name| file.ends_with(format!("{name}/model.gguf"))) {
            continue;
        }
        let mut header = gguf::Header::new("copy.gguf");
        for (key, value) in model.metadata().iter() {
            header.set(key, value.clone()).unwrap();
        }
        for info in model.tensors() {
            header.tensor(&info.name, info.dtype, &info.shape).unwrap();
        }
        let mut writer = gguf::Writer::new(Vec::new(), header).unwrap();
        for info in model.tensors() {
            writer.tensor(&info.name, &model.tensor(&info.name).unwrap().bytes).unwrap();
        }
        let copy = writer.finish().unwrap();
        let original = std::fs::read(&file).unwrap();
        let (same, padding) = copy.split_at(original.len().min(copy.len()));
        assert!(same == original, "{}", file.display());
        assert!(padding.len() < 32 && padding.iter().all(|&byte| byte == 0), "{}", file.display());
    }
}

#[test]
fn every_hugging_face_fixture_opens() {
    let mut n_folders = 0;
    for folder in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/arch")).unwrap() {
        let folder = folder.unwrap().path().join("hf");
        if !folder.is_dir() {
            continue;
        }
        let model = source::open(&folder).unwrap();
        assert_eq!(model.format(), Format::Safetensors);
        assert!(!model.tensors().is_empty(), "{}", folder.display());
        for info in model.tensors() {
            let view = model.tensor(&info.name).unwrap();
            assert_eq!(Some(view.bytes.len()), info.dtype.bytes_for(info.n_elements()), "{}", info.name);
        }
        assert!(model.metadata().get_str("model_type").unwrap().is_some(), "{}", folder.display());
        n_folders += 1;
    }
    assert!(n_folders > 0, "the fixtures are part of the project");
}

#[test]
fn the_shared_folders_open() {
    let Some(data) = test_data("") else { return };
    for (folder, n_tensors, dtype) in [
        ("models/stories260K/hf", 47, DType::F32),
        ("models/stories260K/hf-bf16-sharded", 47, DType::BF16),
        ("models/TinyStories-656K", 20, DType::F32),
    ] {
        let model = source::open(&data.join(folder)).unwrap();
        assert_eq!(model.format(), Format::Safetensors);
        assert_eq!(model.tensors().len(), n_tensors, "{folder}");
        assert!(model.tensors().iter().all(|tensor| tensor.dtype == dtype), "{folder}");
        assert_eq!(model.metadata().get_str("model_type").unwrap(), Some("llama"));
        assert!(model.sibling("tokenizer.json").is_some());
    }
}

#[test]
fn gguf_and_safetensors_of_one_model_hold_the_same_weights() {
    let Some(data) = test_data("") else { return };
    let stories = data.join("models/stories260K");
    let gguf = source::open(&stories.join("stories260K-F32.gguf")).unwrap();
    let hf = source::open(&stories.join("hf")).unwrap();
    for (ours, theirs) in [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
        ("blk.3.attn_v.weight", "model.layers.3.self_attn.v_proj.weight"),
        ("blk.4.ffn_down.weight", "model.layers.4.mlp.down_proj.weight"),
    ] {
        assert_eq!(f32s(&*gguf, ours), f32s(&*hf, theirs), "{ours}");
    }
    // Rotary halves: GGUF's llama interleaves the two halves that Hugging Face keeps apart, within each head.
    let (n_heads, head_dim, width) = (8, 8, 64);
    let (shape, ours) = f32s(&*gguf, "blk.2.attn_q.weight");
    let (_, theirs) = f32s(&*hf, "model.layers.2.self_attn.q_proj.weight");
    assert_eq!(shape, [n_heads * head_dim, width]);
    for head in 0..n_heads {
        for i in 0..head_dim {
            let row = head * head_dim + i;
            let source = head * head_dim + (i % 2) * (head_dim / 2) + i / 2;
            assert_eq!(ours[row * width..][..width], theirs[source * width..][..width], "row {row}");
        }
    }
}

/// A vocabulary of 150 000 tokens with as many merges takes milliseconds; anything quadratic in it would take minutes.
/// The limit is far above the first, so that a busy machine does not fail it.
#[test]
fn a_large_vocabulary_opens_fast() {
    let Some(data) = test_data("") else { return };
    let start = Instant::now();
    let model = source::open(&data.join("tokenizers/gguf/rebuilt-vocab-qwen2.gguf")).unwrap();
    let tokens = model.metadata().get_strings("tokenizer.ggml.tokens").unwrap().unwrap();
    assert!(tokens.len() > 150_000);
    assert!(start.elapsed().as_millis() < 2_000, "{:?}", start.elapsed());
}
