//! The engine against Dynamo's conformance kit, and what the kit does not ask: the tokens themselves, formats, drain. With the demo model.

use dynamo_backend_common::testing::{mock_context, run_conformance};
use dynamo_backend_common::{
    DynamoError, FinishReason, GenerateContext, LLMEngine, LLMEngineOutput, PreprocessedRequest,
};
use futures::StreamExt;
use realizar_dynamo::{Options, RealizarEngine};
use realizar_engine::load::{Device, LoadOptions};
use realizar_engine::{Engine, EngineConfig, Request, SamplingParams};
use realizar_model::source;
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

fn options() -> Options {
    Options {
        weights: PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/demo.gguf")),
        model: "demo".to_owned(),
        load: load_options(),
        max_queue: 64,
        drain: Duration::from_secs(60),
    }
}

fn load_options() -> LoadOptions {
    LoadOptions { device: Device::Cpu, kv_memory: Some(64 << 20), ..LoadOptions::default() }
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_source(&*source::open(&options().weights).expect("a model")).expect("a tokenizer")
}

fn encode(text: &str) -> Vec<u32> {
    tokenizer().encode(text, EncodeOptions { add_special: true, parse_special: true })
}

const PROMPT: &str = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n";

/// A request to go on after [`PROMPT`] with the likeliest tokens, as Dynamo's frontend makes it.
fn request(more: Value) -> PreprocessedRequest {
    let mut body = json!({
        "model": "demo", "token_ids": encode(PROMPT), "eos_token_ids": tokenizer().eos_ids(),
        "sampling_options": {"temperature": 0.0}, "stop_conditions": {"max_tokens": 40},
    });
    for (name, value) in more.as_object().expect("an object") {
        let fields = value.as_object().expect("an object").clone();
        let group = body[name].as_object_mut();
        match group {
            Some(group) => group.extend(fields),
            None => body[name] = value.clone(),
        }
    }
    serde_json::from_value(body).expect("a request")
}

async fn started() -> Arc<RealizarEngine> {
    let engine = Arc::new(RealizarEngine::new(options()));
    engine.start(0).await.expect("an engine");
    engine
}

async fn answer(engine: &RealizarEngine, request: PreprocessedRequest) -> Vec<LLMEngineOutput> {
    let context = GenerateContext::new(mock_context(), None);
    let chunks = engine.generate(request, context).await.expect("an answer");
    chunks.map(|chunk| chunk.expect("a chunk")).collect().await
}

fn tokens(chunks: &[LLMEngineOutput]) -> Vec<u32> {
    chunks.iter().flat_map(|chunk| chunk.token_ids.clone()).collect()
}

#[tokio::test]
async fn the_engine_passes_the_conformance_kit() {
    run_conformance(|| RealizarEngine::new(options())).await.expect("conformance");
}

#[tokio::test]
async fn answers_have_the_engines_tokens() {
    let source = source::open(&options().weights).expect("a model");
    let loaded = realizar_engine::load::load(&*source, &load_options()).expect("a model");
    let client = Engine::start(loaded.runner, EngineConfig::default());
    let mut direct = Request::new(encode(PROMPT), 40);
    direct.sampling = SamplingParams::greedy();
    direct.stop_tokens = tokenizer().eos_ids().to_vec();
    let expected = client.submit(direct).expect("a stream").collect_tokens().expect("tokens");

    let engine = started().await;
    let chunks = answer(&engine, request(json!({}))).await;
    assert_eq!(tokens(&chunks), expected[0].0);
    let last = chunks.last().expect("a last chunk");
    assert_eq!(last.finish_reason, Some(FinishReason::Length));
    // The same prompt again is found in the cache.
    let again = answer(&engine, request(json!({}))).await;
    assert_eq!(tokens(&again), expected[0].0);
    let usage = again.last().and_then(|chunk| chunk.completion_usage.clone()).expect("usage");
    assert_eq!((usage.prompt_tokens as usize, usage.completion_tokens), (encode(PROMPT).len(), 40));
    assert!(usage.prompt_tokens_details.and_then(|d| d.cached_tokens).is_some());
}

#[tokio::test]
async fn each_token_has_its_log_probabilities() {
    let engine = started().await;
    let chunks = answer(&engine, request(json!({"output_options": {"logprobs": 3}}))).await;
    for chunk in chunks.iter().filter(|chunk| chunk.finish_reason.is_none()) {
        let (chosen, top) =
            (chunk.log_probs.as_ref().expect("one"), chunk.top_logprobs.as_ref().expect("three"));
        assert_eq!((chosen.len(), top.len()), (chunk.token_ids.len(), chunk.token_ids.len()));
        for ((id, logprob), top) in chunk.token_ids.iter().zip(chosen).zip(top) {
            // The likeliest was chosen.
            assert_eq!((top.len(), top[0].token_id, top[0].logprob), (3, *id, *logprob));
        }
    }
}

#[tokio::test]
async fn the_token_that_ends_an_answer_comes_with_its_end() {
    let engine = started().await;
    let all = tokens(&answer(&engine, request(json!({}))).await);
    let chunks = answer(&engine, request(json!({"stop_conditions": {"stop_token_ids": [all[9]]}}))).await;
    let end = all.iter().position(|id| *id == all[9]).expect("it is there") + 1;
    assert_eq!(tokens(&chunks), all[..end]);
    assert_eq!(chunks.last().expect("a last chunk").finish_reason, Some(FinishReason::Stop));
}

#[tokio::test]
async fn guided_answers_have_their_format() {
    let engine = started().await;
    let guided = |format: Value| request(json!({"sampling_options": {"guided_decoding": format}}));
    let chunks = answer(&engine, guided(json!({"choice": ["a hedgehog", "an otter."]}))).await;
    let text = tokenizer().decode(&tokens(&chunks), true);
    assert!(["a hedgehog", "an otter."].contains(&text.as_str()), "{text:?}");

    let error =
        engine.generate(guided(json!({"regex": "("})), GenerateContext::new(mock_context(), None)).await;
    let error = error.map(|_| ()).expect_err("it is no regular expression").to_string();
    assert!(error.contains("the regular expression cannot be enforced"), "{error}");
}

#[tokio::test]
async fn what_has_begun_is_finished_before_the_end() {
    let engine = started().await;
    let context = GenerateContext::new(mock_context(), None);
    let long = request(json!({"stop_conditions": {"max_tokens": 300, "ignore_eos": true}}));
    let mut chunks = engine.generate(long, context).await.expect("an answer");
    let first = chunks.next().await.expect("a chunk").expect("tokens");
    let ending = tokio::spawn({
        let engine = engine.clone();
        async move { engine.cleanup().await }
    });
    let rest: Vec<Result<LLMEngineOutput, DynamoError>> = chunks.collect().await;
    ending.await.expect("no panic").expect("an end");
    let rest: Vec<LLMEngineOutput> = rest.into_iter().map(|chunk| chunk.expect("a chunk")).collect();
    assert_eq!(first.token_ids.len() + tokens(&rest).len(), 300);
    assert_eq!(rest.last().expect("a last chunk").finish_reason, Some(FinishReason::Length));

    let context = GenerateContext::new(mock_context(), None);
    let error = engine.generate(request(json!({})), context).await.map(|_| ()).expect_err("it has ended");
    assert!(error.to_string().contains("shutting down"), "{error}");
}
