//! Encoders over HTTP: the fixtures of the model crate, against the same vectors and scores of the reference libraries.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod http;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::TestServer;
use realizar_compute::DType;
use realizar_engine::encoder::{EncoderEngine, TextEncoder};
use realizar_engine::load::{Device, LoadOptions, load_encoder};
use realizar_model::source;
use realizar_model::tokenizer::Tokenizer;
use realizar_server::{Config, EncoderModel, LoadedModel, ModelFacts, Models};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/encoders").join(name)
}

fn server(name: &str) -> TestServer {
    let source = source::open(&fixture(name).join("model.gguf")).expect("a fixture");
    let options = LoadOptions {
        device: Device::Cpu,
        n_threads: 1,
        exact: true,
        kv_type: DType::F32,
        ..LoadOptions::default()
    };
    let loaded = load_encoder(&*source, &options, None).expect("an encoder");
    let engine = EncoderEngine::start(loaded.runner, 100).expect("a thread");
    let tokenizer = Arc::new(Tokenizer::from_source(&*source).expect("a tokenizer"));
    let encoder = TextEncoder::new(engine.client(), tokenizer, &*source).expect("a reranker's prompt");
    let model = EncoderModel { engine, encoder, facts: ModelFacts::default() };
    let models = Models::one(vec![name.into()], LoadedModel::Encoder(model)).expect("a name");
    TestServer::around_models(models, Config::default())
}

/// The texts of a fixture and what the reference library makes of them.
fn golden(name: &str) -> Vec<(String, Vec<f32>)> {
    let golden = std::fs::read(fixture(name).join("golden.json")).expect("a fixture");
    let golden: Value = serde_json::from_slice(&golden).expect("JSON");
    let text = |t: &Value| (t["text"].as_str().expect("a text").to_owned(), floats(&t["output"]));
    golden["texts"].as_array().expect("texts").iter().map(text).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().expect("a vector").iter().map(|x| x.as_f64().expect("a number") as f32).collect()
}

#[track_caller]
fn is_near(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-4), "{got:?} is not {want:?}");
}

#[test]
fn embeddings_are_those_of_the_reference_library_in_every_form() {
    let (server, golden) = (server("bert"), golden("bert"));
    let texts: Vec<&str> = golden.iter().map(|(text, _)| text.as_str()).collect();
    let body = server.post("/v1/embeddings", &json!({"model": "bert", "input": texts})).ok();
    assert_eq!((&body["object"], &body["model"]), (&json!("list"), &json!("bert")));
    for (i, (_, want)) in golden.iter().enumerate() {
        assert_eq!(body["data"][i]["index"], i);
        is_near(&floats(&body["data"][i]["embedding"]), want);
    }
    assert_eq!(body["usage"]["prompt_tokens"], body["usage"]["total_tokens"]);
    assert_eq!(body["usage"]["prompt_tokens"], 3 + 4 + 5 + 16);

    let one = json!({"input": texts[2], "encoding_format": "base64"});
    let body = server.post("/v1/embeddings", &one).ok();
    let bytes =
        BASE64_STANDARD.decode(body["data"][0]["embedding"].as_str().expect("base64")).expect("base64");
    let row: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    is_near(&row, &golden[2].1);

    for ids in [json!([2, 24, 62, 3]), json!([[2, 24, 62, 3]])] {
        let body = server.post("/embeddings", &json!({"input": ids})).ok();
        is_near(&floats(&body["data"][0]["embedding"]), &golden[1].1);
    }
    let body = server.post("/v1/embeddings", &json!({"input": texts[3], "dimensions": 5})).ok();
    let length = golden[3].1[..5].iter().map(|x| x * x).sum::<f32>().sqrt();
    let want: Vec<f32> = golden[3].1[..5].iter().map(|x| x / length).collect();
    is_near(&floats(&body["data"][0]["embedding"]), &want);

    let metrics = server.get("/metrics").text;
    assert!(metrics.contains("realizar_encoder_texts_total{model_name=\"bert\"} 8"), "{metrics}");
    assert_eq!(server.get("/health").ok()["status"], "ready");
}

#[test]
fn ollama_and_llama_cpp_clients_get_the_same_vectors_in_their_shapes() {
    let (server, golden) = (server("bert"), golden("bert"));
    let texts: Vec<&str> = golden.iter().map(|(text, _)| text.as_str()).collect();
    let body = server.post("/api/embed", &json!({"model": "bert:latest", "input": texts})).ok();
    for (i, (_, want)) in golden.iter().enumerate() {
        is_near(&floats(&body["embeddings"][i]), want);
    }
    assert_eq!(body["prompt_eval_count"], 3 + 4 + 5 + 16);
    let body = server.post("/api/embeddings", &json!({"model": "bert", "prompt": texts[1]})).ok();
    is_near(&floats(&body["embedding"]), &golden[1].1);
    let body = server.post("/embedding", &json!({"content": [texts[0], texts[1]]})).ok();
    assert_eq!(body[1]["index"], 1);
    is_near(&floats(&body[1]["embedding"][0]), &golden[1].1);
    let shown = server.post("/api/show", &json!({"model": "bert"})).ok();
    assert_eq!(shown["capabilities"], json!(["embedding"]));
}

#[test]
fn a_text_that_is_too_long_is_refused_with_both_numbers_or_cut() {
    let server = server("bert");
    let long = "the owl and the fox ".repeat(100);
    let refused = server.post("/v1/embeddings", &json!({"input": ["t", long]}));
    refused.is_error(400, Some("input"), "maximum context length is");
    let cut = server.post("/v1/embeddings", &json!({"input": long, "truncate_prompt_tokens": 4})).ok();
    assert_eq!(cut["usage"]["prompt_tokens"], 4);
    server.post("/v1/embeddings", &json!({"input": long, "truncate_prompt_tokens": -1})).ok();
    server.post("/api/embed", &json!({"input": long})).ok();
    let refused = server.post("/api/embed", &json!({"input": long, "truncate": false}));
    assert_eq!(refused.status, 400);
}

#[test]
fn documents_are_sorted_by_the_scores_of_the_reference_library() {
    let name = "xlm-roberta-reranker";
    let (server, golden) = (server(name), golden(name));
    let texts: Vec<&str> = golden.iter().map(|(text, _)| text.as_str()).collect();
    let mut want: Vec<(usize, f32)> = golden.iter().map(|(_, row)| row[0]).enumerate().collect();
    want.sort_by(|a, b| b.1.total_cmp(&a.1));
    let logistic = |x: f32| 1.0 / (1.0 + (-x).exp());

    let request = json!({"query": "who?", "documents": texts, "return_documents": true});
    for path in ["/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking"] {
        let body = server.post(path, &request).ok();
        for (place, (index, logit)) in want.iter().enumerate() {
            let result = &body["results"][place];
            assert_eq!(
                (&result["index"], &result["document"]["text"]),
                (&json!(index), &json!(texts[*index]))
            );
            is_near(&[result["relevance_score"].as_f64().expect("a score") as f32], &[logistic(*logit)]);
        }
    }
    let objects: Vec<Value> = texts.iter().map(|text| json!({"text": text})).collect();
    let best = server.post("/v1/rerank", &json!({"query": "who?", "documents": objects, "top_n": 1})).ok();
    assert_eq!(best["results"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        (&best["results"][0]["index"], &best["results"][0]["document"]),
        (&json!(want[0].0), &Value::Null)
    );

    let tei = server.post("/rerank", &json!({"query": "who?", "texts": texts, "raw_scores": true})).ok();
    for (place, (index, logit)) in want.iter().enumerate() {
        assert_eq!(tei[place]["index"], *index);
        is_near(&[tei[place]["score"].as_f64().expect("a score") as f32], &[*logit]);
    }
}

#[test]
fn what_a_model_cannot_do_is_refused_by_its_name() {
    let (bert, reranker, demo) = (server("bert"), server("xlm-roberta-reranker"), TestServer::start());
    let texts = json!({"input": "t"});
    demo.post("/v1/embeddings", &texts).is_error(400, Some("model"), "generates text and embeds none");
    reranker.post("/v1/embeddings", &texts).is_error(400, Some("model"), "is a reranker");
    let ranking = json!({"query": "t", "documents": ["t"]});
    bert.post("/v1/rerank", &ranking).is_error(400, Some("model"), "scores none");
    let chat = json!({"messages": [{"role": "user", "content": "t"}]});
    bert.post("/v1/chat/completions", &chat).is_error(400, Some("model"), "embeds texts and generates none");

    for (body, param, part) in [
        (json!({"input": []}), "input", "no text"),
        (json!({"input": [[]]}), "input", "empty"),
        (json!({"input": vec!["t"; 2049]}), "input", "at most 2048"),
        (json!({"input": [9999]}), "input", "9999"),
        (json!({"input": "t", "dimensions": 99}), "dimensions", "between 1 and 24"),
        (json!({"input": "t", "dimensions": 0}), "dimensions", "between 1 and 24"),
        (json!({"input": "t", "encoding_format": "hex"}), "encoding_format", "float or base64"),
        (json!({"input": "t", "truncate_prompt_tokens": 0}), "truncate_prompt_tokens", "at least 1"),
        (json!({"input": "t", "task": "retrieval.query"}), "task", "not supported"),
    ] {
        bert.post("/v1/embeddings", &body).is_error(400, Some(param), part);
    }
    for (body, param) in [
        (json!({"query": "t", "documents": []}), "documents"),
        (json!({"query": "t"}), "documents"),
        (json!({"query": "t", "documents": ["t"], "texts": ["t"]}), "documents"),
        (json!({"query": "t", "documents": ["t"], "top_n": 0}), "top_n"),
    ] {
        reranker.post("/v1/rerank", &body).is_error(400, Some(param), "");
    }
}
