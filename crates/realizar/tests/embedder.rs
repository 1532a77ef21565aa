//! Embeddings of fixtures against the reference libraries.
#![allow(missing_docs)]

use realizar::{Device, Embedder, Error, GenerateError, LoadError, Options};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data")
}

fn load(path: &str) -> Result<Embedder, Error> {
    let options = Options { device: Device::Cpu, exact: true, ..Options::default() };
    Embedder::load_with(data().join(path), &options)
}

#[test]
fn vectors_are_those_of_the_reference() {
    let golden: Value =
        serde_json::from_slice(&std::fs::read(data().join("encoders/bert/golden.json")).unwrap()).unwrap();
    let (mut texts, mut wanted) = (Vec::new(), Vec::new());
    for case in golden["texts"].as_array().unwrap() {
        texts.push(case["text"].as_str().unwrap());
        let output = case["output"].as_array().unwrap();
        wanted.push(output.iter().map(|x| x.as_f64().unwrap() as f32).collect::<Vec<_>>());
    }
    for form in ["encoders/bert/model.gguf", "encoders/bert/hf"] {
        let embedder = load(form).unwrap();
        let vectors = embedder.embed(&texts).unwrap();
        assert_eq!(vectors.len(), texts.len());
        for ((text, vector), wanted) in texts.iter().zip(&vectors).zip(&wanted) {
            assert_eq!(vector.len(), embedder.dimensions());
            let length = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>().sqrt();
            assert!((length(vector) - 1.0).abs() < 1e-5, "{form}: {text}");
            for (x, y) in vector.iter().zip(wanted) {
                assert!((x - y / length(wanted)).abs() < 2e-3, "{form}: {text}: {x} and {y}");
            }
            assert_eq!(&embedder.embed(&[text]).unwrap()[0], vector, "{form}: {text} alone");
        }
    }
}

#[test]
fn async_code_gets_the_same_vectors() {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let embedder = load("encoders/bert/model.gguf").unwrap();
    let texts = ["a red fox", "a brown dog"];
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    // One that is dropped before its end holds up nobody.
    let _ = pin!(embedder.embed_async(&texts)).as_mut().poll(&mut context);
    let mut vectors = pin!(embedder.embed_async(&texts));
    let vectors = loop {
        match vectors.as_mut().poll(&mut context) {
            Poll::Ready(vectors) => break vectors.unwrap(),
            Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!(vectors, embedder.embed(&texts).unwrap());
}

#[test]
fn what_cannot_be_embedded_is_an_error() {
    let embedder = load("encoders/bert/model.gguf").unwrap();
    assert_eq!(embedder.embed(&[""; 0]).unwrap(), Vec::<Vec<f32>>::new());
    let long = "t ".repeat(embedder.max_tokens() + 1);
    let error = embedder.embed(&[long]).unwrap_err();
    assert!(matches!(error, Error::Generate(GenerateError::PromptTooLong { .. })), "{error}");
}

#[test]
fn only_embedding_models_are_loaded() {
    let reranker = load("encoders/bert-reranker/hf").map(drop).unwrap_err();
    assert!(matches!(reranker, Error::Reranker { .. }), "{reranker}");
    let text_model = load("../../../../assets/demo.gguf").map(drop).unwrap_err();
    assert!(matches!(text_model, Error::Load(LoadError::NotAnEncoder { .. })), "{text_model}");
    for nothing in [
        Options { max_seqs: Some(0), ..Options::default() },
        Options { n_ctx: Some(0), ..Options::default() },
    ] {
        let options = Options { device: Device::Cpu, ..nothing };
        let nothing =
            Embedder::load_with(data().join("encoders/bert/model.gguf"), &options).map(drop).unwrap_err();
        assert!(matches!(nothing, Error::Load(LoadError::Option { .. })), "{nothing}");
    }
    let missing = load("no.gguf").map(drop).unwrap_err();
    assert!(matches!(missing, Error::Load(LoadError::Model(_))), "{missing}");
}
