//! Converting a Hugging Face folder gives the tensors and hyper-parameters of the fixture's GGUF file, which a script made
//! independently; what GGUF cannot state is refused. Tokenizers of real models, from the shared test data, give the same ids
//! before and after.

#[path = "../../compute/tests/support/test_data.rs"]
mod test_data;

use realizar_compute::DType;
use realizar_compute::sampling::{SamplingOverrides, SamplingParams};
use realizar_model::convert::as_gguf;
use realizar_model::metadata::{Metadata, Value};
use realizar_model::source::{TensorSource, open};
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use realizar_model::{sampling_defaults, sampling_hints};
use std::path::{Path, PathBuf};
use test_data::test_data;

fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/arch");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(root).unwrap().map(|e| e.unwrap().path()).collect();
    folders.sort();
    folders
}

fn values(source: &dyn TensorSource, name: &str) -> Vec<f32> {
    let t = source.tensor(name).unwrap();
    let mut values = vec![0.0; t.shape.iter().product()];
    (t.dtype.spec().dequantize)(&t.bytes, &mut values);
    values
}

#[test]
fn a_converted_folder_equals_the_gguf_file() {
    let mut n = 0;
    for folder in fixtures() {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let file = folder.join("model.gguf");
        // The script splits bitnet's weights into signs and a factor, leaves out the layer of deepseek3 that drafts, makes the text part of a
        // multimodal model a text model, states another context for hunyuan, and keeps gates and ups of mistral4 together.
        if !file.exists()
            || ["llama-dynamic", "bitnet", "deepseek3", "qwen2-vl", "qwen3-vl", "hunyuan", "mistral4"]
                .contains(&name.as_str())
        {
            continue;
        }
        let expected = open(&file).unwrap();
        let found = as_gguf(open(&folder.join("hf")).unwrap()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let names = |s: &dyn TensorSource| {
            let mut names: Vec<String> = s.tensors().iter().map(|t| t.name.clone()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&*found), names(&*expected), "{name}");
        for t in expected.tensors() {
            // A vector may be a matrix of one row.
            let shape = |shape: &[usize]| shape.iter().copied().skip_while(|&n| n == 1).collect::<Vec<_>>();
            let converted = found.find(&t.name).unwrap();
            assert_eq!(shape(&converted.shape), shape(&t.shape), "{name} {}", t.name);
            let (a, b) = (values(&*found, &t.name), values(&*expected, &t.name));
            let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs() / b.abs().max(1e-3)).fold(0.0, f32::max);
            assert!(worst < 1e-5, "{name} {}: {worst}", t.name);
        }
        for (key, value) in expected.metadata().iter() {
            let skip = ["general.", "tokenizer."].iter().any(|p| key.starts_with(p))
                && key != "general.architecture";
            // Without effect: all of the head turns, and positions are learned.
            let idle = name == "gpt2"
                && !key.contains("length")
                && !key.contains("count")
                && !key.contains("epsilon");
            // llama.cpp states as many tokens of every model without positions, how such heads turn, and groups of experts without any.
            let arbitrary = ["nemotron-h", "nemotron3", "granite-hybrid"].iter().any(|p| name.starts_with(p))
                && ["context_length", "rope.dimension_count", "rope.freq_base", "expert_group"]
                    .iter()
                    .any(|part| key.contains(part));
            let arbitrary = arbitrary || name == "granite-hybrid-dense" && key.contains("expert");
            if !skip && !idle && !arbitrary {
                assert!(
                    same(found.metadata(), key, value),
                    "{name} {key}: {:?}, not {value:?}",
                    found.metadata().get(key)
                );
            }
        }
        n += 1;
    }
    assert!(n >= 15, "only {n} fixtures were compared");
}

fn same(metadata: &Metadata, key: &str, value: &Value) -> bool {
    match value {
        Value::String(s) => metadata.get_str(key).unwrap() == Some(s.as_str()),
        Value::Array(_) => metadata.get(key) == Some(value),
        Value::Bool(b) => metadata.get_bool(key).unwrap() == Some(*b),
        _ => {
            let mut one = Metadata::new("one");
            one.insert(key, value.clone()).unwrap();
            let (a, b) = (metadata.get_f64(key).unwrap(), one.get_f64(key).unwrap());
            matches!((a, b), (Some(a), Some(b)) if (a - b).abs() <= 1e-6 * b.abs())
        }
    }
}

#[test]
fn weights_in_fp8_are_converted_as_bf16() {
    let folder = fixtures().into_iter().find(|f| f.ends_with("qwen3-fp8")).unwrap().join("hf");
    let (from, converted) = (open(&folder).unwrap(), as_gguf(open(&folder).unwrap()).unwrap());
    let (ours, file) = ("blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight");
    assert_eq!(converted.find(ours).unwrap().dtype, DType::BF16);
    assert_eq!(values(&*converted, ours), values(&*from, file));
    let weights = |s: &dyn TensorSource| s.tensors().iter().map(|t| t.n_elements()).sum::<usize>();
    assert_eq!(weights(&*converted), weights(&*from), "no scales among them");
}

#[test]
fn what_gguf_cannot_state_is_refused() {
    for (name, part) in [("llama-dynamic", "dynamic"), ("bitnet-relu2", "")] {
        let folder = fixtures().into_iter().find(|f| f.ends_with(name)).unwrap();
        let converted = as_gguf(open(&folder.join("hf")).unwrap());
        if name == "bitnet-relu2" {
            let arch =
                converted.unwrap().metadata().get_str("general.architecture").unwrap().map(str::to_owned);
            assert_eq!(arch.as_deref(), Some("bitnet-b1.58"));
        } else {
            let error = converted.err().expect(name).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn a_converted_tokenizer_gives_the_same_ids() {
    let text = "Once upon a time, 12345 foxes didn't\n\n  sleep… naïve 東京 \u{1F980}! <s> x\t y  z";
    for folder in fixtures() {
        let hf = folder.join("hf");
        let Ok(json) = std::fs::read(hf.join("tokenizer.json")) else { continue };
        let read = |name: &str| std::fs::read(hf.join(name)).ok();
        let (config, map) = (read("tokenizer_config.json"), read("special_tokens_map.json"));
        let Ok(converted) = as_gguf(open(&hf).unwrap()) else { continue };
        let before = Tokenizer::from_hf(&json, config.as_deref(), map.as_deref()).unwrap();
        let after = Tokenizer::from_gguf(converted.metadata()).unwrap();
        let options = EncodeOptions { add_special: true, parse_special: true };
        assert_eq!(after.encode(text, options), before.encode(text, options), "{}", folder.display());
        assert_eq!((after.bos(), after.eos()), (before.bos(), before.eos()), "{}", folder.display());
    }
}

/// A folder with this tokenizer and the smallest model that it fits.
fn model_around(folder: &Path, files: &[(&str, Vec<u8>)], n_tokens: usize) {
    std::fs::create_dir_all(folder).unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 8, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": true,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let layer = "model.layers.0.";
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![n_tokens, 4]),
        ("model.norm.weight".into(), vec![4]),
    ];
    for norm in ["input_layernorm", "post_attention_layernorm"] {
        tensors.push((format!("{layer}{norm}.weight"), vec![4]));
    }
    for part in ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"]
    {
        tensors.push((format!("{layer}{part}_proj.weight"), vec![4, 4]));
    }
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in &tensors {
        let start = end;
        end += shape.iter().product::<usize>() * 4;
        header.insert(
            name.clone(),
            serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]}),
        );
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + end, 0);
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
}

#[test]
fn tokenizers_of_real_models_survive_conversion() {
    let Some(data) = test_data("") else { return };
    let inputs = std::fs::read_to_string(data.join("tokenizers/gguf/ggml-vocab-llama-bpe.gguf.inp")).unwrap();
    let texts: Vec<&str> = inputs.split("\n__ggml_vocab_test__\n").collect();
    let scratch = std::env::temp_dir().join(format!("realizar-convert-{}", std::process::id()));
    for (name, json, config) in [
        ("llama3", "tokenizers/llama3/tokenizer.json", None),
        (
            "qwen3",
            "tokenizers/qwen/qwen3_tokenizer.json",
            Some("tokenizers/qwen/qwen3_tokenizer_config.json"),
        ),
        (
            "phi-3-mini",
            "tokenizers/phi-3-mini/tokenizer.json",
            Some("tokenizers/phi-3-mini/tokenizer_config.json"),
        ),
        (
            "stories260K",
            "models/stories260K/hf/tokenizer.json",
            Some("models/stories260K/hf/tokenizer_config.json"),
        ),
    ] {
        let json = std::fs::read(data.join(json)).unwrap();
        let config = config.map(|c| std::fs::read(data.join(c)).unwrap());
        let before = Tokenizer::from_hf(&json, config.as_deref(), None).unwrap();
        let mut files = vec![("tokenizer.json", json)];
        files.extend(config.map(|c| ("tokenizer_config.json", c)));
        let folder = scratch.join(name);
        model_around(&folder, &files, before.vocab_size() + 7);
        let converted = as_gguf(open(&folder).unwrap()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let after = Tokenizer::from_gguf(converted.metadata()).unwrap();
        for text in &texts {
            for parse_special in [false, true] {
                let options = EncodeOptions { add_special: true, parse_special };
                assert_eq!(after.encode(text, options), before.encode(text, options), "{name} {text:?}");
            }
            let ids = before.encode(text, EncodeOptions { add_special: false, parse_special: true });
            assert_eq!(after.decode(&ids, false), before.decode(&ids, false), "{name} {text:?}");
        }
        assert_eq!(
            (after.bos(), after.eos(), after.add_bos()),
            (before.bos(), before.eos(), before.add_bos()),
            "{name}"
        );
        assert_eq!(after.eos_ids(), before.eos_ids(), "{name}");
    }
    std::fs::remove_dir_all(scratch).unwrap();
}

#[test]
fn recommended_sampling_survives_conversion() {
    let folder = tempfolder("recommended");
    let hf = fixtures().into_iter().find(|f| f.ends_with("llama")).unwrap();
    for entry in std::fs::read_dir(hf.join("hf")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    let write = |text: &str| std::fs::write(folder.join("generation_config.json"), text).unwrap();
    let read = || {
        let source = open(&folder).unwrap();
        let hints = sampling_hints(&*source).unwrap();
        let converted = as_gguf(source).unwrap();
        assert_eq!(sampling_hints(&*converted).unwrap(), hints);
        hints
    };
    write(
        r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.05}"#,
    );
    let hints = |values: &[(&str, f32)]| {
        let mut hints = SamplingOverrides::default();
        values.iter().for_each(|&(name, value)| hints.set(name, value));
        hints
    };
    let all =
        [("temperature", 0.6), ("top_k", 20.0), ("top_p", 0.9), ("min_p", 0.1), ("repetition_penalty", 1.05)];
    assert_eq!(read(), hints(&all));
    write(r#"{"do_sample": false, "temperature": 0.6}"#);
    assert_eq!(read(), hints(&[("temperature", 0.0)]));
    write(r#"{"do_sample": true, "top_k": 64}"#);
    assert_eq!(read(), hints(&[("temperature", 1.0), ("top_k", 64.0)]));
    write(r#"{"top_k": -1}"#);
    assert_eq!(read(), hints(&[("top_k", 0.0)]));
    write(r#"{"top_k": "many"}"#);
    let error = sampling_hints(&*open(&folder).unwrap()).unwrap_err().to_string();
    assert!(error.contains("top_k"), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn defaults_are_what_the_files_recommend_or_one_set() {
    let folder = tempfolder("defaults");
    let hf = fixtures().into_iter().find(|f| f.ends_with("llama")).unwrap();
    for entry in std::fs::read_dir(hf.join("hf")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    let defaults = |text: &str| {
        std::fs::write(folder.join("generation_config.json"), text).unwrap();
        sampling_defaults(&*open(&folder).unwrap())
    };
    let of_the_program = defaults(r#"{"eos_token_id": 2}"#).unwrap();
    assert!(!of_the_program.are_recommended);
    let SamplingParams { temperature, top_k, top_p, min_p, .. } = of_the_program.params;
    assert_eq!((temperature, top_k, top_p, min_p), (0.8, 40, 0.95, 0.05));
    // Nobody recommends a min-p or top-k here, so there is none.
    let recommended = defaults(r#"{"temperature": 0.6, "top_p": 0.9}"#).unwrap();
    let expected = SamplingParams { temperature: 0.6, top_p: 0.9, ..SamplingParams::default() };
    assert_eq!((recommended.params, recommended.are_recommended), (expected, true));
    let error = defaults(r#"{"temperature": -1.0}"#).unwrap_err().to_string();
    assert!(error.contains("temperature is -1 but must be at least 0"), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}

fn tempfolder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("realizar-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
