//! The real server around a model that plays a script, to test clients and agents by the protocol and not by a model's abilities.
//!
//! ```sh
//! cargo run -p realizar-server --example scripted_server -- SCRIPT.json
//! ```
//!
//! `SCRIPT.json` is a list of rules. The first rule that fits a conversation gives the answer, as the text that a model would generate: calls of
//! tools are written in Hermes' syntax, as `hermes.jinja` beside this file shows them.
//!
//! ```json
//! [{"turn": 0, "contains": ["\"name\": \"Read\""], "answer": "<tool_call>\n{\"name\": \"Read\", \"arguments\": {}}\n</tool_call>"},
//!  {"answer": "Done."}]
//! ```
//!
//! `turn` is the number of answers that the conversation has already, `contains` lists texts that its prompt must contain. The address is printed on
//! stdout; the server runs until it is told to stop. A conversation that no rule fits is answered with nothing and reported on stderr.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use bytes::Bytes;
use realizar_compute::BatchLimits;
use realizar_engine::sampler::Sampler;
use realizar_engine::{
    BlockCopy, Engine, EngineConfig, Result, Runner, RunnerInfo, Sampled, SamplingParams, Step, TextEngine,
    Ticket,
};
use realizar_model::chat_template::ChatTemplate;
use realizar_model::source;
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use realizar_server::{Config, LoadedModel, ModelFacts, Models, Server, TextModel};
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::Arc;

/// Only its tokenizer is used.
static DEMO: &[u8] = include_bytes!("../../../assets/demo.gguf");
/// Begins every message in ChatML.
const MESSAGE: &str = "<|im_start|>";
/// What follows [`MESSAGE`] where an answer begins.
const ANSWER: &str = "assistant\n";
/// Long enough for the system prompts of agents in the demo's small vocabulary, in tokens.
const CONTEXT: usize = 1 << 19;
const BLOCK_SIZE: usize = 256;
const STEP_TOKENS: usize = 1 << 14;
const MAX_SEQS: usize = 8;

/// An answer, and the conversations that it is for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// Answers that the conversation has already.
    turn: Option<usize>,
    /// Texts that the prompt must contain.
    #[serde(default)]
    contains: Vec<String>,
    answer: String,
}

impl Rule {
    fn fits(&self, prompt: &str, turn: usize) -> bool {
        self.turn.is_none_or(|wanted| wanted == turn)
            && self.contains.iter().all(|text| prompt.contains(text))
    }
}

/// A runner that remembers the tokens of the cache's blocks, and so finds the conversation of each row again.
struct Script {
    rules: Vec<Rule>,
    tokenizer: Arc<Tokenizer>,
    /// Token at each place of the cache.
    cache: Vec<u32>,
    /// Token that begins a message.
    message: u32,
    /// Tokens of [`ANSWER`].
    n_answer: usize,
    /// Answers with the end of the text, by prompt.
    answers: HashMap<Vec<u32>, Vec<u32>>,
    info: RunnerInfo,
    sampler: Sampler,
    outcome: Option<Sampled>,
}

impl Script {
    fn new(rules: Vec<Rule>, tokenizer: Arc<Tokenizer>) -> Self {
        let n_blocks = 2 * CONTEXT / BLOCK_SIZE;
        let limits = BatchLimits {
            n_tokens: STEP_TOKENS,
            n_seqs: MAX_SEQS,
            n_blocks: MAX_SEQS * n_blocks,
            n_logits: MAX_SEQS,
        };
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
        let encode =
            |text, parse_special| tokenizer.encode(text, EncodeOptions { add_special: false, parse_special });
        Self {
            rules,
            cache: vec![0; info.cache_tokens()],
            message: encode(MESSAGE, true)[0],
            n_answer: encode(ANSWER, false).len(),
            answers: HashMap::new(),
            info,
            sampler: Sampler::default(),
            outcome: None,
            tokenizer,
        }
    }

    /// The token that follows a sequence.
    fn next_token(&mut self, tokens: &[u32]) -> u32 {
        let end = self.tokenizer.eos_ids()[0];
        let Some(last) = tokens.iter().rposition(|&token| token == self.message) else { return end };
        let (prompt, said) = tokens.split_at((last + 1 + self.n_answer).min(tokens.len()));
        if !self.answers.contains_key(prompt) {
            let answer = self.answer(prompt);
            self.answers.insert(prompt.to_vec(), answer);
        }
        self.answers[prompt].get(said.len()).copied().unwrap_or(end)
    }

    fn answer(&self, prompt: &[u32]) -> Vec<u32> {
        let text = self.tokenizer.decode(prompt, false);
        let turn = text.matches(&format!("{MESSAGE}{ANSWER}")).count().saturating_sub(1);
        let Some(rule) = self.rules.iter().find(|rule| rule.fits(&text, turn)) else {
            eprintln!("no rule for turn {turn} of:\n{text}\n");
            return Vec::new();
        };
        self.tokenizer.encode(&rule.answer, EncodeOptions { add_special: false, parse_special: false })
    }
}

impl Runner for Script {
    fn info(&self) -> RunnerInfo {
        self.info
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<()> {
        for copy in copies {
            let from = copy.from as usize * BLOCK_SIZE;
            self.cache.copy_within(from..from + BLOCK_SIZE, copy.to as usize * BLOCK_SIZE);
        }
        Ok(())
    }

    fn launch(&mut self, step: &Step) -> Result<Ticket> {
        let mut sampled = Sampled::default();
        for seq in &step.batch.seqs {
            let blocks = &step.batch.block_tables[seq.blocks.clone()];
            let place =
                |position: usize| blocks[position / BLOCK_SIZE] as usize * BLOCK_SIZE + position % BLOCK_SIZE;
            for (i, &token) in step.batch.tokens[seq.tokens.clone()].iter().enumerate() {
                self.cache[place(seq.start + i)] = token;
            }
            let end = seq.start + seq.tokens.len();
            let tokens: Vec<u32> = (0..end).map(|position| self.cache[place(position)]).collect();
            for n in end - seq.n_logits..end {
                let mut logits = vec![0.0; self.info.vocab_size];
                logits[self.next_token(&tokens[..=n]) as usize] = 100.0;
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

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let script = std::env::args_os().nth(1).ok_or("usage: scripted_server SCRIPT.json")?;
    let rules: Vec<Rule> = serde_json::from_str(&std::fs::read_to_string(script)?)?;
    let source = source::open_gguf_bytes("demo", Bytes::from_static(DEMO))?;
    let tokenizer = Arc::new(Tokenizer::from_source(&*source)?);
    let template = ChatTemplate::new(include_str!("hermes.jinja"), "", "<|im_end|>")?;
    let runner = Script::new(rules, tokenizer.clone());
    let engine =
        EngineConfig { max_seqs: MAX_SEQS, step_tokens: Some(STEP_TOKENS), ..EngineConfig::default() };
    let engine = TextEngine::new(Engine::start(Box::new(runner), engine), tokenizer, Some(template));
    let model = TextModel { engine, facts: ModelFacts::default(), sampling: SamplingParams::default() };
    let models = Models::one(vec!["scripted".to_owned()], LoadedModel::Text(model))?;
    let server = Server::bind(models, Config { port: 0, ..Config::default() })?;
    println!("http://{}", server.addresses()[0]);
    server.run()?;
    Ok(())
}
