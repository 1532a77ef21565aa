//! Scheduler, sequence states, prefix cache and sampler under random load, by seed, for models with and without recurrent layers.
//!
//! Aim: whatever shares the steps, every request gets exactly the tokens that it would get alone, the books balance after every step,
//! nobody waits for ever, and who reads the events of the prefix cache knows what is in it. Method: a runner that reads each sequence's history back from its blocks and slots (`support`), random
//! sizes of everything, arrivals with shared beginnings, cancellations, stalled readers, masks that come late, steps that fail at launch or at finish, and right and
//! wrong guesses of what comes next.

mod support;

use realizar_compute::BatchLimits;
use realizar_engine::speculative::{DraftLayer, Proposer, SpeculationCosts};
use realizar_engine::{
    EngineConfig, Error, Event, FinishReason, MaskJob, Runner, RunnerInfo, Scheduler, SeqId, SlotSizes, Step,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::subscriber::Subscriber;
use support::{At, Case, FakeRunner, Random, Solo, logits_of, mix, solo_of};

/// What a run did, to be sure that the test reaches what it is meant to test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Summary {
    steps: u64,
    finished: u64,
    stopped: u64,
    cancelled: u64,
    failed: u64,
    preemptions: u64,
    evictions: u64,
    cache_hit_tokens: u64,
    snapshots: u64,
    snapshot_evictions: u64,
    recomputed_drafts: u64,
    copies: usize,
    moves: usize,
    deferred: usize,
    prompt_tokens: u64,
    drafted: u64,
    accepted: u64,
    masks: u64,
    late_masks: u64,
    layer_drafts: u64,
    stored: u64,
    removed: u64,
    /// A hash of all events in order.
    trace: u64,
}

struct Simulation {
    random: Random,
    info: RunnerInfo,
    config: EngineConfig,
    overlap: bool,
    /// Whether it commits first when the scheduler would gain from that.
    heeds: bool,
    scheduler: Scheduler,
    runner: FakeRunner,
    faults: Arc<Mutex<Option<At>>>,
    step: Step,
    now: Duration,
    live: BTreeMap<SeqId, Live>,
    paused: Vec<u64>,
    /// What constraints are still to say.
    masks: Vec<MaskJob>,
    next_request: u64,
    bases: Vec<Vec<u32>>,
    solos: HashMap<SeqId, Arc<Solo>>,
    /// Who is first in turn, and for how many schedules.
    head: Option<(SeqId, usize)>,
    strict_head: bool,
    subscriber: Subscriber,
    /// The step from which on the events of the prefix cache are recorded, for the first time.
    recorded_from: usize,
    summary: Summary,
}

struct Live {
    case: Arc<Case>,
    due_us: i64,
    n_tokens: usize,
    n_prompt_tokens: usize,
}

impl Simulation {
    fn new(seed: u64, recurrent: bool) -> Self {
        let mut random = Random::new(seed);
        let block_size = [1, 2, 4, 8][random.below(4)];
        let n_blocks = 4 + random.below(30);
        let context_length = 8 + random.below(100);
        let longest = context_length.min(n_blocks * block_size).div_ceil(block_size);
        let roomy_tables = random.below(4) > 0;
        let limits = BatchLimits {
            n_tokens: 1 + random.below(40),
            n_seqs: 1 + random.below(10),
            n_blocks: if roomy_tables { 100_000 } else { longest + random.below(20) },
            n_logits: 1 + random.below(20),
        };
        let info = RunnerInfo {
            vocab_size: support::VOCAB_SIZE,
            n_blocks,
            block_size,
            context_length,
            limits,
            slots: recurrent.then(|| random_slots(&mut random, n_blocks)),
            asynchronous: true,
            drafts: random.once_in(2),
        };
        let config = EngineConfig {
            max_seqs: 1 + random.below(12),
            step_tokens: Some(1 + random.below(60)),
            prefix_cache: random.below(5) > 0,
            priority_step: Duration::from_millis(random.below(200) as u64),
            speculate: random.once_in(2),
            max_drafts: 1 + random.below(12),
            ..EngineConfig::default()
        };
        let costs = SpeculationCosts { row: [0.01, 0.1, 0.4][random.below(3)], guess: 0.0 };
        let mut scheduler = Scheduler::new(&config, info);
        scheduler.set_speculation(Some(costs));
        let faults: Arc<Mutex<Option<At>>> = Arc::default();
        let mut runner = FakeRunner::new(info);
        let planned = faults.clone();
        runner.fault = Box::new(move |at| {
            let mut planned = planned.lock().unwrap();
            (*planned == Some(at)).then(|| {
                *planned = None;
                Error::Device { message: format!("planned at {at:?}") }
            })
        });
        let limit = info.max_seq_len();
        let bases = (0..3).map(|_| {
            let n = random.below(limit);
            random.tokens(n)
        });
        Self {
            bases: bases.collect(),
            overlap: random.below(3) > 0,
            heeds: random.below(4) > 0,
            scheduler,
            random,
            info,
            config,
            runner,
            faults,
            step: Step::default(),
            now: Duration::ZERO,
            live: BTreeMap::new(),
            paused: Vec::new(),
            masks: Vec::new(),
            next_request: 0,
            solos: HashMap::new(),
            head: None,
            strict_head: roomy_tables,
            subscriber: Subscriber::default(),
            recorded_from: seed as usize % 50,
            summary: Summary::default(),
        }
    }

    /// `n_steps` steps under load, then until everything has ended.
    fn run(mut self, n_steps: usize, arrive_once_in: usize) -> Summary {
        let mut in_flight = None;
        let mut idle = 0;
        for i in 0.. {
            let loaded = i < n_steps;
            if i == self.recorded_from || i == self.recorded_from + 100 {
                self.scheduler.record_cache();
            }
            if loaded {
                self.disturb(arrive_once_in);
            } else if !self.paused.is_empty() {
                self.resume_all();
            }
            if self.live.is_empty() && !loaded && in_flight.is_none() {
                break;
            }
            self.now += Duration::from_micros(100 + self.random.below(2000) as u64);
            // As the engine does: a step is launched before the one before is finished, unless a constraint needs its token.
            if !self.overlap || (self.heeds && self.scheduler.needs_commit()) {
                in_flight.take().into_iter().for_each(|t| self.finish(t));
            }
            self.compute_masks(loaded);
            self.guess();
            let scheduled = self.scheduler.schedule(self.now, &mut self.step);
            self.watch_head();
            self.check();
            self.follow_cache(i);
            let mut launched = None;
            if scheduled {
                self.runner.copy_blocks(&self.step.copies).unwrap();
                match self.runner.launch(&self.step) {
                    Ok(ticket) => launched = Some(ticket),
                    Err(error) => {
                        let mut events = Vec::new();
                        self.scheduler.fail_newest(&error, &mut events);
                        self.take(events);
                    }
                }
            }
            idle = if scheduled || in_flight.is_some() { 0 } else { idle + 1 };
            in_flight.take().into_iter().for_each(|t| self.finish(t));
            in_flight = launched;
            self.check();
            self.follow_cache(i);
            assert!(loaded || idle < 3, "nothing is computed although {} sequences wait", self.live.len());
            assert!(i < n_steps + 100_000, "the load never ends");
        }
        let (in_use, idle_blocks, free) = self.scheduler.blocks();
        assert_eq!((in_use, idle_blocks + free), (0, self.info.n_blocks), "all blocks are back");
        let (in_use, idle_slots, free) = self.scheduler.slots();
        assert_eq!((in_use, idle_slots + free), (0, self.info.cache_shape().n_slots), "all slots are back");
        let counters = self.scheduler.counters();
        self.summary.steps = counters.steps;
        self.summary.stored = self.subscriber.n_stored;
        self.summary.removed = self.subscriber.n_removed;
        self.summary.preemptions = counters.preemptions;
        self.summary.evictions = counters.evictions;
        self.summary.cache_hit_tokens = counters.cache_hit_tokens;
        self.summary.drafted = counters.drafted_tokens;
        self.summary.accepted = counters.accepted_tokens;
        self.summary.snapshots = counters.snapshots;
        self.summary.snapshot_evictions = counters.snapshot_evictions;
        self.summary.recomputed_drafts = counters.recomputed_drafts;
        self.summary.copies = self.runner.n_copies;
        self.summary.moves = self.runner.n_moved;
        self.summary.deferred = self.runner.n_deferred;
        self.summary
    }

    /// Offers guesses that are right for a while, with whatever else a bad proposer might say.
    fn guess(&mut self) {
        let mut drafts = Vec::new();
        let all_wanted = self.scheduler.drafts_wanted();
        if self.info.drafts && self.random.once_in(2) {
            let proposed = DraftLayer::default().propose(&mut self.runner, &all_wanted).unwrap();
            for (wanted, draft) in all_wanted.iter().zip(&proposed) {
                let tokens = &self.solos[&wanted.id].tokens;
                let case = &self.live[&wanted.id].case;
                let right = &tokens[wanted.tokens.len() - case.prompt.len()..];
                let n = draft.len().min(right.len());
                // What a constraint allows, it does not know.
                assert!(case.constraint.is_some() || draft[..n] == right[..n], "{draft:?}, not {right:?}");
                self.summary.layer_drafts += draft.len() as u64;
            }
            let ids: Vec<_> = all_wanted.iter().map(|w| w.id).collect();
            return self.scheduler.offer_drafts(ids.into_iter().zip(proposed));
        }
        for wanted in all_wanted {
            let n_generated = wanted.tokens.len() - self.live[&wanted.id].case.prompt.len();
            assert_eq!(
                wanted.tokens[wanted.tokens.len() - n_generated..],
                self.solos[&wanted.id].tokens[..n_generated]
            );
            let right = &self.solos[&wanted.id].tokens[n_generated..];
            let mut draft = right[..right.len().min(self.random.below(wanted.n + 1))].to_vec();
            let n_more = self.random.below(wanted.n + 3);
            draft.extend(self.random.tokens(n_more));
            if self.random.once_in(30) {
                draft.push(support::VOCAB_SIZE as u32 + 1);
            }
            drafts.push((wanted.id, draft));
        }
        self.scheduler.offer_drafts(drafts);
    }

    /// Has some constraints say what may follow, in any order; all of them when there is no load.
    fn compute_masks(&mut self, loaded: bool) {
        self.masks.extend(self.scheduler.take_mask_jobs());
        let mut events = Vec::new();
        let mut left = Vec::new();
        while !self.masks.is_empty() {
            let job = self.masks.swap_remove(self.random.below(self.masks.len()));
            if loaded && self.random.once_in(4) {
                left.push(job);
                continue;
            }
            self.summary.masks += 1;
            let slow = self.random.once_in(10);
            events.extend(self.scheduler.take_mask(job.run(), slow));
        }
        self.summary.late_masks += left.len() as u64;
        self.masks = left;
        self.take(events);
    }

    fn finish(&mut self, ticket: realizar_engine::Ticket) {
        let mut events = Vec::new();
        match self.runner.finish(ticket) {
            Ok(sampled) => self.scheduler.commit(sampled, self.now, &mut events),
            Err(error) => self.scheduler.fail_oldest(&error, &mut events),
        }
        self.take(events);
    }

    /// Arrivals, cancellations, stalled readers, faults.
    fn disturb(&mut self, arrive_once_in: usize) {
        while self.random.once_in(arrive_once_in) && self.live.len() < 60 {
            self.arrive();
        }
        if self.random.once_in(40) && !self.live.is_empty() {
            let at = self.random.below(self.live.len());
            let id = *self.live.keys().nth(at).unwrap();
            let event = self.scheduler.cancel(id, self.now).expect("it has not ended");
            self.take(vec![(id, event)]);
        }
        if self.random.once_in(30) && !self.live.is_empty() {
            let at = self.random.below(self.live.len());
            let request = self.live.keys().nth(at).unwrap().request;
            self.set_paused(request, true);
        }
        if self.random.once_in(20) && !self.paused.is_empty() {
            let at = self.random.below(self.paused.len());
            self.set_paused(self.paused[at], false);
        }
        if self.random.once_in(60) {
            let at = [At::Launch, At::Finish][self.random.below(2)];
            *self.faults.lock().unwrap() = Some(at);
        }
    }

    fn arrive(&mut self) {
        let limit = self.info.max_seq_len();
        let case = Arc::new(Case::random(&mut self.random, limit, &self.bases));
        let number = self.next_request;
        self.next_request += 1;
        case.request().validate(&self.info).unwrap();
        let priority_us = i64::from(case.priority) * self.config.priority_step.as_micros() as i64;
        let due_us = self.now.as_micros() as i64 - priority_us;
        for choice in 0..case.n {
            let id = SeqId { request: number, choice };
            self.solos.insert(id, Arc::new(solo_of(self.info.slots.is_some(), &case, choice, limit)));
            let live = Live { case: case.clone(), due_us, n_tokens: 0, n_prompt_tokens: 0 };
            self.live.insert(id, live);
        }
        let mut events = Vec::new();
        self.scheduler.add(number, case.request(), self.now, 0, &mut events).unwrap();
        self.take(events);
        // A text may go on where another ended, as the turns of a chat do.
        if self.random.once_in(3) {
            let id = SeqId { request: number, choice: 0 };
            let mut base = case.prompt.clone();
            base.extend(&self.solos[&id].tokens);
            let at = self.random.below(self.bases.len());
            self.bases[at] = base;
        }
    }

    fn set_paused(&mut self, request: u64, paused: bool) {
        self.paused.retain(|r| *r != request);
        if paused {
            self.paused.push(request);
        }
        for choice in 0..3 {
            self.scheduler.set_paused(SeqId { request, choice }, paused);
        }
    }

    fn resume_all(&mut self) {
        while let Some(&request) = self.paused.last() {
            self.set_paused(request, false);
        }
    }

    /// Compares events with what each request should yield alone.
    fn take(&mut self, events: Vec<(SeqId, Event)>) {
        for (id, event) in events {
            self.summary.trace = mix(self.summary.trace ^ hash(id, &event));
            let live = self.live.get_mut(&id).unwrap_or_else(|| panic!("{id:?} has ended before {event:?}"));
            let expected = &self.solos[&id];
            match event {
                Event::PromptToken { id: token, logprob, .. } => {
                    let at = live.n_prompt_tokens;
                    assert_eq!(token, live.case.prompt[at], "prompt token {at} of {id:?}");
                    let recurrent = self.info.slots.is_some();
                    let wanted = (at > 0).then(|| logprob_after(recurrent, &live.case.prompt[..at], token));
                    assert_eq!(logprob.is_some(), wanted.is_some());
                    if let (Some(a), Some(b)) = (logprob, wanted) {
                        assert!((a - b).abs() < 1e-4, "prompt token {at} of {id:?}: {a}, not {b}");
                    }
                    live.n_prompt_tokens += 1;
                    self.summary.prompt_tokens += 1;
                }
                Event::Token { id: token, choice, logprob, .. } => {
                    let n = live.n_tokens;
                    assert_eq!(choice, id.choice);
                    assert_eq!(Some(&token), expected.tokens.get(n), "token {n} of {id:?}, {:?}", live.case);
                    assert_eq!(logprob, expected.logprobs[n], "log-probability of token {n} of {id:?}");
                    live.n_tokens += 1;
                }
                Event::Finished { choice, reason, usage, .. } => {
                    assert_eq!(choice, id.choice);
                    assert_eq!(usage.prompt_tokens, live.case.prompt.len());
                    assert_eq!(usage.completion_tokens, live.n_tokens);
                    assert!(
                        usage.cached_tokens < usage.prompt_tokens,
                        "one token of a prompt is always computed"
                    );
                    match reason {
                        FinishReason::Cancelled => self.summary.cancelled += 1,
                        _ => {
                            assert_eq!(
                                live.n_tokens,
                                expected.tokens.len(),
                                "{id:?} ended early: {reason:?}"
                            );
                            assert_eq!(reason, expected.reason, "{id:?}");
                            let scored = live.case.prompt_logprobs.is_some() && choice == 0;
                            let n = if scored { live.case.prompt.len() } else { 0 };
                            assert_eq!(live.n_prompt_tokens, n, "prompt tokens of {id:?}");
                            self.summary.finished += 1;
                            self.summary.stopped += u64::from(matches!(reason, FinishReason::Stop { .. }));
                        }
                    }
                    self.live.remove(&id);
                }
                Event::Error(error) => {
                    assert!(error.to_string().contains("planned"), "{error}");
                    self.summary.failed += 1;
                    self.live.remove(&id);
                }
            }
        }
    }

    /// The first in turn must advance in every step, so it ends after as many as it has tokens.
    fn watch_head(&mut self) {
        let turn = |(id, live): &(&SeqId, &Live)| (live.due_us, **id);
        let head = self.live.iter().min_by_key(turn).map(|(id, _)| *id);
        let waits = |id: &SeqId| self.masks.iter().any(|job| job.id() == *id);
        let head = head.filter(|id| !self.paused.contains(&id.request) && !waits(id));
        self.head = match (head, self.head) {
            (Some(new), Some((old, n))) if new == old => Some((old, n + 1)),
            (new, _) => new.map(|id| (id, 0)),
        };
        if let Some((id, n)) = self.head.filter(|_| self.strict_head) {
            let live = &self.live[&id];
            let tokens = live.case.prompt.len() + self.solos[&id].tokens.len();
            let most = if self.heeds { tokens + 5 } else { 2 * tokens + 5 };
            assert!(n <= most, "{id:?} is first in turn and has not ended after {n} steps");
        }
    }

    /// Compares the prefix cache with what its events say.
    fn follow_cache(&mut self, step: usize) {
        let events = self.scheduler.take_cache_events();
        assert!(step >= self.recorded_from || events.is_empty());
        self.subscriber.take(events, self.info.block_size);
        if step >= self.recorded_from {
            let texts = self.scheduler.cached_texts();
            let n = texts.len();
            let texts: BTreeSet<_> = texts.into_iter().collect();
            assert_eq!(texts.len(), n, "no text is there twice");
            assert_eq!(self.subscriber.texts(), texts);
        }
    }

    fn check(&self) {
        self.scheduler.check().unwrap_or_else(|error| panic!("{error}"));
        let sum = |(in_use, idle, free): (usize, usize, usize)| in_use + idle + free;
        let shape = self.info.cache_shape();
        assert_eq!(sum(self.scheduler.blocks()), shape.n_blocks, "blocks");
        assert_eq!(sum(self.scheduler.slots()), shape.n_slots, "slots");
        let known = self.scheduler.n_running() + self.scheduler.n_waiting();
        assert_eq!(known, self.live.len(), "sequences that have not ended");
    }
}

/// Sizes of slots for a cache of `n_blocks`, with memory for all of both, or for less.
fn random_slots(random: &mut Random, n_blocks: usize) -> SlotSizes {
    let (n_slots, slot_bytes) = (2 + random.below(20), 1 + random.below(12));
    let block_bytes = 1 + random.below(4);
    let all = n_slots * slot_bytes + n_blocks * block_bytes;
    let least = 2 * slot_bytes + 4 * block_bytes;
    let budget_bytes = if random.once_in(2) { all } else { least + random.below(all - least + 1) };
    SlotSizes { n_slots, slot_bytes, block_bytes, budget_bytes }
}

fn logprob_after(recurrent: bool, text: &[u32], token: u32) -> f32 {
    let logits = logits_of(recurrent, text);
    let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    (f64::from(logits[token as usize]) - sum.ln()) as f32
}

fn hash(id: SeqId, event: &Event) -> u64 {
    format!("{id:?} {event:?}").bytes().fold(0, |h, b| mix(h ^ u64::from(b)))
}

/// Runs many seeds, and makes sure that they reach what they are meant to test.
fn run_seeds(recurrent: bool) {
    let mut total = Summary::default();
    for seed in 0..400 {
        let run = || Simulation::new(seed, recurrent).run(400, 2 + seed as usize % 9);
        let s = std::panic::catch_unwind(run).unwrap_or_else(|_| panic!("seed {seed} fails"));
        total.steps += s.steps;
        total.finished += s.finished;
        total.stopped += s.stopped;
        total.cancelled += s.cancelled;
        total.failed += s.failed;
        total.preemptions += s.preemptions;
        total.evictions += s.evictions;
        total.cache_hit_tokens += s.cache_hit_tokens;
        total.snapshots += s.snapshots;
        total.snapshot_evictions += s.snapshot_evictions;
        total.recomputed_drafts += s.recomputed_drafts;
        total.copies += s.copies;
        total.moves += s.moves;
        total.deferred += s.deferred;
        total.prompt_tokens += s.prompt_tokens;
        total.drafted += s.drafted;
        total.accepted += s.accepted;
        total.masks += s.masks;
        total.late_masks += s.late_masks;
        total.layer_drafts += s.layer_drafts;
        total.stored += s.stored;
        total.removed += s.removed;
    }
    let both = [
        ("finished", total.finished),
        ("stopped", total.stopped),
        ("cancelled", total.cancelled),
        ("failed", total.failed),
        ("preemptions", total.preemptions),
        ("evictions", total.evictions),
        ("cache hits", total.cache_hit_tokens),
        ("copies", total.copies as u64),
        ("deferred tokens", total.deferred as u64),
        ("scored tokens", total.prompt_tokens),
        ("masks", total.masks),
        ("late masks", total.late_masks),
        ("drafts of a layer", total.layer_drafts),
        ("stored blocks", total.stored),
        ("removed blocks", total.removed),
        ("right guesses", total.accepted),
        ("wrong guesses", total.drafted - total.accepted),
    ];
    let recurrent_only = [
        ("snapshots", total.snapshots),
        ("evicted snapshots", total.snapshot_evictions),
        ("right guesses that were computed again", total.recomputed_drafts),
        ("states that went on in another slot", total.moves as u64),
    ];
    for (what, n) in both.iter().chain(recurrent_only.iter().filter(|_| recurrent)) {
        assert!(*n > 500, "only {n} {what}: the simulation does not reach what it should test: {total:?}");
    }
}

#[test]
fn every_request_gets_its_own_tokens_under_any_load() {
    run_seeds(false);
}

#[test]
fn every_request_gets_its_own_tokens_with_recurrent_layers_too() {
    run_seeds(true);
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in 1000..1010 {
        let run = || Simulation::new(seed, seed % 2 == 0).run(300, 3);
        assert_eq!(run(), run());
    }
}
