//! Decides what each step computes: plain data, no device, clock, thread or channel.
//!
//! [`Scheduler::schedule`] fills a [`Step`], [`Scheduler::commit`] takes its outcome; a second step may be scheduled before the first
//! is committed. Its policy:
//! - Sequences have a turn, their arrival less what their priority is worth, which never changes. The first in turn gets whatever it
//!   needs, so nobody starves and a request that fits alone never fails.
//! - Running sequences that only decode go first, then prompts in chunks from what is left of the step's tokens. A prompt that needs
//!   more than that leaves half of it to those behind it.
//! - When blocks run out, a running sequence takes those of the last in turn, or of one whose reader stalls. The loser waits and is
//!   recomputed later, mostly from the prefix cache.

use crate::block_pool::BlockPool;
use crate::prefix_cache::{PrefixCache, ROOT};
use crate::request::{Event, FinishReason, Request};
use crate::runner::{BlockCopy, Choice, Row, RunnerInfo, Sampled, Step};
use crate::sampler::uniform;
use crate::sequence::{SeqId, Sequence, Turn};
use crate::{EngineConfig, Error, Result};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// All sequences and who computes what next.
pub struct Scheduler {
    info: RunnerInfo,
    max_seqs: usize,
    step_tokens: usize,
    prefix_cache: bool,
    priority_step: Duration,
    pool: BlockPool,
    cache: PrefixCache,
    seqs: HashMap<SeqId, Sequence>,
    running: BTreeSet<Turn>,
    waiting: BTreeSet<Turn>,
    /// Steps that are scheduled and not committed, the oldest first.
    in_flight: VecDeque<Vec<LaunchedSeq>>,
    plan: Vec<Planned>,
    budget: Budget,
    /// The first in turn of those who lost their blocks to the step being scheduled.
    first_victim: Option<Turn>,
    /// Copied blocks, kept from being handed out again before the step's copies are done.
    copied: Vec<u32>,
    counters: SchedulerCounters,
}

/// What the scheduler has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerCounters {
    /// Steps scheduled.
    pub steps: u64,
    /// Tokens computed, those computed again included.
    pub computed_tokens: u64,
    /// Sequences whose blocks were taken before their end.
    pub preemptions: u64,
    /// Cached blocks that were given up for new contents.
    pub evictions: u64,
    /// Tokens of prompts found in the prefix cache, when they first ran.
    pub cache_hit_tokens: u64,
    /// Tokens of prompts not found there.
    pub cache_miss_tokens: u64,
}

/// A sequence's part of the step being scheduled.
struct Planned {
    id: SeqId,
    n_tokens: usize,
    n_rows: usize,
    n_entries: usize,
    copy: Option<BlockCopy>,
}

/// What the step being scheduled can still hold.
#[derive(Default)]
struct Budget {
    tokens: usize,
    seqs: usize,
    rows: usize,
    entries: usize,
}

/// A sequence's part of a step in flight.
struct LaunchedSeq {
    id: SeqId,
    epoch: u32,
    /// Positions computed after the step.
    end: usize,
    /// Positions whose next token is given and gets a log-probability.
    scored: Range<usize>,
    /// Whether the last row yields a token.
    samples: bool,
}

impl Scheduler {
    /// An empty one for a runner of these sizes.
    pub fn new(config: &EngineConfig, info: RunnerInfo) -> Self {
        let limits = info.limits;
        assert!(info.n_blocks > 0 && info.block_size > 0, "a cache without room: {info:?}");
        let longest = info.max_seq_len().div_ceil(info.block_size);
        assert!(
            limits.n_blocks >= longest,
            "block tables of {} entries cannot hold {longest}",
            limits.n_blocks
        );
        let step_tokens = config.step_tokens.min(limits.n_tokens).max(1);
        // Not more sequences than tokens or rows of a step, so that each running one can advance in every step.
        let max_seqs = config.max_seqs.min(limits.n_seqs).min(limits.n_logits).min(step_tokens).max(1);
        Self {
            info,
            max_seqs,
            step_tokens,
            prefix_cache: config.prefix_cache,
            priority_step: config.priority_step,
            pool: BlockPool::new(info.n_blocks),
            cache: PrefixCache::new(info.n_blocks, info.block_size),
            seqs: HashMap::new(),
            running: BTreeSet::new(),
            waiting: BTreeSet::new(),
            in_flight: VecDeque::new(),
            plan: Vec::new(),
            budget: Budget::default(),
            first_victim: None,
            copied: Vec::new(),
            counters: SchedulerCounters::default(),
        }
    }

    /// Takes in a request that [`Request::validate`] accepts, under a number never used before. `arrival` and all other times count
    /// from the same moment. `seed` is used if the request has none. Events that are due at once are appended to `out`.
    ///
    /// Errors: [`Error::Constraint`]; nothing of the request stays.
    pub fn add(
        &mut self,
        number: u64,
        mut request: Request,
        arrival: Duration,
        seed: u64,
        out: &mut Vec<(SeqId, Event)>,
    ) -> Result<()> {
        let mask = match &mut request.constraint {
            Some(c) => {
                let words = c.allowed().map_err(|message| Error::Constraint { message })?.words().to_vec();
                let (n, expected) = (words.len(), self.info.vocab_size.div_ceil(32));
                if n != expected {
                    let message = format!("its masks have {n} words instead of {expected}");
                    return Err(Error::Constraint { message });
                }
                words
            }
            None => Vec::new(),
        };
        let priority_us = i64::from(request.priority).saturating_mul(self.priority_step.as_micros() as i64);
        let due_us = (arrival.as_micros() as i64).saturating_sub(priority_us);
        let stop_tokens: Arc<[u32]> = if request.ignore_eos { [].into() } else { request.stop_tokens.into() };
        let params = Arc::new(request.sampling);
        let n_prompt = request.prompt.len();
        let forks = (1..request.n).map(|_| request.constraint.as_ref().map(|c| c.fork())).collect::<Vec<_>>();
        for (choice, constraint) in std::iter::once(request.constraint).chain(forks).enumerate() {
            let id = SeqId { request: number, choice: choice as u32 };
            let prompt_logprobs = request.prompt_logprobs.filter(|_| choice == 0);
            let seq = Sequence {
                turn: Turn { due_us, id },
                tokens: request.prompt.clone(),
                n_prompt,
                n_unseen: 0,
                unseen_row: 0,
                n_launched: 0,
                n_computed: 0,
                n_in_flight: 0,
                epoch: 0,
                blocks: Vec::new(),
                n_offered: 0,
                node: Some(ROOT),
                running: false,
                paused: false,
                prefilled: false,
                n_scored: if prompt_logprobs.is_some() { 0 } else { n_prompt },
                n_cached: 0,
                max_tokens: request.max_tokens,
                seed: params.seed.unwrap_or(seed),
                params: params.clone(),
                stop_tokens: stop_tokens.clone(),
                n_logprobs: request.n_logprobs,
                prompt_logprobs,
                salt: request.cache_salt,
                constraint,
                mask: mask.clone(),
                arrival,
                first_step: None,
                first_token: None,
            };
            if prompt_logprobs.is_some() {
                let event = Event::PromptToken { id: seq.tokens[0], logprob: None, top_logprobs: Vec::new() };
                out.push((id, event));
            }
            let nothing_to_score = prompt_logprobs.is_none() || n_prompt == 1;
            if request.max_tokens == 0 && nothing_to_score {
                out.push((id, seq.finished(FinishReason::Length, arrival)));
            } else {
                self.waiting.insert(seq.turn);
                self.seqs.insert(id, seq);
            }
        }
        Ok(())
    }

    /// Ends a sequence; its blocks are free at once. `None` if it has ended already.
    pub fn cancel(&mut self, id: SeqId, now: Duration) -> Option<Event> {
        self.remove(id).map(|seq| seq.finished(FinishReason::Cancelled, now))
    }

    /// Keeps a sequence out of steps, or lets it in again.
    pub fn set_paused(&mut self, id: SeqId, paused: bool) {
        if let Some(seq) = self.seqs.get_mut(&id) {
            seq.paused = paused;
        }
    }

    /// Whether the next step would gain from committing the one in flight first, because a constraint has to see its token.
    pub fn needs_commit(&self) -> bool {
        let waits = |seq: &Sequence| seq.constraint.is_some() && seq.n_unseen > 0 && !seq.paused;
        self.running.iter().any(|turn| waits(&self.seqs[&turn.id]))
    }

    /// Fills `step` with the next step's work. Returns false, with an empty step, if there is nothing to compute now.
    pub fn schedule(&mut self, now: Duration, step: &mut Step) -> bool {
        step.clear();
        let limits = self.info.limits;
        self.budget = Budget {
            tokens: self.step_tokens,
            seqs: self.max_seqs,
            rows: limits.n_logits,
            entries: limits.n_blocks,
        };
        self.first_victim = None;
        self.plan_decodes();
        self.plan_prompts(now);
        self.extend_chunks();
        if !self.plan.is_empty() {
            self.counters.steps += 1;
            self.build(step);
        }
        while let Some(block) = self.copied.pop() {
            self.pool.release(block);
        }
        !step.batch.seqs.is_empty()
    }

    /// Takes the outcome of the oldest step in flight; appends what it means for its sequences to `out`.
    pub fn commit(&mut self, sampled: &Sampled, now: Duration, out: &mut Vec<(SeqId, Event)>) {
        let launched = self.in_flight.pop_front().expect("a step is in flight");
        let mut row = 0;
        for part in launched {
            let rows = row..row + part.scored.len() + usize::from(part.samples);
            row = rows.end;
            // A sequence that ended meanwhile has no use for the rest of what was computed for it.
            if let Some(seq) = self.seqs.get_mut(&part.id) {
                seq.n_in_flight -= 1;
                if seq.epoch == part.epoch {
                    seq.n_computed = part.end;
                    seq.prefilled |= part.end >= seq.n_prompt;
                }
                if let Some(end) = self.take_rows(&part, &sampled.rows[rows], now, out) {
                    self.offer_blocks(part.id);
                    self.remove(part.id);
                    out.push((part.id, end));
                } else {
                    self.offer_blocks(part.id);
                }
            }
        }
        assert_eq!(row, sampled.rows.len(), "one outcome per row of logits");
    }

    /// Ends all sequences of the oldest step in flight with an error.
    pub fn fail_oldest(&mut self, error: &Error, out: &mut Vec<(SeqId, Event)>) {
        let launched = self.in_flight.pop_front().expect("a step is in flight");
        self.fail(launched, error, out);
    }

    /// Ends all sequences of the step scheduled last with an error.
    pub fn fail_newest(&mut self, error: &Error, out: &mut Vec<(SeqId, Event)>) {
        let launched = self.in_flight.pop_back().expect("a step is in flight");
        self.fail(launched, error, out);
    }

    /// Sequences in steps.
    pub fn n_running(&self) -> usize {
        self.running.len()
    }

    /// Sequences that wait for their first step, or for another one after they lost their blocks.
    pub fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a sequence has not ended.
    pub fn contains(&self, id: SeqId) -> bool {
        self.seqs.contains_key(&id)
    }

    /// Blocks in use, idle in the prefix cache, and free; together all.
    pub fn blocks(&self) -> (usize, usize, usize) {
        (self.pool.n_in_use(), self.pool.n_idle(), self.pool.n_free())
    }

    /// What it has done so far.
    pub fn counters(&self) -> SchedulerCounters {
        self.counters
    }

    /// Plans the running sequences that have one token to compute.
    fn plan_decodes(&mut self) {
        let order: Vec<Turn> = self.running.iter().copied().collect();
        for turn in order {
            if self.is_ready(turn) && self.seqs[&turn.id].n_remaining() == 1 {
                self.plan_seq(turn.id, 1);
            }
        }
    }

    /// Plans the running sequences that have more to compute, and lets waiting ones run, in turn. A waiting one that finds no room
    /// keeps those behind it waiting too.
    fn plan_prompts(&mut self, now: Duration) {
        let long = |turn: &&Turn| self.seqs[&turn.id].n_remaining() > 1;
        let running: Vec<Turn> = self.running.iter().filter(long).copied().collect();
        let mut running = running.into_iter().peekable();
        let mut admitting = true;
        let mut after: Option<Turn> = None;
        loop {
            let waiting = match after {
                None => self.waiting.first(),
                Some(turn) => self.waiting.range((Excluded(turn), Unbounded)).next(),
            };
            let waiting = waiting.copied().filter(|_| admitting);
            let next_runs = match (running.peek(), waiting) {
                (None, None) => break,
                (Some(r), Some(w)) => *r < w,
                (r, _) => r.is_some(),
            };
            if next_runs {
                let turn = running.next().expect("it was peeked at");
                if self.is_ready(turn) {
                    let others = running.peek().is_some() || !self.waiting.is_empty();
                    self.plan_seq(turn.id, self.share(self.seqs[&turn.id].n_remaining(), others));
                }
            } else {
                let turn = waiting.expect("one of both is next");
                after = Some(turn);
                let seq = &self.seqs[&turn.id];
                if !seq.paused && seq.n_in_flight == 0 && !self.waits_for_sibling(seq) {
                    admitting = self.admit(turn, now);
                }
            }
        }
    }

    fn is_ready(&self, turn: Turn) -> bool {
        let seq = &self.seqs[&turn.id];
        seq.running && seq.is_ready(self.info.max_seq_len())
    }

    /// How many of `remaining` tokens a prompt may bring.
    fn share(&self, remaining: usize, others: bool) -> usize {
        match remaining > self.budget.tokens && others {
            true => self.budget.tokens.div_ceil(2),
            false => remaining,
        }
    }

    /// Lets a waiting sequence run if there is room for all that it has to compute, and plans the beginning.
    fn admit(&mut self, turn: Turn, now: Duration) -> bool {
        // Whoever lost its blocks in this step comes before those behind it, but can come back only in a later step.
        if self.first_victim.is_some_and(|victim| victim <= turn) {
            return false;
        }
        let seq = &self.seqs[&turn.id];
        let (blocks, n_shared, node) = self.find_shared(seq);
        // A shared block that is not full has to be copied before the sequence writes to it.
        let full_blocks = n_shared / self.info.block_size;
        let wanted = (seq.n_wanted() + 1).min(self.info.max_seq_len()).div_ceil(self.info.block_size);
        blocks.iter().for_each(|&b| self.pool.retain(b));
        if !self.make_room(turn, &blocks, wanted - full_blocks) {
            blocks.iter().rev().for_each(|&b| self.pool.release(b));
            return false;
        }
        let seq = self.seqs.get_mut(&turn.id).expect("waiting sequences exist");
        (seq.n_launched, seq.n_computed) = (n_shared, n_shared);
        (seq.n_offered, seq.node) = if node.is_some() { (full_blocks, node) } else { (0, Some(ROOT)) };
        seq.blocks = blocks;
        seq.running = true;
        if seq.first_step.is_none() {
            seq.first_step = Some(now);
            seq.n_cached = n_shared;
            self.counters.cache_hit_tokens += n_shared as u64;
            self.counters.cache_miss_tokens += (seq.n_prompt - n_shared) as u64;
        }
        let remaining = seq.n_remaining();
        self.waiting.remove(&turn);
        self.running.insert(turn);
        self.plan_seq(turn.id, self.share(remaining, !self.waiting.is_empty()));
        true
    }

    /// Further choices of a prompt begin when the first one has computed it.
    fn waits_for_sibling(&self, seq: &Sequence) -> bool {
        let first = SeqId { choice: 0, ..seq.turn.id };
        seq.turn.id.choice > 0 && self.seqs.get(&first).is_some_and(|s| !s.prefilled)
    }

    /// Blocks that hold the beginning of a waiting sequence, how many positions of it they hold, and the node of the last one if they
    /// are from the prefix cache. At least one position is left to compute.
    fn find_shared(&self, seq: &Sequence) -> (Vec<u32>, usize, Option<u64>) {
        let block_size = self.info.block_size;
        let first = SeqId { choice: 0, ..seq.turn.id };
        let n = seq.n_prompt - 1;
        match self.seqs.get(&first) {
            Some(sibling) if seq.turn.id.choice > 0 && sibling.n_computed >= n && seq.n_generated() == 0 => {
                return (sibling.blocks[..n.div_ceil(block_size)].to_vec(), n, None);
            }
            _ => {}
        }
        let mut blocks = Vec::new();
        let mut node = ROOT;
        let scores = seq.n_scored + 1 < seq.n_prompt;
        if self.prefix_cache && !scores {
            let n = (seq.n_wanted() - 1) / block_size * block_size;
            node = self.cache.lookup(&mut blocks, &seq.tokens[..n], seq.salt);
        }
        let n = blocks.len() * block_size;
        (blocks, n, Some(node))
    }

    /// Makes room for a waiting sequence that shares `blocks`: a place among the running ones and in the step, and `n_new` blocks
    /// available. Preempts those behind it in turn if, and only if, that is enough.
    fn make_room(&mut self, turn: Turn, blocks: &[u32], n_new: usize) -> bool {
        if self.has_room(n_new) {
            return true;
        }
        let stays = |id: &SeqId| {
            let seq = &self.seqs[id];
            seq.turn < turn && !seq.paused
        };
        let mut held: Vec<u32> = blocks.to_vec();
        let mut n_stay = 0;
        for t in self.running.iter().filter(|t| stays(&t.id)) {
            held.extend(&self.seqs[&t.id].blocks);
            n_stay += 1;
        }
        held.sort_unstable();
        held.dedup();
        let planned = || self.plan.iter().filter(|p| stays(&p.id));
        let enough = self.pool.len() - held.len() >= n_new
            && n_stay < self.max_seqs
            && planned().map(|p| p.n_tokens).sum::<usize>() < self.step_tokens
            && planned().map(|p| p.n_rows).sum::<usize>() < self.info.limits.n_logits;
        while enough && !self.has_room(n_new) {
            if !self.preempt_for(turn) {
                return false;
            }
        }
        enough
    }

    fn has_room(&self, n_new: usize) -> bool {
        let b = &self.budget;
        self.pool.n_available() >= n_new
            && self.running.len() < self.max_seqs
            && [b.tokens, b.seqs, b.rows].iter().all(|&n| n > 0)
    }

    /// Puts up to `want` tokens of a running sequence into the plan, taking blocks from those behind it if need be.
    fn plan_seq(&mut self, id: SeqId, want: usize) -> bool {
        let block_size = self.info.block_size;
        let (turn, start, n_blocks, copies, mut n_tokens) = {
            let seq = &self.seqs[&id];
            let start = seq.n_launched;
            let copies =
                !start.is_multiple_of(block_size) && self.pool.is_shared(seq.blocks[start / block_size]);
            let n = self.within_budget(seq, want.min(seq.n_remaining()).min(self.budget.tokens));
            (seq.turn, start, seq.blocks.len(), copies, n)
        };
        if n_tokens == 0 || self.budget.seqs == 0 {
            return false;
        }
        loop {
            let available = self.pool.n_available();
            let room = match available.checked_sub(usize::from(copies)) {
                Some(new) => (n_blocks + new) * block_size - start,
                None => 0,
            };
            if room > 0 {
                n_tokens = n_tokens.min(room);
                break;
            }
            if !self.preempt_for(turn) {
                return false;
            }
        }
        let copy = copies.then(|| {
            let to = self.allocate();
            let seq = self.seqs.get_mut(&id).expect("planned sequences exist");
            let from = std::mem::replace(&mut seq.blocks[start / block_size], to);
            self.copied.push(from);
            BlockCopy { to, from }
        });
        self.plan.push(Planned { id, n_tokens: 0, n_rows: 0, n_entries: 0, copy });
        self.budget.seqs -= 1;
        self.grow(self.plan.len() - 1, n_tokens);
        true
    }

    /// Spends what is left of the step's tokens on prompts that left some to others.
    fn extend_chunks(&mut self) {
        for i in 0..self.plan.len() {
            let (id, old) = (self.plan[i].id, self.plan[i].n_tokens);
            let seq = &self.seqs[&id];
            let room = (seq.blocks.len() + self.pool.n_available()) * self.info.block_size - seq.n_launched;
            let want = (old + self.budget.tokens).min(seq.n_remaining()).min(room);
            if want > old {
                self.refund(i);
                let seq = &self.seqs[&id];
                let n = self.within_budget(seq, want).max(old);
                self.grow(i, n);
            }
        }
    }

    /// The most of `n` tokens whose rows of logits and block table fit the budget.
    fn within_budget(&self, seq: &Sequence, n: usize) -> usize {
        let n = n.min((self.budget.entries * self.info.block_size).saturating_sub(seq.n_launched));
        let rows = self.n_rows(seq, n);
        // Rows are those of the last tokens, so each token less is a row less.
        n - rows.saturating_sub(self.budget.rows).min(n)
    }

    fn n_rows(&self, seq: &Sequence, n_tokens: usize) -> usize {
        let (scored, samples) = rows_of(seq, n_tokens);
        scored.len() + usize::from(samples)
    }

    /// Sets the size of a refunded or new entry of the plan: allocates its blocks and takes its share of the budget.
    fn grow(&mut self, entry: usize, n_tokens: usize) {
        let id = self.plan[entry].id;
        let n_entries = (self.seqs[&id].n_launched + n_tokens).div_ceil(self.info.block_size);
        while self.seqs[&id].blocks.len() < n_entries {
            let block = self.allocate();
            self.seqs.get_mut(&id).expect("planned sequences exist").blocks.push(block);
        }
        let n_rows = self.n_rows(&self.seqs[&id], n_tokens);
        self.budget.tokens -= n_tokens;
        self.budget.rows -= n_rows;
        self.budget.entries -= n_entries;
        let entry = &mut self.plan[entry];
        (entry.n_tokens, entry.n_rows, entry.n_entries) = (n_tokens, n_rows, n_entries);
    }

    fn refund(&mut self, entry: usize) {
        let entry = &self.plan[entry];
        self.budget.tokens += entry.n_tokens;
        self.budget.rows += entry.n_rows;
        self.budget.entries += entry.n_entries;
    }

    fn allocate(&mut self) -> u32 {
        let new = self.pool.allocate().expect("room was made before");
        if new.evicted {
            self.cache.remove(new.block);
            self.counters.evictions += 1;
        }
        new.block
    }

    /// Takes the blocks of a stalled sequence or of the last one in turn, if it is behind `turn`.
    fn preempt_for(&mut self, turn: Turn) -> bool {
        let stalled = self.running.iter().rev().find(|t| self.seqs[&t.id].paused && **t != turn);
        let Some(&victim) = stalled.or(self.running.last().filter(|t| **t > turn)) else { return false };
        self.counters.preemptions += 1;
        if !self.seqs[&victim.id].paused {
            self.first_victim = Some(self.first_victim.map_or(victim, |first| first.min(victim)));
        }
        if let Some(i) = self.plan.iter().position(|p| p.id == victim.id) {
            self.refund(i);
            self.budget.seqs += 1;
            self.plan.remove(i);
        }
        self.running.remove(&victim);
        self.waiting.insert(victim);
        let seq = self.seqs.get_mut(&victim.id).expect("running sequences exist");
        seq.running = false;
        let blocks = seq.reset();
        release(&mut self.pool, &blocks);
        true
    }

    /// Writes the plan into the step and notes it as in flight.
    fn build(&mut self, step: &mut Step) {
        let mut launched = Vec::with_capacity(self.plan.len());
        for planned in self.plan.drain(..) {
            let seq = self.seqs.get_mut(&planned.id).expect("planned sequences exist");
            let (start, end) = (seq.n_launched, seq.n_launched + planned.n_tokens);
            let (scored, samples) = rows_of(seq, planned.n_tokens);
            let table = &seq.blocks[..end.div_ceil(self.info.block_size)];
            match start < seq.tokens.len() {
                true => step.batch.push(&seq.tokens[start..end], start, table, planned.n_rows),
                false => {
                    assert_eq!((start, end), (seq.tokens.len(), seq.tokens.len() + 1), "one token is unseen");
                    step.batch.deferred.push((step.batch.tokens.len(), seq.unseen_row));
                    step.batch.push(&[0], start, table, planned.n_rows);
                }
            }
            step.copies.extend(planned.copy);
            for position in scored.clone() {
                step.rows.push(score_row(seq, position));
            }
            if samples {
                let row = sample_row(seq, step);
                step.rows.push(row);
                seq.n_unseen += 1;
                seq.unseen_row = step.rows.len() - 1;
            }
            seq.n_launched = end;
            seq.n_in_flight += 1;
            self.counters.computed_tokens += planned.n_tokens as u64;
            launched.push(LaunchedSeq { id: planned.id, epoch: seq.epoch, end, scored, samples });
        }
        self.in_flight.push_back(launched);
    }

    /// Takes the outcomes of a sequence's rows. Returns its last event if it ends.
    fn take_rows(
        &mut self,
        part: &LaunchedSeq,
        rows: &[std::result::Result<Choice, crate::SampleError>],
        now: Duration,
        out: &mut Vec<(SeqId, Event)>,
    ) -> Option<Event> {
        let seq = self.seqs.get_mut(&part.id).expect("checked by the caller");
        for (row, position) in rows.iter().zip(part.scored.clone()) {
            match row {
                Ok(c) => {
                    let (id, logprob, top_logprobs) = (c.token, c.logprob, c.top_logprobs.clone());
                    out.push((part.id, Event::PromptToken { id, logprob, top_logprobs }));
                    seq.n_scored = position + 1;
                }
                Err(e) => return Some(Event::Error(Error::Sample(*e))),
            }
        }
        if !part.samples {
            let done = seq.max_tokens == 0 && seq.n_scored + 1 >= seq.n_prompt;
            return done.then(|| seq.finished(FinishReason::Length, now));
        }
        seq.n_unseen -= 1;
        let choice = match &rows[rows.len() - 1] {
            Ok(choice) => choice,
            Err(e) => return Some(Event::Error(Error::Sample(*e))),
        };
        seq.first_token.get_or_insert(now);
        let id = choice.token;
        if seq.stop_tokens.contains(&id) {
            return Some(seq.finished(FinishReason::Stop { token: Some(id) }, now));
        }
        seq.tokens.push(id);
        let (logprob, top_logprobs) = (choice.logprob, choice.top_logprobs.clone());
        out.push((part.id, Event::Token { choice: part.id.choice, id, logprob, top_logprobs }));
        let n_generated = seq.tokens.len() - seq.n_prompt;
        if n_generated >= seq.max_tokens || seq.tokens.len() > self.info.max_seq_len() {
            return Some(seq.finished(FinishReason::Length, now));
        }
        if let Some(constraint) = &mut seq.constraint {
            let next = constraint.accept(id).and_then(|()| constraint.allowed());
            match next {
                Ok(mask) => seq.mask.copy_from_slice(mask.words()),
                Err(message) => return Some(Event::Error(Error::Constraint { message })),
            }
        }
        None
    }

    /// Offers a sequence's full blocks to the prefix cache, as far as they are known to be computed.
    fn offer_blocks(&mut self, id: SeqId) {
        if !self.prefix_cache {
            return;
        }
        let block_size = self.info.block_size;
        let seq = self.seqs.get_mut(&id).expect("checked by the caller");
        while let Some(parent) = seq.node {
            let tokens = seq.n_offered * block_size..(seq.n_offered + 1) * block_size;
            if tokens.end > seq.n_computed {
                break;
            }
            let block = seq.blocks[seq.n_offered];
            let inserted = self.cache.insert(block, &seq.tokens[tokens], parent, seq.salt);
            if inserted.is_some_and(|i| i.listed) {
                self.pool.set_cached(block);
            }
            seq.node = inserted.map(|i| i.node);
            seq.n_offered += 1;
        }
    }

    fn fail(&mut self, launched: Vec<LaunchedSeq>, error: &Error, out: &mut Vec<(SeqId, Event)>) {
        for part in launched {
            if self.remove(part.id).is_some() {
                out.push((part.id, Event::Error(error.clone())));
            }
        }
    }

    fn remove(&mut self, id: SeqId) -> Option<Sequence> {
        let mut seq = self.seqs.remove(&id)?;
        match seq.running {
            true => self.running.remove(&seq.turn),
            false => self.waiting.remove(&seq.turn),
        };
        // Steps in flight may still write to these blocks, but before any step that gets them next.
        let blocks = std::mem::take(&mut seq.blocks);
        release(&mut self.pool, &blocks);
        Some(seq)
    }

    /// Says what is wrong if the books do not balance. Takes time in proportion to the cache; for tests.
    pub fn check(&self) -> std::result::Result<(), String> {
        let block_size = self.info.block_size;
        let mut refs = vec![0; self.pool.len()];
        for (id, seq) in &self.seqs {
            seq.blocks.iter().for_each(|&b| refs[b as usize] += 1);
            if seq.running != self.running.contains(&seq.turn)
                || seq.running == self.waiting.contains(&seq.turn)
            {
                return Err(format!("{id:?} is listed wrongly: running {}", seq.running));
            }
            if !seq.running && !seq.blocks.is_empty() {
                return Err(format!("{id:?} waits and holds {} blocks", seq.blocks.len()));
            }
            if seq.n_computed > seq.n_launched || seq.n_launched > seq.blocks.len() * block_size {
                let (c, l, b) = (seq.n_computed, seq.n_launched, seq.blocks.len());
                return Err(format!("{id:?} has computed {c} of {l} positions in {b} blocks"));
            }
            for (i, &block) in seq.blocks.iter().enumerate().take(seq.n_computed / block_size) {
                let tokens = &seq.tokens[i * block_size..(i + 1) * block_size];
                if self.cache.contents(block).is_some_and(|cached| cached != tokens) {
                    return Err(format!("{id:?} has {tokens:?} in block {block}, unlike the cache"));
                }
            }
        }
        if self.running.len() + self.waiting.len() != self.seqs.len() {
            return Err(format!("{} sequences, {} running", self.seqs.len(), self.running.len()));
        }
        let (in_use, idle, free) = self.blocks();
        if in_use + idle + free != self.pool.len() {
            return Err(format!("{in_use} + {idle} + {free} blocks are not all"));
        }
        if self.cache.len() < idle {
            return Err(format!("{idle} blocks are idle but {} cached", self.cache.len()));
        }
        self.pool.check(&refs)
    }
}

/// Children before parents, so that the prefix cache gives up the end of a text before its beginning.
fn release(pool: &mut BlockPool, blocks: &[u32]) {
    blocks.iter().rev().for_each(|&b| pool.release(b));
}

/// What the next `n_tokens` of a sequence yield: the positions to score, and whether the last one is continued.
fn rows_of(seq: &Sequence, n_tokens: usize) -> (Range<usize>, bool) {
    let (start, end) = (seq.n_launched, seq.n_launched + n_tokens);
    let last = end.min(seq.n_prompt - 1);
    let first = start.max(seq.n_scored).min(last);
    (first..last, n_tokens > 0 && seq.max_tokens > 0 && end == seq.n_wanted())
}

fn score_row(seq: &Sequence, position: usize) -> Row {
    Row {
        given: Some(seq.tokens[position + 1]),
        params: seq.params.clone(),
        uniform: 0.0,
        prompt: 0..0,
        generated: 0..0,
        unseen: None,
        mask: None,
        n_logprobs: seq.prompt_logprobs,
    }
}

/// The row after all tokens of the sequence, with what it needs copied into the step.
fn sample_row(seq: &Sequence, step: &mut Step) -> Row {
    let position = seq.n_wanted();
    let at = step.history.len();
    let mut unseen = (seq.n_unseen > 0).then_some(seq.unseen_row);
    let mut n_prompt = 0;
    if seq.params.has_penalties() {
        let window = seq.params.penalty_window.unwrap_or(usize::MAX);
        let first = position.saturating_sub(window);
        n_prompt = seq.n_prompt.saturating_sub(first);
        step.history.extend_from_slice(&seq.tokens[first.min(seq.tokens.len())..]);
        unseen = unseen.filter(|_| window > 0);
    }
    let mask = (!seq.mask.is_empty()).then(|| {
        let from = step.masks.len();
        step.masks.extend_from_slice(&seq.mask);
        from..step.masks.len()
    });
    Row {
        given: None,
        params: seq.params.clone(),
        uniform: if seq.params.is_greedy() { 0.0 } else { uniform(seq.seed, seq.turn.id.choice, position) },
        prompt: at..at + n_prompt,
        generated: at + n_prompt..step.history.len(),
        unseen,
        mask,
        n_logprobs: seq.n_logprobs,
    }
}
