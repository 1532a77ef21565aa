//! A decode step on the host allocates no more often for a larger batch or a longer context; what it allocates are a few buffers of the
//! step as a whole. That holds for the runner alone and for the engine's whole loop around it: scheduling, choosing tokens and handing
//! them to their streams.
//!
//! Method: an allocator that counts what each thread allocates, and a model on one thread.

use realizar_engine::load::{CacheSize, Device, LoadOptions, load};
use realizar_engine::{
    BlockCopy, Engine, EngineConfig, Result, Row, Runner, RunnerInfo, Sampled, SamplingParams, Step,
    TextEngine, TextEvent, TextParams, Ticket,
};
use realizar_model::source;
use realizar_model::tokenizer::Tokenizer;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

thread_local! {
    static N_ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches only a number of the thread, which needs no
// allocation of its own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        N_ALLOCATIONS.set(N_ALLOCATIONS.get() + 1);
        // SAFETY: our caller's promises are the system allocator's demands.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

const BLOCK_SIZE: usize = 16;
const MAX_SEQS: usize = 16;

fn demo() -> Box<dyn source::TensorSource> {
    source::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf")).unwrap()
}

fn runner() -> Box<dyn Runner> {
    let options = LoadOptions {
        device: Device::Cpu,
        n_ctx: Some(128),
        cache: CacheSize::Tokens(128 * MAX_SEQS),
        block_size: BLOCK_SIZE,
        max_seqs: Some(MAX_SEQS),
        // What a thread keeps for itself it allocates when it first gets a piece of work, which is up to the system.
        n_threads: 1,
        ..LoadOptions::default()
    };
    load(&*demo(), &options).unwrap().runner
}

/// One token for each of `n_seqs` sequences, at this position of each, whose history is as long.
fn decode_step(n_seqs: usize, position: usize, params: &Arc<SamplingParams>) -> Step {
    let mut step = Step::default();
    for seq in 0..n_seqs {
        let blocks: Vec<u32> = (0..8).map(|i| (8 * seq + i) as u32).collect();
        let token = 300 + (7 * seq + position) as u32 % 100;
        step.batch.push(&[token], position, &blocks[..=position / BLOCK_SIZE], 1);
        let start = step.history.len();
        step.history.extend((0..=position as u32).map(|i| 300 + i % 90));
        let generated = start..step.history.len();
        step.rows.push(Row { generated, uniform: 0.4, ..Row::choose(params.clone()) });
    }
    step
}

/// How often the step allocates.
fn count(runner: &mut dyn Runner, step: &Step) -> usize {
    let before = N_ALLOCATIONS.get();
    let ticket = runner.launch(step).unwrap();
    let sampled = runner.finish(ticket).unwrap();
    let after = N_ALLOCATIONS.get();
    assert_eq!(sampled.rows.len(), step.rows.len());
    after - before
}

#[test]
fn a_step_allocates_no_more_often_for_a_larger_batch_or_a_longer_context() {
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let sampled = SamplingParams { temperature: 0.8, top_k: 20, top_p: 0.9, ..SamplingParams::default() };
    let penalized = SamplingParams { repetition_penalty: 1.2, presence_penalty: 0.3, ..sampled.clone() };
    let mut runner = runner();
    for params in [greedy, sampled, penalized].map(Arc::new) {
        for position in 0..4 {
            count(&mut *runner, &decode_step(MAX_SEQS, position, &params));
        }
        let one = count(&mut *runner, &decode_step(1, 4, &params));
        for position in 4..120 {
            for n_seqs in [1, 5, MAX_SEQS] {
                let n = count(&mut *runner, &decode_step(n_seqs, position, &params));
                assert_eq!(n, one, "{n_seqs} sequences at {position}: {params:?}");
            }
        }
    }
}

/// A runner that notes at each launch how many rows the step has, and how often the engine's thread has allocated until then.
struct Noting {
    runner: Box<dyn Runner>,
    /// The first step waits for this, so that all requests are there after it.
    begin: Option<Receiver<()>>,
    notes: Arc<Mutex<Vec<(usize, usize)>>>,
}

impl Runner for Noting {
    fn info(&self) -> RunnerInfo {
        self.runner.info()
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<()> {
        self.runner.copy_blocks(copies)
    }

    fn launch(&mut self, step: &Step) -> Result<Ticket> {
        self.begin.take().into_iter().for_each(|begin| begin.recv().unwrap());
        self.notes.lock().unwrap().push((step.rows.len(), N_ALLOCATIONS.get()));
        self.runner.launch(step)
    }

    fn finish(&mut self, ticket: Ticket) -> Result<Sampled> {
        self.runner.finish(ticket)
    }
}

/// How often something allocated.
struct Counts {
    /// The engine's thread, per step in which all sequences decode: from its launch to that of the next step.
    steps: Vec<usize>,
    /// The readers, per token.
    tokens: Vec<usize>,
}

const N_PROMPT: usize = 8;
const MAX_TOKENS: usize = 100;

fn count_engine(n_seqs: usize, tokenizer: &Arc<Tokenizer>, params: &TextParams) -> Counts {
    let (begin, wait) = channel();
    let notes = Arc::new(Mutex::new(Vec::with_capacity(10 * MAX_TOKENS)));
    let noting = Noting { runner: runner(), begin: Some(wait), notes: notes.clone() };
    let client = Engine::start(Box::new(noting), EngineConfig::default());
    let engine = TextEngine::new(client.clone(), tokenizer.clone(), None);
    let streams: Vec<_> = (0..n_seqs as u32)
        .map(|seq| {
            let prompt = (0..N_PROMPT as u32).map(|i| 300 + 10 * seq + i).collect();
            engine.submit(engine.request(prompt, params), &params.stop).unwrap()
        })
        .collect();
    begin.send(()).unwrap();
    client.shutdown(Duration::from_secs(300));

    let notes = notes.lock().unwrap();
    let decodes = notes.windows(2).filter(|pair| pair.iter().all(|(n_rows, _)| *n_rows == n_seqs));
    let steps = decodes.map(|pair| pair[1].1 - pair[0].1).collect();
    let mut tokens = Vec::with_capacity(n_seqs * MAX_TOKENS);
    for mut stream in streams {
        let mut n_tokens = 0;
        loop {
            let before = N_ALLOCATIONS.get();
            let Some(event) = stream.recv() else { break };
            let after = N_ALLOCATIONS.get();
            if let TextEvent::Delta { token: Some(_), .. } = event.unwrap() {
                n_tokens += 1;
                tokens.push(after - before);
            }
        }
        assert_eq!(n_tokens, MAX_TOKENS);
    }
    Counts { steps, tokens }
}

/// A list of likely tokens is the event's, so a row with log-probabilities costs one.
#[test]
fn the_engine_allocates_no_more_often_per_step_for_more_sequences() {
    let tokenizer = Arc::new(Tokenizer::from_source(&*demo()).unwrap());
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let sampling =
        SamplingParams { temperature: 0.8, top_k: 20, repetition_penalty: 1.2, ..SamplingParams::default() };
    let plain = TextParams {
        max_tokens: Some(MAX_TOKENS),
        sampling: greedy,
        ignore_eos: true,
        ..TextParams::default()
    };
    let stopping = TextParams { sampling, stop: vec!["no such text".into()], ..plain.clone() };
    let scored = TextParams { n_logprobs: Some(3), ..stopping.clone() };
    for (params, lists_per_row) in [(&plain, 0), (&stopping, 0), (&scored, 1)] {
        let mut of_a_step = None;
        for n_seqs in [1, 2, MAX_SEQS] {
            let counts = count_engine(n_seqs, &tokenizer, params);
            let rest = |n: &usize| n - lists_per_row * n_seqs;
            let steps: Vec<usize> = counts.steps.iter().map(rest).collect();
            // All steps but those in which sequences begin a block or their lists of tokens or events double.
            let usual = *steps.iter().min().unwrap();
            let n_usual = steps.iter().filter(|n| **n == usual).count();
            assert!(
                steps.len() > MAX_TOKENS - 5 && n_usual * 4 > steps.len() * 3,
                "{n_seqs} sequences: {steps:?}"
            );
            assert_eq!(usual, *of_a_step.get_or_insert(usual), "{n_seqs} sequences: {params:?}");
            // Of each sequence: its blocks in the prefix cache, and up to six doublings of three lists.
            let more: usize = steps.iter().map(|n| n - usual).sum();
            let n_blocks = (N_PROMPT + MAX_TOKENS).div_ceil(BLOCK_SIZE);
            assert!(more <= n_seqs * (n_blocks + 18) + 64, "{more} more for {n_seqs} sequences: {steps:?}");
            // A token's bytes, its characters and the text with what was held back before, however many texts there are.
            let most = *counts.tokens.iter().max().unwrap();
            assert!(most <= 8, "{most} for a token of {n_seqs} sequences");
        }
    }
}
