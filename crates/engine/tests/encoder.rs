//! Texts to vectors and scores: the tokenizer, the engine's thread and the model together, on fixtures of the model crate.

use realizar_compute::DType;
use realizar_engine::encoder::{EncoderEngine, TextEncoder};
use realizar_engine::load::{Device, LoadOptions, load_encoder};
use realizar_model::source;
use realizar_model::tokenizer::Tokenizer;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/encoders").join(name)
}

fn options() -> LoadOptions {
    LoadOptions {
        device: Device::Cpu,
        n_threads: 1,
        exact: true,
        kv_type: DType::F32,
        ..LoadOptions::default()
    }
}

fn start(path: &Path) -> (EncoderEngine, TextEncoder) {
    start_with(path, &options())
}

fn start_with(path: &Path, options: &LoadOptions) -> (EncoderEngine, TextEncoder) {
    let source = source::open(path).unwrap();
    let loaded = load_encoder(&*source, options, None).unwrap();
    let engine = EncoderEngine::start(loaded.runner, 100).unwrap();
    let tokenizer = Arc::new(Tokenizer::from_source(&*source).unwrap());
    let encoder = TextEncoder::new(engine.client(), tokenizer, &*source).unwrap();
    (engine, encoder)
}

#[test]
fn rerankers_score_texts_as_the_reference_library_does() {
    for name in ["bert-reranker", "modern-bert-reranker", "xlm-roberta-reranker", "qwen3-reranker"] {
        let golden: Value =
            serde_json::from_slice(&std::fs::read(fixture(name).join("golden.json")).unwrap()).unwrap();
        let texts = golden["texts"].as_array().unwrap();
        let (_engine, encoder) = start(&fixture(name).join("hf"));
        let pair = |t: &Value| encoder.pair(t["query"].as_str().unwrap(), t["text"].as_str().unwrap());
        let rows = encoder.client().encode(texts.iter().map(pair).collect()).unwrap().wait().unwrap();
        for (t, row) in texts.iter().zip(rows) {
            let want: Vec<f32> = serde_json::from_value(t["output"].clone()).unwrap();
            let largest = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            assert!(
                row.iter().zip(&want).all(|(x, w)| (x - w).abs() <= 1e-4 * largest),
                "{name}: {row:?} is not {want:?}"
            );
        }
    }
}

#[test]
fn the_prompt_of_a_reranker_that_answers_is_that_of_its_files() {
    let long = |encoder: &TextEncoder| {
        let pair = encoder.pair("who?", "an owl");
        encoder.tokenizer().decode(&pair.tokens, false)
    };
    let (_engine, folder) = start(&fixture("qwen3-reranker/hf"));
    assert_eq!(long(&folder), "Which?<|im_start|>who?<|im_end|>an owl<|im_end|>:");
    let (_engine, gguf) = start(&fixture("qwen3-reranker/model.gguf"));
    let prompt = long(&gguf);
    assert!(
        prompt.starts_with("<|im_start|>system\nJudge whether the Document meets the requirements"),
        "{prompt}"
    );
    assert!(
        prompt.contains("\n<Query>: who?\n<Document>: an owl<|im_end|>\n<|im_start|>assistant\n<think>"),
        "{prompt}"
    );

    // Without the files of sentence-transformers only an option tells it from a model that makes text, and it has the same prompt.
    let plain = std::env::temp_dir().join(format!("realizar-qwen3-reranker-{}", std::process::id()));
    std::fs::create_dir_all(&plain).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(fixture("qwen3-reranker/hf").join(file), plain.join(file)).unwrap();
    }
    let source = source::open(&plain).unwrap();
    let error = load_encoder(&*source, &options(), None).err().unwrap().to_string();
    assert!(error.contains("--reranker"), "{error}");
    let (_engine, stated) = start_with(&plain, &LoadOptions { reranker: true, ..options() });
    std::fs::remove_dir_all(&plain).unwrap();
    assert_eq!(long(&stated), prompt);
    let pair = stated.pair("who?", "the owl and the fox");
    let mut cut = pair.clone();
    stated.truncate(&mut cut, pair.len() - 3);
    assert_eq!(cut.tokens[cut.len() - 12..], pair.tokens[pair.len() - 12..], "the prompt's end stays");
}

#[test]
fn a_text_that_is_cut_keeps_what_follows_it() {
    let (_engine, encoder) = start(&fixture("bert-reranker").join("hf"));
    let whole = encoder.pair("who", "the owl and the fox");
    let cut = |max| {
        let mut text = whole.clone();
        encoder.truncate(&mut text, max);
        text
    };
    assert_eq!((whole.n_first, whole.len()), (3, 9));
    assert_eq!(cut(9), whole);
    let [cls, who, sep, the, ..] = whole.tokens[..] else { panic!("{whole:?}") };
    assert_eq!((cut(5).tokens, cut(5).n_first), (vec![cls, who, sep, the, sep], 3));
    // Even a query that is cut has the second type behind it.
    assert_eq!((cut(2).tokens, cut(2).n_first), (vec![cls, sep], 1));
    let mut single = encoder.tokens("the owl and the fox");
    encoder.truncate(&mut single, 4);
    assert_eq!((single.len(), single.n_first, single.tokens[3]), (4, 4, sep));
}
