//! What `/health` says while a part of the server does not get on.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod http;

use http::{TestServer, ask, text_engine, until};
use realizar_engine::encoder::{EncodeRunner, EncoderEngine, EncoderInfo, TextEncoder};
use realizar_engine::load::{CacheSize, Device, LoadOptions, load, load_encoder};
use realizar_engine::{BlockCopy, EngineConfig, Result, Runner, RunnerInfo, Sampled, Step, Ticket};
use realizar_model::source;
use realizar_model::tokenizer::{Encoding, Tokenizer};
use realizar_server::{Config, EncoderModel, Ended, LoadedModel, ModelFacts, Models};
use serde_json::json;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A runner whose steps wait while somebody holds its gate.
struct Held {
    inner: Box<dyn Runner>,
    gate: Arc<Mutex<()>>,
}

impl Runner for Held {
    fn info(&self) -> RunnerInfo {
        self.inner.info()
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<()> {
        self.inner.copy_blocks(copies)
    }

    fn launch(&mut self, step: &Step) -> Result<Ticket> {
        self.inner.launch(step)
    }

    fn finish(&mut self, ticket: Ticket) -> Result<Sampled> {
        drop(self.gate.lock());
        self.inner.finish(ticket)
    }
}

/// A server whose engine is stuck while somebody holds the gate.
fn server(gate: &Arc<Mutex<()>>, config: Config) -> TestServer {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf");
    let options = LoadOptions {
        device: Device::Cpu,
        n_threads: 1,
        cache: CacheSize::Tokens(1024),
        ..LoadOptions::default()
    };
    let inner = load(&*source::open(&demo).expect("the demo model"), &options).expect("a runner").runner;
    let engine = EngineConfig { longest_step: Duration::from_millis(300), ..EngineConfig::default() };
    TestServer::around(text_engine(Box::new(Held { inner, gate: gate.clone() }), engine), config)
}

#[test]
fn an_engine_that_is_stuck_is_named_and_found_well_again() {
    let gate = Arc::new(Mutex::new(()));
    let server = server(&gate, Config::default());
    assert_eq!(server.get("/health").status, 200);
    let hold = gate.lock().expect("no panic");
    std::thread::scope(|scope| {
        let answer =
            scope.spawn(|| server.post("/v1/chat/completions", &ask("Go.", &json!({"max_tokens": 4}))));
        until("the engine is stuck", || server.get("/health").status == 503);
        let health = server.get("/health");
        assert!(health.text.contains("stuck") && health.text.contains("device"), "{}", health.text);
        assert_eq!(server.get("/ready").status, 503);
        drop(hold);
        answer.join().expect("no panic").ok();
    });
    until("the engine gets on", || server.get("/health").status == 200);
}

#[test]
fn a_server_whose_engine_is_stuck_ends_after_its_drain() {
    let gate = Arc::new(Mutex::new(()));
    let server = server(&gate, Config { drain: Duration::from_millis(500), ..Config::default() });
    let hold = gate.lock().expect("no panic");
    let url = server.url("/v1/chat/completions");
    // It gets an error or its connection ends.
    let asking =
        std::thread::spawn(move || drop(ureq::post(url).send_json(ask("Go.", &json!({"max_tokens": 4})))));
    until("the engine is stuck", || server.get("/health").status == 503);
    server.handle.stop();
    assert_eq!(server.join(), Ended::Drained);
    asking.join().expect("no panic");
    drop(hold);
}

/// An encoder whose steps wait while somebody holds its gate.
struct HeldEncoder {
    inner: Box<dyn EncodeRunner>,
    gate: Arc<Mutex<()>>,
}

impl EncodeRunner for HeldEncoder {
    fn info(&self) -> &EncoderInfo {
        self.inner.info()
    }

    fn encode(&mut self, texts: &[&Encoding], rows: &mut Vec<f32>) -> Result<()> {
        drop(self.gate.lock());
        self.inner.encode(texts, rows)
    }
}

#[test]
fn an_encoder_that_is_stuck_is_named_and_found_well_again() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/encoders/bert/model.gguf");
    let source = source::open(&fixture).expect("a fixture");
    let options = LoadOptions { device: Device::Cpu, n_threads: 1, ..LoadOptions::default() };
    let inner = load_encoder(&*source, &options, None).expect("an encoder").runner;
    let gate = Arc::new(Mutex::new(()));
    let engine =
        EncoderEngine::start(Box::new(HeldEncoder { inner, gate: gate.clone() }), 100).expect("a thread");
    let tokenizer = Arc::new(Tokenizer::from_source(&*source).expect("a tokenizer"));
    let encoder = TextEncoder::new(engine.client(), tokenizer, &*source).expect("no prompt");
    let model = LoadedModel::Encoder(EncoderModel { engine, encoder, facts: ModelFacts::default() });
    let models = Models::one(vec!["bert".into()], model).expect("a name");
    let config = Config { longest_encoder_step: Duration::from_millis(300), ..Config::default() };
    let server = TestServer::around_models(models, config);
    assert_eq!(server.get("/health").status, 200);
    let hold = gate.lock().expect("no panic");
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| server.post("/v1/embeddings", &json!({"input": "some text"})));
        until("the encoder is stuck", || server.get("/health").status == 503);
        let health = server.get("/health");
        assert!(health.text.contains("the encoder bert has been in one step"), "{}", health.text);
        drop(hold);
        answer.join().expect("no panic").ok();
    });
    until("the encoder gets on", || server.get("/health").status == 200);
}
