//! Aim: the tokenizers of real models give the ids that the models' own tokenizers give.
//!
//! Method: the shared test data has vocabularies, texts and the ids that the reference implementations made of them.
//! Without the data these tests say that they were skipped; `tokenizer.rs` tests on the project's own fixtures.

// A skipped test says so, and the counts are the result.
#![allow(clippy::print_stdout)]

#[path = "../../compute/tests/support/test_data.rs"]
mod test_data;

use realizar_model::source;
use realizar_model::tokenizer::{EncodeOptions, Tokenizer, clean_up_tokenization_spaces};
use serde_json::Value;
use std::path::Path;
use test_data::test_data;

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

fn gguf(path: &Path) -> Tokenizer {
    let source = source::open(path).unwrap();
    Tokenizer::from_gguf(source.metadata()).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn hf(folder: &Path, file: &str) -> Tokenizer {
    let json = std::fs::read(folder.join(file)).unwrap();
    let config = std::fs::read(folder.join(file.replace("tokenizer.json", "tokenizer_config.json"))).ok();
    Tokenizer::from_hf(&json, config.as_deref(), None)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}

#[test]
fn gguf_vocabularies_encode_and_decode_as_their_models() {
    let Some(data) = test_data("") else { return };
    let folder = data.join("tokenizers/gguf");
    let mut failures = Vec::new();
    for (vocab, cases) in [
        ("ggml-vocab-gpt-2", "ggml-vocab-gpt-2"),
        ("ggml-vocab-llama-spm", "ggml-vocab-llama-spm"),
        ("ggml-vocab-phi-3", "ggml-vocab-phi-3"),
        ("ggml-vocab-deepseek-coder", "ggml-vocab-deepseek-coder"),
        ("ggml-vocab-bert-bge", "ggml-vocab-bert-bge"),
        ("rebuilt-vocab-llama-bpe", "ggml-vocab-llama-bpe"),
        ("rebuilt-vocab-qwen2", "ggml-vocab-qwen2"),
    ] {
        let tokenizer = gguf(&folder.join(format!("{vocab}.gguf")));
        let texts = std::fs::read_to_string(folder.join(format!("{cases}.gguf.inp"))).unwrap();
        let ids = std::fs::read_to_string(folder.join(format!("{cases}.gguf.out"))).unwrap();
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        let ids: Vec<&str> = ids.split('\n').collect();
        assert_eq!(texts.len(), ids.len(), "{vocab}");
        let mut equal = 0;
        for (text, ids) in texts.iter().zip(&ids) {
            let expected: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let found = tokenizer.encode(text, PLAIN);
            if found == expected {
                equal += 1;
            } else {
                failures.push(format!("{vocab}: {text:?}\n  expected {expected:?}\n  found    {found:?}"));
            }
            if vocab != "ggml-vocab-bert-bge" {
                let decoded = tokenizer.decode(&expected, false);
                if decoded != *text {
                    failures.push(format!("{vocab}: {text:?} decodes to {decoded:?}"));
                }
            }
        }
        println!("{vocab}: {equal}/{}", texts.len());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn hugging_face_vectors_encode_and_decode_equal() {
    let Some(data) = test_data("") else { return };
    let vectors: Value = serde_json::from_slice(
        &std::fs::read(data.join("tokenizers/vectors/hf_tokenizer_tests.json")).unwrap(),
    )
    .unwrap();
    let mut failures = Vec::new();
    for (name, cases) in vectors.as_object().unwrap() {
        let tokenizers = data.join("tokenizers");
        // The model's own file where it is here, else one with the same vocabulary.
        let tokenizer = match name.as_str() {
            "bert-base-uncased" | "google-bert/bert-base-uncased" => {
                gguf(&tokenizers.join("gguf/ggml-vocab-bert-bge.gguf"))
            }
            "distilgpt2" | "openai/whisper-tiny.en" => gguf(&tokenizers.join("gguf/ggml-vocab-gpt-2.gguf")),
            "coreml-projects/Llama-2-7b-chat-coreml" => {
                gguf(&tokenizers.join("gguf/ggml-vocab-llama-spm.gguf"))
            }
            "pcuenq/Llama-3.2-1B-Instruct-tokenizer" => hf(&tokenizers.join("llama3"), "tokenizer.json"),
            _ => {
                println!("SKIPPED: the vocabulary of {name} is not in the shared data");
                continue;
            }
        };
        // Whisper puts its own tokens around the text, which GPT-2's vocabulary does not have.
        let whisper = name.contains("whisper");
        // What the configs of these models ask for, and older versions of the reference library did also for BPE.
        let cleaned = whisper || name == "distilgpt2" || name.contains("Llama-3.2");
        let options = EncodeOptions { add_special: !whisper, parse_special: true };
        let cases = cases.as_array().unwrap();
        let mut equal = 0;
        for case in cases {
            let text = case["input"].as_str().unwrap();
            let ids: Vec<u32> = case["encoded"]["input_ids"]
                .as_array()
                .unwrap()
                .iter()
                .map(|id| id.as_u64().unwrap() as u32)
                .collect();
            let expected = if whisper { &ids[2..ids.len() - 1] } else { &ids[..] };
            let found = tokenizer.encode(text, options);
            let mut good = found == expected;
            if !good {
                failures.push(format!("{name}: {text:?}\n  expected {expected:?}\n  found    {found:?}"));
            }
            for (skip_special, key) in [(false, "decoded_with_special"), (true, "decoded_without_special")] {
                if whisper && !skip_special {
                    continue;
                }
                let expected_text = case[key].as_str().unwrap();
                let mut decoded = tokenizer.decode(expected, skip_special);
                if cleaned {
                    decoded = clean_up_tokenization_spaces(&decoded);
                }
                if decoded != expected_text {
                    good = false;
                    failures.push(format!(
                        "{name}: {key} of {text:?}: expected {expected_text:?}, found {decoded:?}"
                    ));
                }
            }
            equal += usize::from(good);
        }
        println!("{name}: {equal}/{}", cases.len());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_file_with_holes_in_its_ids_keeps_them() {
    let Some(data) = test_data("") else { return };
    let tokenizer = hf(&data.join("tokenizers/edge"), "added-tokens_tokenizer.json");
    assert_eq!(tokenizer.id_of("<|user|>"), Some(32010));
    // The space mark is unknown; the reference library puts the byte token of the newline before it.
    let options = EncodeOptions { add_special: true, parse_special: true };
    assert_eq!(tokenizer.encode("<|user|>\n", options), [32010, 13, 0]);
}

#[test]
fn both_formats_of_one_model_agree() {
    let Some(data) = test_data("") else { return };
    let text = std::fs::read_to_string(data.join("eval/wikitext-2-raw_test/wiki.test.raw")).unwrap();
    for (gguf_file, folder, file) in [
        ("tokenizers/gguf/rebuilt-vocab-llama-bpe.gguf", "tokenizers/llama3", "tokenizer.json"),
        ("tokenizers/gguf/rebuilt-vocab-qwen2.gguf", "tokenizers/qwen", "qwen3_tokenizer.json"),
        ("models/stories260K/stories260K-F16.gguf", "models/stories260K/hf", "tokenizer.json"),
    ] {
        let from_gguf = gguf(&data.join(gguf_file)).encode(&text, PLAIN);
        let from_hf = hf(&data.join(folder), file).encode(&text, PLAIN);
        assert!(from_gguf == from_hf, "{gguf_file} and {folder} differ");
    }
}
