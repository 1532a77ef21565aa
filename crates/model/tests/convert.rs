//! Converting a Hugging Face folder gives the tensors and hyper-parameters of the fixture's GGUF file, which a script made
//! independently; what GGUF cannot state is refused.

use realizar_model::convert::as_gguf;
use realizar_model::metadata::{Metadata, Value};
use realizar_model::source::{TensorSource, open};
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use std::path::{Path, PathBuf};

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
        // The script splits bitnet's weights into signs and a factor.
        if !file.exists() || ["llama-dynamic", "bitnet"].contains(&name.as_str()) {
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
            assert_eq!(found.find(&t.name).unwrap().shape, t.shape, "{name} {}", t.name);
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
            if !skip && !idle {
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
