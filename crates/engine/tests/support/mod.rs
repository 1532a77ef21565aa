//! A runner without a model, whose next token depends on everything that a sequence's block table holds.
//!
//! It keeps a token and its position per slot of the cache. A row's logits are a hash of what the slots of positions 0 to its own
//! hold, read back through the block table; so any block that is mixed up, overwritten, shared wrongly or not copied changes the
//! tokens that follow. With slots it is a model with recurrent layers too: its logits also depend on a hash of all tokens, which goes
//! from step to step only through the slots that the batch names, so that a state that is stale, of another sequence or ahead of its
//! position changes the tokens as well. With a drafting layer it guesses what it would itself choose, from a text that it gathers through
//! the rows of the step before that the batch names. [`solo`] says what a request should yield, from its prompt alone.
#![allow(dead_code, unreachable_pub)]

pub mod subscriber;

use realizar_compute::{Batch, HostBatch};
use realizar_engine::sampler::{Sampler, uniform};
use realizar_engine::{
    BlockCopy, Constraint, Error, FinishReason, Pass, Request, Result, Row, Runner, RunnerInfo, Sampled,
    SamplingParams, Step, Ticket, TokenMask,
};
use realizar_model::DraftFrom;
use std::collections::VecDeque;
use std::sync::Arc;

pub const VOCAB_SIZE: usize = 40;

/// A generator of test data.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678)
    }

    pub fn next(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea and Flood 2014).
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Uniform in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn tokens(&mut self, n: usize) -> Vec<u32> {
        (0..n).map(|_| self.below(VOCAB_SIZE) as u32).collect()
    }
}

pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The model: logits after a history of (position, token), and with this recurrent state, if it has one.
fn logits_after(history: impl Iterator<Item = (u32, u32)>, state: Option<u64>) -> Vec<f32> {
    let h = history.fold(0, |h, (p, t)| mix(h ^ (u64::from(p) << 32 | u64::from(t)) ^ 0xABCD));
    let h = state.map_or(h, |s| mix(h.rotate_left(32) ^ s));
    (0..VOCAB_SIZE as u64).map(|id| (mix(h ^ mix(id)) % 1000) as f32 * 0.004).collect()
}

/// Makes logits those of another model, at most so far off.
fn add_noise(logits: &mut [f32], noise: f32) {
    let sum: f32 = logits.iter().sum();
    for (id, logit) in logits.iter_mut().enumerate() {
        let h = mix(mix(u64::from(sum.to_bits())) ^ id as u64);
        *logit += noise * (h % 1000) as f32 * 0.001;
    }
}

/// The recurrent state at position 0.
const ZERO_STATE: u64 = 0;
/// What a slot holds that nothing useful was written to.
const NO_STATE: u64 = 0xBAD;

/// The recurrent state after one more token.
fn next_state(state: u64, token: u32) -> u64 {
    mix(state.rotate_left(7) ^ u64::from(token) ^ 0x5EED)
}

pub struct FakeRunner {
    info: RunnerInfo,
    staged: HostBatch,
    /// Per slot: a hash of all tokens that its state has seen.
    pub slots: Vec<u64>,
    /// Per slot: position and token.
    kv: Vec<(u32, u32)>,
    /// What the last step of the model made of each of its tokens, for a model with a drafting layer.
    hidden: Vec<Hidden>,
    /// What the last step of the drafting layer made of its tokens.
    drafted: Vec<Hidden>,
    in_flight: VecDeque<(u64, Result<Sampled>)>,
    last_tokens: Vec<u32>,
    next: u64,
    sampler: Sampler,
    /// Added to the logits, to make another model much like the first: at most so much, by token and history.
    pub noise: f32,
    /// The same for the drafting layer alone.
    pub draft_noise: f32,
    pub n_draft_steps: usize,
    /// Asked before each launch and each finish; `Some` fails it.
    pub fault: Box<dyn FnMut(At) -> Option<Error> + Send>,
    pub n_copies: usize,
    pub n_deferred: usize,
    /// Sequences of steps whose state came from a slot that the step did not write.
    pub n_moved: usize,
}

/// What is known after a token: everything up to it, and the recurrent state.
#[derive(Clone)]
struct Hidden {
    history: Vec<(u32, u32)>,
    state: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Launch,
    Finish,
}

const NOTHING: (u32, u32) = (u32::MAX, u32::MAX);

impl FakeRunner {
    pub fn new(info: RunnerInfo) -> Self {
        Self {
            info,
            staged: HostBatch::new(info.limits, info.cache_shape()),
            slots: vec![NO_STATE; info.cache_shape().n_slots],
            kv: vec![NOTHING; info.cache_tokens()],
            hidden: Vec::new(),
            drafted: Vec::new(),
            in_flight: VecDeque::new(),
            last_tokens: Vec::new(),
            next: 0,
            sampler: Sampler::new(),
            noise: 0.0,
            draft_noise: 0.0,
            n_draft_steps: 0,
            fault: Box::new(|_| None),
            n_copies: 0,
            n_deferred: 0,
            n_moved: 0,
        }
    }

    fn slot(&self, table: &[u32], position: usize) -> usize {
        table[position / self.info.block_size] as usize * self.info.block_size
            + position % self.info.block_size
    }

    /// The recurrent state after each token of a step, written to the slots that the batch names.
    fn advance(&mut self, batch: &Batch, tokens: &[u32]) -> Vec<u64> {
        let mut states = Vec::with_capacity(tokens.len());
        let mut written = Vec::new();
        for (s, state) in batch.seqs.iter().zip(&batch.states) {
            let mut now = state.from.map_or(ZERO_STATE, |slot| self.slots[slot as usize]);
            for &token in &tokens[s.tokens.clone()] {
                now = next_state(now, token);
                states.push(now);
            }
            let writes = &batch.state_writes[state.writes.clone()];
            assert_eq!(writes.last().map(|w| w.n_tokens), Some(s.tokens.len()), "the last state is kept");
            written.extend(writes.iter().map(|w| (w.slot, states[s.tokens.start + w.n_tokens - 1])));
            self.n_moved += usize::from(state.from.is_some_and(|from| writes.iter().all(|w| w.slot != from)));
        }
        written.into_iter().for_each(|(slot, state)| self.slots[slot as usize] = state);
        states
    }

    /// Keeps what a step of the model made of its tokens, and checks that it is told the rows of the step before.
    fn keep_hidden(&mut self, batch: &Batch, states: &[u64]) {
        let mut hidden = Vec::with_capacity(batch.tokens.len());
        for (s, row) in batch.seqs.iter().zip(&batch.previous) {
            let table = &batch.block_tables[s.blocks.clone()];
            let history: Vec<_> =
                (0..s.start + s.tokens.len()).map(|p| self.kv[self.slot(table, p)]).collect();
            // Of a sequence whose step before failed, nothing is left, and nobody looks at it any more.
            if let Some(row) = row.filter(|_| !history.contains(&NOTHING)) {
                assert_eq!(
                    self.hidden[row as usize].history,
                    history[..s.start],
                    "the row of the token before"
                );
            }
            hidden.extend(s.tokens.clone().map(|t| Hidden {
                history: history[..=s.start + t - s.tokens.start].to_vec(),
                state: states.get(t).copied(),
            }));
        }
        self.hidden = hidden;
    }

    /// A step of the drafting layer.
    fn draft(&mut self, step: &Step, from: DraftFrom) -> Sampled {
        assert!(self.in_flight.is_empty(), "drafts are made while no step is under way");
        self.n_draft_steps += 1;
        let (mut drafted, mut sampled) = (Vec::new(), Sampled::default());
        for (s, row) in step.batch.seqs.iter().zip(&step.batch.previous) {
            let rows = if from == DraftFrom::Model { &self.hidden } else { &self.drafted };
            let Hidden { mut history, state } = rows[row.unwrap() as usize].clone();
            assert_eq!(
                (s.tokens.len(), s.n_logits, history.len()),
                (1, 1, s.start),
                "the row of the token before"
            );
            let token = step.batch.tokens[s.tokens.start];
            history.push((s.start as u32, token));
            let state = state.map(|state| next_state(state, token));
            let mut logits = logits_after(history.iter().copied(), state);
            add_noise(&mut logits, self.draft_noise);
            sampled.rows.push(self.sampler.sample(&mut logits, step, drafted.len(), &[]));
            drafted.push(Hidden { history, state });
        }
        self.drafted = drafted;
        sampled
    }

    /// Loses all that a step wrote.
    fn spoil(&mut self, batch: &Batch) {
        for s in &batch.seqs {
            for i in 0..s.tokens.len() {
                let slot = self.slot(&batch.block_tables[s.blocks.clone()], s.start + i);
                self.kv[slot] = NOTHING;
            }
        }
        batch.state_writes.iter().for_each(|w| self.slots[w.slot as usize] = NO_STATE);
    }
}

impl Runner for FakeRunner {
    fn info(&self) -> RunnerInfo {
        self.info
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<()> {
        let size = self.info.block_size;
        for c in copies {
            assert!(copies.iter().all(|d| d.from != c.to), "block {} is read and written", c.to);
            self.kv.copy_within(c.from as usize * size..(c.from as usize + 1) * size, c.to as usize * size);
        }
        self.n_copies += copies.len();
        Ok(())
    }

    fn launch(&mut self, step: &Step) -> Result<Ticket> {
        let batch = &step.batch;
        self.staged.set(batch)?;
        assert_eq!(step.rows.len(), batch.n_logits());
        if let Pass::Draft(from) = step.pass {
            let sampled = self.draft(step, from);
            self.next += 1;
            self.in_flight.push_back((self.next, Ok(sampled)));
            return Ok(Ticket(self.next));
        }
        assert!(self.in_flight.len() < 2, "two steps are in flight at most");
        let mut tokens = batch.tokens.clone();
        for &(at, row) in &batch.deferred {
            tokens[at] = self.last_tokens[row];
        }
        self.n_deferred += batch.deferred.len();
        let fault = (self.fault)(At::Launch);
        for s in &batch.seqs {
            assert!(s.start + s.tokens.len() <= self.info.max_seq_len(), "a position beyond the context");
            let table = &batch.block_tables[s.blocks.clone()];
            for (i, at) in s.tokens.clone().enumerate() {
                let slot = self.slot(table, s.start + i);
                self.kv[slot] = ((s.start + i) as u32, tokens[at]);
            }
        }
        let states = self.advance(batch, &tokens);
        if self.info.drafts {
            assert_eq!(batch.previous.len(), batch.seqs.len());
            self.keep_hidden(batch, &states);
        }
        if let Some(error) = fault {
            // A step that fails leaves nothing useful behind.
            self.spoil(batch);
            return Err(error);
        }
        let mut sampled = Sampled::default();
        for s in &batch.seqs {
            let table = &batch.block_tables[s.blocks.clone()];
            let end = s.start + s.tokens.len();
            for last in end - s.n_logits..end {
                let state = states.get(s.tokens.start + last - s.start).copied();
                let mut logits = logits_after((0..=last).map(|p| self.kv[self.slot(table, p)]), state);
                add_noise(&mut logits, self.noise);
                let row = sampled.rows.len();
                sampled.rows.push(self.sampler.sample(&mut logits, step, row, &self.last_tokens));
            }
        }
        self.last_tokens = sampled.rows.iter().map(|r| r.as_ref().map_or(0, |c| c.token)).collect();
        let result = match (self.fault)(At::Finish) {
            None => Ok(sampled),
            Some(error) => {
                self.spoil(batch);
                Err(error)
            }
        };
        self.next += 1;
        self.in_flight.push_back((self.next, result));
        Ok(Ticket(self.next))
    }

    fn finish(&mut self, ticket: Ticket) -> Result<Sampled> {
        let (number, result) = self.in_flight.pop_front().expect("a step is in flight");
        assert_eq!(ticket.0, number, "steps are finished in order");
        result
    }
}

/// Everything that decides a request's outcome.
#[derive(Clone, Debug)]
pub struct Case {
    pub prompt: Vec<u32>,
    pub max_tokens: usize,
    pub params: SamplingParams,
    pub n: u32,
    pub stop_tokens: Vec<u32>,
    pub ignore_eos: bool,
    pub n_logprobs: Option<usize>,
    pub prompt_logprobs: Option<usize>,
    pub priority: i32,
    pub cache_salt: Option<u64>,
    /// `Some`: only tokens that a [`Parity`] allows.
    pub constraint: Option<u32>,
    pub speculate: Option<bool>,
}

impl Case {
    pub fn greedy(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            max_tokens,
            params: SamplingParams::greedy(),
            n: 1,
            stop_tokens: vec![],
            ignore_eos: false,
            n_logprobs: None,
            prompt_logprobs: None,
            priority: 0,
            cache_salt: None,
            constraint: None,
            speculate: None,
        }
    }

    /// Any request that fits `limit` positions, its prompt beginning like one of `bases`.
    pub fn random(random: &mut Random, limit: usize, bases: &[Vec<u32>]) -> Self {
        let base = &bases[random.below(bases.len())];
        let mut prompt = base[..random.below(base.len() + 1)].to_vec();
        let tail = random.below(6) + usize::from(prompt.is_empty());
        prompt.extend(random.tokens(tail));
        prompt.truncate(limit);
        let params = match random.below(3) {
            0 => SamplingParams::greedy(),
            _ => SamplingParams {
                temperature: [0.3, 1.0, 1.7][random.below(3)],
                top_k: [0, 5, 20][random.below(3)],
                top_p: [1.0, 0.9][random.below(2)],
                min_p: [0.0, 0.1][random.below(2)],
                repetition_penalty: [1.0, 1.2][random.below(2)],
                frequency_penalty: [0.0, 0.5][random.below(2)],
                presence_penalty: [0.0, 0.3][random.below(2)],
                penalty_window: [None, Some(0), Some(3), Some(12)][random.below(4)],
                logit_bias: vec![(3, -1.0)],
                seed: Some(random.next()),
            },
        };
        Self {
            max_tokens: [0, 1, 3, 8, 20, 1000][random.below(6)],
            prompt,
            params,
            n: [1, 1, 1, 2, 3][random.below(5)],
            stop_tokens: if random.once_in(2) { random.tokens(2) } else { vec![] },
            ignore_eos: random.once_in(8),
            n_logprobs: [None, None, None, Some(2)][random.below(4)],
            prompt_logprobs: [None, None, None, None, Some(1)][random.below(5)],
            priority: [0, 0, 0, 1, -1, 5][random.below(6)],
            cache_salt: [None, None, Some(1), Some(2)][random.below(4)],
            constraint: [None, None, None, Some(0)][random.below(4)],
            speculate: [None, Some(true), Some(false)][random.below(3)],
        }
    }

    pub fn request(&self) -> Request {
        let mut request = Request::new(self.prompt.clone(), self.max_tokens);
        request.sampling = self.params.clone();
        request.n = self.n;
        request.stop_tokens = self.stop_tokens.clone();
        request.ignore_eos = self.ignore_eos;
        request.n_logprobs = self.n_logprobs;
        request.prompt_logprobs = self.prompt_logprobs;
        request.priority = self.priority;
        request.cache_salt = self.cache_salt;
        request.speculate = self.speculate;
        request.constraint = self.constraint.map(|state| Box::new(Parity::new(state)) as Box<dyn Constraint>);
        request
    }
}

/// Forbids a third of the tokens, another third after each token.
#[derive(Clone)]
pub struct Parity {
    state: u32,
    mask: TokenMask,
}

impl Parity {
    pub fn new(state: u32) -> Self {
        Self { state, mask: TokenMask::none(VOCAB_SIZE) }
    }
}

impl Constraint for Parity {
    fn allowed(&mut self) -> std::result::Result<&TokenMask, String> {
        self.mask = TokenMask::none(VOCAB_SIZE);
        let state = self.state;
        (0..VOCAB_SIZE as u32).filter(|t| !(t + state).is_multiple_of(3)).for_each(|t| self.mask.allow(t));
        Ok(&self.mask)
    }

    fn accept(&mut self, token: u32) -> std::result::Result<(), String> {
        if (token + self.state).is_multiple_of(3) {
            return Err(format!("token {token} is not allowed"));
        }
        self.state = (self.state * 7 + token + 1) % 97;
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// What one choice of a request should yield.
#[derive(Clone, Debug, PartialEq)]
pub struct Solo {
    pub tokens: Vec<u32>,
    /// Per token, if asked for.
    pub logprobs: Vec<Option<f32>>,
    pub reason: FinishReason,
}

/// Runs the model without recurrent layers over a request on its own: no scheduler, no cache. `limit`: the longest sequence.
pub fn solo(case: &Case, choice: u32, limit: usize) -> Solo {
    solo_of(false, case, choice, limit)
}

/// Runs the model, with recurrent layers or without, over a request on its own.
pub fn solo_of(recurrent: bool, case: &Case, choice: u32, limit: usize) -> Solo {
    let mut tokens = case.prompt.clone();
    let mut logprobs = Vec::new();
    let mut constraint = case.constraint.map(Parity::new);
    let mut sampler = Sampler::new();
    let n_prompt = case.prompt.len();
    let done = |tokens: &[u32], logprobs: &[Option<f32>], reason| Solo {
        tokens: tokens[n_prompt..].to_vec(),
        logprobs: logprobs.to_vec(),
        reason,
    };
    loop {
        if tokens.len() - n_prompt >= case.max_tokens || tokens.len() >= limit {
            return done(&tokens, &logprobs, FinishReason::Length);
        }
        let first = tokens.len().saturating_sub(case.params.penalty_window.unwrap_or(usize::MAX));
        let split = n_prompt.max(first) - first;
        let row = Row {
            given: None,
            params: Arc::new(case.params.clone()),
            uniform: uniform(case.params.seed.unwrap_or(0), choice, tokens.len()),
            prompt: 0..split,
            generated: split..tokens.len() - first,
            unseen: None,
            mask: constraint.as_ref().map(|_| 0..VOCAB_SIZE.div_ceil(32)),
            n_logprobs: case.n_logprobs,
        };
        let masks = constraint.as_mut().map_or(vec![], |c| c.allowed().unwrap().words().to_vec());
        let step = Step { rows: vec![row], history: tokens[first..].to_vec(), masks, ..Step::default() };
        let mut logits = logits_of(recurrent, &tokens);
        let chosen = sampler.sample(&mut logits, &step, 0, &[]).unwrap();
        if !case.ignore_eos && case.stop_tokens.contains(&chosen.token) {
            return done(&tokens, &logprobs, FinishReason::Stop { token: Some(chosen.token) });
        }
        tokens.push(chosen.token);
        logprobs.push(chosen.logprob);
        if let Some(c) = &mut constraint {
            c.accept(chosen.token).unwrap();
        }
    }
}

/// The logits of the model without recurrent layers after a text.
pub fn solo_logits(tokens: &[u32]) -> Vec<f32> {
    logits_of(false, tokens)
}

/// The model's logits after a text.
pub fn logits_of(recurrent: bool, tokens: &[u32]) -> Vec<f32> {
    let state = recurrent.then(|| tokens.iter().fold(ZERO_STATE, |state, &t| next_state(state, t)));
    logits_after(tokens.iter().enumerate().map(|(p, &t)| (p as u32, t)), state)
}
