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

fn start(path: &Path) -> (EncoderEngine, TextEncoder) {
    let source = source::open(path).unwrap();
    let options = LoadOptions {
        device: Device::Cpu,
        n_threads: 1,
        exact: true,
        kv_type: DType::F32,
        ..LoadOptions::default()
    };
    let loaded = load_encoder(&*source, &options, None).unwrap();
    let engine = EncoderEngine::start(loaded.runner, 100).unwrap();
    let tokenizer = Arc::new(Tokenizer::from_source(&*source).unwrap());
    let encoder = TextEncoder::new(engine.client(), tokenizer, &*source).unwrap();
    (engine, encoder)
}

#[test]
fn rerankers_score_texts_as_the_reference_library_does() {
    for name in ["bert-reranker", "modern-bert-reranker", "xlm-roberta-reranker"] {
        let golden: Value =
            serde_json::from_slice(&std::fs::read(fixture(name).join("golden.json")).unwrap()).unwrap();
        let texts = golden["texts"].as_array().unwrap();
        let (_engine, encoder) = start(&fixture(name).join("hf"));
        let pair = |t: &Value| encoder.pair(t["query"].as_str().unwrap(), t["text"].as_str().unwrap());
        let rows = encoder.client().encode(texts.iter().map(pair).collect()).unwrap().wait().unwrap();
        for (t, row) in texts.iter().zip(rows) {
            let want = t["output"][0].as_f64().unwrap() as f32;
            assert!((row[0] - want).abs() <= 1e-4 * want.abs(), "{name}: {} is not {want}", row[0]);
        }
    }
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
