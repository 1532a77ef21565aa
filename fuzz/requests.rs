//! Any body as a request to any endpoint, behind a first line such as `POST /v1/messages`: an answer or an error in the endpoint's form, and a
//! server that goes on. The model is a runner that repeats itself and soon ends.
//!
//! `cargo +nightly fuzz run requests fuzz/corpus/requests fuzz/seeds/requests -- -malloc_limit_mb=512 -timeout=70`
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use realizar_compute::BatchLimits;
use realizar_engine::sampler::Sampler;
use realizar_engine::{
    BlockCopy, Engine, EngineConfig, Result, Runner, RunnerInfo, Sampled, SamplingParams, Step, TextEngine, Ticket,
};
use realizar_model::chat_template::ChatTemplate;
use realizar_model::source;
use realizar_model::tokenizer::Tokenizer;
use realizar_server::{Config, LoadedModel, ModelFacts, Models, Server, TextModel};
use std::sync::{Arc, OnceLock};
use ureq::Agent;
use ureq::http::Request;

/// Only its tokenizer and its chat template are used.
static DEMO: &[u8] = include_bytes!("../assets/demo.gguf");
const CONTEXT: usize = 512;
const BLOCK_SIZE: usize = 16;
const MAX_SEQS: usize = 4;

/// A model whose next token follows from the last one.
struct Chain {
    info: RunnerInfo,
    end: u32,
    sampler: Sampler,
    outcome: Option<Sampled>,
}

impl Chain {
    fn new(tokenizer: &Tokenizer) -> Self {
        let n_blocks = MAX_SEQS * CONTEXT / BLOCK_SIZE;
        let limits = BatchLimits { n_tokens: CONTEXT, n_seqs: MAX_SEQS, n_blocks, n_logits: MAX_SEQS };
        let info = RunnerInfo {
            vocab_size: tokenizer.vocab_size(),
            n_blocks,
            block_size: BLOCK_SIZE,
            context_length: CONTEXT,
            limits,
            slots: None,
            asynchronous: false,
            drafts: false,
        };
        Self { info, end: tokenizer.eos().expect("an end"), sampler: Sampler::default(), outcome: None }
    }
}

impl Runner for Chain {
    fn info(&self) -> RunnerInfo {
        self.info
    }

    fn copy_blocks(&mut self, _: &[BlockCopy]) -> Result<()> {
        Ok(())
    }

    fn launch(&mut self, step: &Step) -> Result<Ticket> {
        let mut sampled = Sampled::default();
        for seq in &step.batch.seqs {
            let tokens = &step.batch.tokens[seq.tokens.clone()];
            for &last in &tokens[tokens.len() - seq.n_logits..] {
                let mut logits = vec![0.0; self.info.vocab_size];
                logits[(last as usize * 7 + 11) % self.info.vocab_size] = 20.0;
                logits[self.end as usize] = if last % 8 == 0 { 30.0 } else { 1.0 };
                sampled.rows.push(self.sampler.sample(&mut logits, step, sampled.rows.len(), &[]));
            }
        }
        self.outcome = Some(sampled);
        Ok(Ticket(0))
    }

    fn finish(&mut self, _: Ticket) -> Result<Sampled> {
        Ok(self.outcome.take().expect("a step is in flight"))
    }
}

/// A client of a server that runs as long as the process.
fn client() -> &'static (Agent, String) {
    static CLIENT: OnceLock<(Agent, String)> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let source = source::open_gguf_bytes("demo", Bytes::from_static(DEMO)).expect("the model");
        let tokenizer = Arc::new(Tokenizer::from_source(&*source).expect("its tokenizer"));
        let template = ChatTemplate::from_source(&*source, &tokenizer).expect("its template");
        let runner = Chain::new(&tokenizer);
        let config = EngineConfig { max_seqs: MAX_SEQS, ..EngineConfig::default() };
        let engine = TextEngine::new(Engine::start(Box::new(runner), config), tokenizer, template);
        let model = TextModel { engine, facts: ModelFacts::default(), sampling: SamplingParams::default() };
        let models = Models::one(vec!["demo".to_owned()], LoadedModel::Text(model)).expect("a model");
        let server = Server::bind(models, Config { port: 0, ..Config::default() }).expect("a server");
        let url = format!("http://{}", server.addresses()[0]);
        std::thread::spawn(move || server.run());
        (Agent::config_builder().http_status_as_error(false).build().into(), url)
    })
}

fuzz_target!(|data: &[u8]| {
    let Some(end) = data.iter().position(|&byte| byte == b'\n') else { return };
    let (line, body) = (&data[..end], &data[end + 1..]);
    let Ok(line) = std::str::from_utf8(line) else { return };
    let Some((method @ ("GET" | "POST" | "DELETE" | "PUT"), path)) = line.split_once(' ') else { return };
    // The client itself refuses other paths.
    if !path.starts_with('/') || !path.bytes().all(|b| b.is_ascii_graphic()) {
        return;
    }
    // The fuzzer's timer interrupts system calls of the main thread, which the client does not repeat.
    std::thread::scope(|scope| scope.spawn(|| ask(method, path, body)).join().expect("the client's thread"));
});

fn ask(method: &str, path: &str, body: &[u8]) {
    let (agent, url) = client();
    let request = Request::builder().method(method).uri(format!("{url}{path}")).header("content-type", "application/json");
    let Ok(request) = request.body(body) else { return };
    let request = agent.configure_request(request).allow_non_standard_methods(true).build();
    let mut response = agent.run(request).expect("the server answers");
    let status = response.status().as_u16();
    let text = response.body_mut().read_to_string().expect("a whole answer");
    assert!(status != 500 && status < 504, "{status}: {text}");
    if status >= 400 {
        let error: serde_json::Value = serde_json::from_str(&text).expect("an error in JSON");
        assert!(error.get("error").is_some() || error.get("message").is_some() || error.get("detail").is_some(), "{text}");
    }
}
