//! Decides what each step computes: plain data, no device, clock, thread or channel.
//!
//! [`Scheduler::schedule`] fills a [`Step`], [`Scheduler::commit`] takes its outcome; a second step may be scheduled before the first
//! is committed. Its policy:
//! - Sequences have a turn, their arrival less what their priority is worth, which never changes. The first in turn gets whatever it
//!   needs, so nobody starves and a request that fits alone never fails.
//! - Running sequences that only decode go first, then prompts in chunks from what is left of the step's tokens. A prompt that needs
//!   more than that leaves half of it to those behind it.
//! - Drafts, guesses of how a sequence goes on, get what is then left; no sequence waits or loses a block for them.
//! - When blocks or slots run out, a running sequence takes those of the last in turn, or of one whose reader stalls. The loser waits
//!   and is recomputed later, mostly from the prefix cache.
//!
//! Here stands what a step computes, and in [`crate::state`] what sequences keep on the device for it; in `commit` what its outcome means, in
//! `masks` how constraints say what may follow, in `drafts` which guesses are wanted and taken, in `rows`
//! what to do with each row of logits, in `check` that the books balance.

mod check;
mod commit;
mod drafts;
mod masks;
mod rows;

pub use masks::{MaskDone, MaskJob};

use crate::cache_events::CacheEvent;
use crate::request::{Event, FinishReason, Request};
use crate::runner::{BlockCopy, RunnerInfo, Step};
use crate::sequence::{InStep, SeqId, Sequence, Turn};
use crate::speculative::{DraftLength, SpeculationCosts};
use crate::state::{Need, Prefix, SequenceState, Span, StateStore};
use crate::{EngineConfig, Error, Result};
use drafts::Draft;
use rows::{rows_of, score_row};
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
    priority_step: Duration,
    store: StateStore,
    seqs: HashMap<SeqId, Sequence>,
    running: BTreeSet<Turn>,
    waiting: BTreeSet<Turn>,
    /// Steps that are scheduled and not committed, the oldest first.
    in_flight: VecDeque<Vec<LaunchedSeq>>,
    plan: Vec<Planned>,
    budget: Budget,
    /// The first in turn of those who lost their blocks to the step being scheduled.
    first_victim: Option<Turn>,
    /// What guesses cost, if somebody makes them.
    costs: Option<SpeculationCosts>,
    /// Whether requests that do not say want them.
    speculate: bool,
    max_drafts: usize,
    /// Guesses for the step to be scheduled next.
    drafts: HashMap<SeqId, Draft>,
    /// Constraints that have to say what may follow.
    mask_jobs: Vec<MaskJob>,
    counters: SchedulerCounters,
}

/// What the scheduler has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerCounters {
    /// Steps scheduled.
    pub steps: u64,
    /// Tokens computed, those computed again included.
    pub computed_tokens: u64,
    /// Sequences whose blocks were taken before their end although their readers were keeping up.
    pub preemptions: u64,
    /// Cached blocks that were given up for new contents.
    pub evictions: u64,
    /// Snapshots of recurrent state that the prefix cache took in.
    pub snapshots: u64,
    /// Snapshots that were given up, or lost with their block.
    pub snapshot_evictions: u64,
    /// Tokens of prompts found in the prefix cache, when they first ran.
    pub cache_hit_tokens: u64,
    /// Tokens of prompts not found there.
    pub cache_miss_tokens: u64,
    /// Guessed tokens that were compared with what the model chose.
    pub drafted_tokens: u64,
    /// Of those, the ones that it chose too.
    pub accepted_tokens: u64,
    /// Of those, the ones that had to be computed again, for the state after them.
    pub recomputed_drafts: u64,
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
    /// Positions computed after the step, without those of the drafts.
    end: usize,
    /// Positions whose next token is given and gets a log-probability.
    scored: Range<usize>,
    /// Rows that choose a token: the first always does, each other one if the draft before it was right.
    n_chosen: usize,
    /// One less than `n_chosen`.
    drafts: Vec<u32>,
}

impl Scheduler {
    /// An empty one for a runner of these sizes.
    pub fn new(config: &EngineConfig, info: RunnerInfo) -> Self {
        let limits = info.limits;
        let store = StateStore::new(&info, config.prefix_cache);
        let longest = info.max_seq_len().div_ceil(info.block_size);
        assert!(
            limits.n_blocks >= longest,
            "block tables of {} entries cannot hold {longest}",
            limits.n_blocks
        );
        let step_tokens = config.step_tokens.unwrap_or(usize::MAX).min(limits.n_tokens).max(1);
        // Not more sequences than tokens or rows of a step, so that each running one can advance in every step.
        let max_seqs = config.max_seqs.min(limits.n_seqs).min(limits.n_logits).min(step_tokens).max(1);
        Self {
            info,
            max_seqs,
            step_tokens,
            priority_step: config.priority_step,
            store,
            seqs: HashMap::new(),
            running: BTreeSet::new(),
            waiting: BTreeSet::new(),
            in_flight: VecDeque::new(),
            plan: Vec::new(),
            budget: Budget::default(),
            first_victim: None,
            costs: None,
            speculate: config.speculate,
            max_drafts: config.max_drafts,
            drafts: HashMap::new(),
            mask_jobs: Vec::new(),
            counters: SchedulerCounters::default(),
        }
    }

    /// What sequences keep on the device.
    pub(crate) fn store_mut(&mut self) -> &mut StateStore {
        &mut self.store
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
        let mask = first_mask(&mut request, self.info.vocab_size)?;
        let priority_us = i64::from(request.priority).saturating_mul(self.priority_step.as_micros() as i64);
        let due_us = (arrival.as_micros() as i64).saturating_sub(priority_us);
        let stop_tokens: Arc<[u32]> = if request.ignore_eos { [].into() } else { request.stop_tokens.into() };
        let params = Arc::new(request.sampling.with_biases_merged());
        let n_prompt = request.prompt.len();
        // Prompt and continuation together stay within what a sequence may hold.
        let max_tokens = request.max_tokens.min(self.info.max_seq_len().saturating_sub(n_prompt));
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
                n_redo: 0,
                state: SequenceState::default(),
                n_forks: if choice == 0 { request.n - 1 } else { 0 },
                running: false,
                paused: false,
                draft_length: match request.speculate.unwrap_or(self.speculate) {
                    true => Some(DraftLength::default()),
                    false => None,
                },
                last_step: None,
                verifies: false,
                n_drafted: 0,
                n_accepted: 0,
                prefilled: false,
                n_scored: if prompt_logprobs.is_some() { 0 } else { n_prompt },
                n_cached: 0,
                max_tokens,
                seed: params.seed.unwrap_or(seed),
                params: params.clone(),
                stop_tokens: stop_tokens.clone(),
                n_logprobs: request.n_logprobs,
                prompt_logprobs,
                salt: request.cache_salt,
                constrained: constraint.is_some(),
                constraint,
                slow_mask: false,
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
            if max_tokens == 0 && nothing_to_score {
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
        self.offer_end(id);
        self.remove(id).map(|seq| seq.finished(FinishReason::Cancelled, now))
    }

    /// Keeps a sequence out of steps, or lets it in again.
    pub fn set_paused(&mut self, id: SeqId, paused: bool) {
        if let Some(seq) = self.seqs.get_mut(&id) {
            seq.paused = paused;
        }
    }

    /// Whether the next step would gain from committing the one in flight first, because a constraint or a guess has to see its token.
    pub fn needs_commit(&self) -> bool {
        let waits = |seq: &Sequence| seq.n_unseen > 0 && !seq.paused && self.needs_tokens(seq);
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
        self.extend_by_drafts();
        if !self.plan.is_empty() {
            self.counters.steps += 1;
            self.build(step);
        }
        self.drafts.clear();
        self.store.end_schedule();
        !step.batch.seqs.is_empty()
    }

    /// Sequences in steps.
    pub fn n_running(&self) -> usize {
        self.running.len()
    }

    /// Sequences that wait for their first step, or for another one after they lost their blocks.
    pub fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a sequence without a constraint could be in the next step.
    pub fn has_unconstrained(&self) -> bool {
        self.running.iter().any(|&turn| self.is_ready(turn) && !self.seqs[&turn.id].constrained)
    }

    /// Whether a sequence has not ended.
    pub fn contains(&self, id: SeqId) -> bool {
        self.seqs.contains_key(&id)
    }

    /// Blocks in use, idle in the prefix cache, and free; together all.
    pub fn blocks(&self) -> (usize, usize, usize) {
        self.store.n_blocks()
    }

    /// Slots of recurrent state in use, idle in the prefix cache, and free; together all.
    pub fn slots(&self) -> (usize, usize, usize) {
        self.store.n_slots()
    }

    /// Has changes of the prefix cache recorded from now on, after all that is there.
    pub fn record_cache(&mut self) {
        self.store.record_cache();
    }

    /// The changes of the prefix cache since the last call; none unless they are recorded.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.store.take_cache_events()
    }

    /// What it has done so far.
    pub fn counters(&self) -> SchedulerCounters {
        let state = self.store.counters();
        SchedulerCounters {
            evictions: state.evicted_blocks,
            snapshots: state.listed_snapshots,
            snapshot_evictions: state.evicted_snapshots,
            ..self.counters
        }
    }

    /// Plans the running sequences that only decode.
    fn plan_decodes(&mut self) {
        let order: Vec<Turn> = self.running.iter().copied().collect();
        for turn in order {
            let seq = &self.seqs[&turn.id];
            if self.is_ready(turn) && seq.decodes() {
                self.plan_seq(turn.id, seq.n_remaining());
            }
        }
    }

    /// Plans the running sequences that have more to compute, and lets waiting ones run, in turn. A waiting one that finds no room
    /// keeps those behind it waiting too.
    fn plan_prompts(&mut self, now: Duration) {
        let long = |turn: &&Turn| !self.seqs[&turn.id].decodes();
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
                let held = seq.paused || seq.waits_for_mask() || self.waits_for_sibling(seq);
                if !held && seq.n_in_flight == 0 {
                    admitting = self.admit(turn, now);
                }
            }
        }
    }

    fn is_ready(&self, turn: Turn) -> bool {
        let seq = &self.seqs[&turn.id];
        seq.running && seq.is_ready()
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
        let mut prefix = self.find_shared(seq);
        // A shared block that is not full has to be copied before the sequence writes to it.
        let full_blocks = prefix.n_tokens / self.info.block_size;
        let wanted = (seq.n_wanted() + 1).min(self.info.max_seq_len()).div_ceil(self.info.block_size);
        let need = Need { blocks: wanted - full_blocks, slots: self.store.to_begin() };
        self.store.retain(&prefix);
        // Where there is no room for a block and its copy, there may be room without.
        let has_room = self.make_room(turn, &prefix, need)
            || (self.store.release_part(&mut prefix) && self.make_room(turn, &prefix, need));
        if !has_room {
            self.store.release_prefix(prefix);
            return false;
        }
        let n_shared = prefix.n_tokens;
        let seq = self.seqs.get_mut(&turn.id).expect("waiting sequences exist");
        (seq.n_launched, seq.n_computed) = (n_shared, n_shared);
        seq.state = prefix.into_state(self.info.block_size);
        seq.running = true;
        let begins = seq.first_step.is_none();
        if begins {
            seq.first_step = Some(now);
            seq.n_cached = n_shared;
            self.counters.cache_hit_tokens += n_shared as u64;
            self.counters.cache_miss_tokens += (seq.n_prompt - n_shared) as u64;
        }
        let remaining = seq.n_remaining();
        if begins {
            self.count_fork(turn.id);
        }
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

    /// What is there of a waiting sequence's beginning. At least one position is left to compute.
    fn find_shared(&self, seq: &Sequence) -> Prefix {
        let first = SeqId { choice: 0, ..seq.turn.id };
        let n = seq.n_prompt - 1;
        let forks = seq.turn.id.choice > 0 && seq.n_generated() == 0;
        let sibling = self.seqs.get(&first).filter(|s| forks && s.n_computed >= n);
        if let Some(mut prefix) = sibling.and_then(|s| self.store.find_fork(&s.state, n)) {
            // A copy that the sibling gets in this step is not there yet when the step's copies are made; its original is.
            for copy in self.plan.iter().filter_map(|planned| planned.copy) {
                prefix.blocks.iter_mut().filter(|b| **b == copy.to).for_each(|b| *b = copy.from);
            }
            return prefix;
        }
        let scores = seq.n_scored + 1 < seq.n_prompt;
        let n = if scores { 0 } else { seq.n_wanted() - 1 };
        self.store.find(&seq.tokens[..n], seq.salt)
    }

    /// Notes that a choice of a request begins. After the last one nobody needs the snapshot that the first one keeps for them.
    fn count_fork(&mut self, id: SeqId) {
        if id.choice > 0
            && let Some(first) = self.seqs.get_mut(&SeqId { choice: 0, ..id })
        {
            first.n_forks -= 1;
            if first.n_forks == 0 {
                self.store.release_fork(&mut first.state);
            }
        }
    }

    /// Makes room for a waiting sequence that shares `prefix`: a place among the running ones and in the step, and what it needs
    /// besides. Preempts those behind it in turn if, and only if, that is enough.
    fn make_room(&mut self, turn: Turn, prefix: &Prefix, need: Need) -> bool {
        if self.has_room(need) {
            return true;
        }
        let stays = |id: &SeqId| {
            let seq = &self.seqs[id];
            seq.turn < turn && !seq.paused
        };
        let (mut blocks, mut slots) = (prefix.blocks.clone(), prefix.slots().collect::<Vec<_>>());
        let mut n_stay = 0;
        for t in self.running.iter().filter(|t| stays(&t.id)) {
            let state = &self.seqs[&t.id].state;
            blocks.extend(&state.blocks);
            slots.extend(state.slots());
            n_stay += 1;
        }
        let used = Need { blocks: n_distinct(&mut blocks), slots: n_distinct(&mut slots) };
        let planned = || self.plan.iter().filter(|p| stays(&p.id));
        let enough = self.store.has_room_beside(used, need)
            && n_stay < self.max_seqs
            && planned().map(|p| p.n_tokens).sum::<usize>() < self.step_tokens
            && planned().map(|p| p.n_rows).sum::<usize>() < self.info.limits.n_logits;
        while enough && !self.has_room(need) {
            if !self.preempt_for(turn) {
                return false;
            }
        }
        enough
    }

    fn has_room(&self, need: Need) -> bool {
        let b = &self.budget;
        self.store.has_room(need)
            && self.running.len() < self.max_seqs
            && [b.tokens, b.seqs, b.rows].iter().all(|&n| n > 0)
    }

    /// Puts up to `want` tokens of a running sequence into the plan, taking blocks and slots from those behind it if need be.
    fn plan_seq(&mut self, id: SeqId, want: usize) -> bool {
        let block_size = self.info.block_size;
        let seq = &self.seqs[&id];
        let (turn, start) = (seq.turn, seq.n_launched);
        let need = self.store.to_write(&seq.state, start);
        let mut n_tokens = self.within_budget(seq, want.min(seq.n_remaining()).min(self.budget.tokens));
        if n_tokens == 0 || self.budget.seqs == 0 {
            return false;
        }
        loop {
            let n_blocks = self.seqs[&id].state.blocks.len();
            let room = self.store.room_besides(need).map_or(0, |new| (n_blocks + new) * block_size - start);
            if room > 0 {
                n_tokens = n_tokens.min(room);
                break;
            }
            if !self.preempt_for(turn) {
                let seq = self.seqs.get_mut(&id).expect("planned sequences exist");
                if !self.store.give_up_spare(&mut seq.state) {
                    return false;
                }
            }
        }
        let seq = self.seqs.get_mut(&id).expect("planned sequences exist");
        let copy = self.store.make_writable(&mut seq.state, start);
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
            let want = (old + self.budget.tokens).min(seq.n_remaining()).min(self.room(seq, Need::default()));
            if want > old {
                self.refund(i);
                let seq = &self.seqs[&id];
                let n = self.within_budget(seq, want).max(old);
                self.grow(i, n);
            }
        }
    }

    /// How many tokens of a sequence its blocks hold with those that can be handed out besides `need`; 0 if that has no room.
    fn room(&self, seq: &Sequence, need: Need) -> usize {
        let blocks = self.store.room_besides(need).map(|new| seq.state.blocks.len() + new);
        blocks.map_or(0, |n| n * self.info.block_size - seq.n_launched)
    }

    /// The most of `n` tokens whose rows of logits and block table fit the budget.
    fn within_budget(&self, seq: &Sequence, n: usize) -> usize {
        let n = n.min((self.budget.entries * self.info.block_size).saturating_sub(seq.n_launched));
        let rows = self.n_rows(seq, n);
        // Rows are those of the last tokens, so each token less is a row less.
        n - rows.saturating_sub(self.budget.rows).min(n)
    }

    fn n_rows(&self, seq: &Sequence, n_tokens: usize) -> usize {
        let (scored, n_chosen) = rows_of(seq, n_tokens);
        scored.len() + n_chosen
    }

    /// Sets the size of a refunded or new entry of the plan: allocates its blocks and takes its share of the budget.
    fn grow(&mut self, entry: usize, n_tokens: usize) {
        let id = self.plan[entry].id;
        let seq = self.seqs.get_mut(&id).expect("planned sequences exist");
        let n_entries = (seq.n_launched + n_tokens).div_ceil(self.info.block_size);
        self.store.grow(&mut seq.state, n_entries);
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

    /// Takes what a stalled sequence has on the device, or of the last one in turn, if it is behind `turn`.
    fn preempt_for(&mut self, turn: Turn) -> bool {
        let stalled = self.running.iter().rev().find(|t| self.seqs[&t.id].paused && **t != turn);
        let Some(&victim) = stalled.or(self.running.last().filter(|t| **t > turn)) else { return false };
        // A sequence whose reader stalls cannot advance anyway: losing its blocks is no sign of too small a cache.
        if !self.seqs[&victim.id].paused {
            self.counters.preemptions += 1;
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
        let state = seq.reset();
        self.store.release(state);
        true
    }

    /// Writes the plan into the step and notes it as in flight.
    fn build(&mut self, step: &mut Step) {
        let mut launched = Vec::with_capacity(self.plan.len());
        for planned in self.plan.drain(..) {
            let seq = self.seqs.get_mut(&planned.id).expect("planned sequences exist");
            let (start, end) = (seq.n_launched, seq.n_launched + planned.n_tokens);
            let (scored, n_chosen) = rows_of(seq, planned.n_tokens);
            // Drafts are computed behind what is certain and do not count as launched.
            let n_drafts = n_chosen.saturating_sub(1);
            let certain = end - n_drafts;
            let mut drafts = self.drafts.remove(&planned.id).unwrap_or_default();
            drafts.tokens.truncate(n_drafts);
            let table = &seq.state.blocks[..end.div_ceil(self.info.block_size)];
            if self.info.drafts {
                let before = start.checked_sub(1).zip(seq.last_step.as_ref());
                // This step was counted when it began.
                let number = self.counters.steps;
                step.batch.previous.push(before.and_then(|(at, last)| last.row_of(at, number - 1)));
                seq.last_step =
                    Some(InStep { step: number, row: step.batch.tokens.len(), positions: start..end });
            }
            match start < seq.tokens.len() {
                true => {
                    let n_known = seq.tokens.len();
                    seq.tokens.extend_from_slice(&drafts.tokens);
                    step.batch.push(&seq.tokens[start..end], start, table, planned.n_rows);
                    seq.tokens.truncate(n_known);
                }
                false => {
                    assert_eq!((start, end), (seq.tokens.len(), seq.tokens.len() + 1), "one token is unseen");
                    step.batch.deferred.push((step.batch.tokens.len(), seq.unseen_row));
                    step.batch.push(&[0], start, table, planned.n_rows);
                }
            }
            step.copies.extend(planned.copy);
            let span = Span {
                start,
                certain,
                end,
                n_prompt: seq.n_prompt,
                completes: certain == seq.n_wanted(),
                fork_at: (seq.n_forks > 0).then_some(seq.n_prompt - 1).filter(|&n| n > 0),
            };
            self.store.push_state(&mut seq.state, &span, &mut step.batch);
            for position in scored.clone() {
                step.rows.push(score_row(seq, position));
            }
            if n_chosen > 0 {
                let at = step.rows.len();
                let unseen = (seq.n_unseen > 0).then_some(seq.unseen_row);
                seq.chooser().push_rows(step, &seq.tokens, &drafts.tokens, unseen);
                drafts.restrict(seq, step, at);
                seq.n_unseen += 1;
                seq.unseen_row = at;
                seq.verifies = n_drafts > 0;
            }
            seq.n_redo = seq.n_redo.saturating_sub(certain - start);
            seq.n_launched = certain;
            seq.n_in_flight += 1;
            self.counters.computed_tokens += planned.n_tokens as u64;
            let (id, epoch, drafts) = (planned.id, seq.epoch, drafts.tokens);
            launched.push(LaunchedSeq { id, epoch, end: certain, scored, n_chosen, drafts });
        }
        self.in_flight.push_back(launched);
    }

    fn remove(&mut self, id: SeqId) -> Option<Sequence> {
        let mut seq = self.seqs.remove(&id)?;
        match seq.running {
            true => self.running.remove(&seq.turn),
            false => self.waiting.remove(&seq.turn),
        };
        self.store.release(std::mem::take(&mut seq.state));
        Some(seq)
    }
}

/// What a request's constraint allows first, as bits of tokens; empty without one.
fn first_mask(request: &mut Request, vocab_size: usize) -> Result<Vec<u32>> {
    let Some(constraint) = &mut request.constraint else { return Ok(Vec::new()) };
    let words = constraint.allowed().map_err(|message| Error::Constraint { message })?.words();
    let (n, expected) = (words.len(), vocab_size.div_ceil(32));
    match n == expected {
        true => Ok(words.to_vec()),
        false => {
            Err(Error::Constraint { message: format!("its masks have {n} words instead of {expected}") })
        }
    }
}

/// How many different numbers there are.
fn n_distinct(numbers: &mut Vec<u32>) -> usize {
    numbers.sort_unstable();
    numbers.dedup();
    numbers.len()
}
