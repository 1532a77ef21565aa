//! What is computed of a text whose beginning was computed before, by a model with recurrent layers.
//!
//! Method: a scheduler without an engine around it, the runner of `support` with slots, and the number of tokens in its steps. Whatever
//! is skipped, the tokens must be those of the model on its own.

mod support;

use realizar_compute::BatchLimits;
use realizar_engine::{EngineConfig, Event, Runner, RunnerInfo, Scheduler, SeqId, SlotSizes, Step};
use std::collections::BTreeMap;
use std::time::Duration;
use support::{Case, FakeRunner, Random, solo_of};

const BLOCK_SIZE: usize = 4;

/// Snapshots are spaced 5 blocks apart.
const INFO: RunnerInfo = RunnerInfo {
    vocab_size: support::VOCAB_SIZE,
    n_blocks: 200,
    block_size: BLOCK_SIZE,
    context_length: 400,
    limits: BatchLimits { n_tokens: 64, n_seqs: 8, n_blocks: 1000, n_logits: 16 },
    slots: Some(SlotSizes { n_slots: 50, slot_bytes: 50, block_bytes: 10, budget_bytes: 200 * 10 + 50 * 50 }),
    asynchronous: true,
    drafts: false,
};
const SPACING: usize = 5 * BLOCK_SIZE;

struct Session {
    scheduler: Scheduler,
    runner: FakeRunner,
    next: u64,
}

impl Session {
    fn new(info: RunnerInfo) -> Self {
        let scheduler = Scheduler::new(&EngineConfig::default(), info);
        Self { scheduler, runner: FakeRunner::new(info), next: 0 }
    }

    /// Answers a prompt with `n` choices of `max_tokens`. Returns the first choice and how many tokens were computed for all.
    fn answer(&mut self, prompt: &[u32], max_tokens: usize, n: u32) -> (Vec<u32>, usize) {
        let case = Case { n, ..Case::greedy(prompt.to_vec(), max_tokens) };
        let before = self.scheduler.counters().computed_tokens;
        let (mut step, mut events) = (Step::default(), Vec::new());
        self.scheduler.add(self.next, case.request(), Duration::ZERO, 0, &mut events).unwrap();
        self.next += 1;
        // As with a device that works ahead: a step is launched before the one before is finished.
        let mut in_flight = None;
        loop {
            let scheduled = self.scheduler.schedule(Duration::ZERO, &mut step);
            let launched = scheduled.then(|| {
                self.runner.copy_blocks(&step.copies).unwrap();
                self.runner.launch(&step).unwrap()
            });
            let Some(ticket) = std::mem::replace(&mut in_flight, launched) else {
                if in_flight.is_some() {
                    continue;
                }
                break;
            };
            let sampled = self.runner.finish(ticket).unwrap();
            self.scheduler.commit(sampled, Duration::ZERO, &mut events);
            self.scheduler.check().unwrap();
        }
        let mut answers: BTreeMap<SeqId, Vec<u32>> = BTreeMap::new();
        for (seq, event) in events {
            if let Event::Token { id, .. } = event {
                answers.entry(seq).or_default().push(id);
            }
        }
        for (seq, tokens) in &answers {
            let expected = solo_of(self.runner.info().slots.is_some(), &case, seq.choice, INFO.max_seq_len());
            assert_eq!(*tokens, expected.tokens, "{seq:?}");
        }
        let computed = self.scheduler.counters().computed_tokens - before;
        (answers.into_values().next().unwrap_or_default(), computed as usize)
    }
}

#[test]
fn a_second_turn_computes_only_what_is_new() {
    let mut random = Random::new(1);
    for n_prompt in [1, 7, 8, 9, 50, 130] {
        for n_answer in [1, 3, 4, 5, 30] {
            let mut session = Session::new(INFO);
            let mut text = random.tokens(n_prompt);
            for turn in 0..4 {
                let n_before = text.len();
                let (answer, computed) = session.answer(&text, n_answer, 1);
                let n_new = if turn == 0 { n_prompt } else { 10 };
                // The last token is not computed; the end of what is known may lie within a block.
                let most = n_new + n_answer - 1 + if turn == 0 { 0 } else { 2 * BLOCK_SIZE };
                assert!(computed <= most, "turn {turn} of {n_before} tokens computed {computed}, not {most}");
                text.extend(answer);
                text.extend(random.tokens(10));
            }
        }
    }
}

#[test]
fn a_history_that_comes_back_without_its_thinking_is_computed_from_the_end_of_the_prompt() {
    let mut random = Random::new(2);
    let mut session = Session::new(INFO);
    let prompt = random.tokens(70);
    session.answer(&prompt, 60, 1);
    // The answer comes back without its first 40 tokens, so the common part ends with the prompt.
    let text = [&prompt[..], &random.tokens(30)].concat();
    let (_, computed) = session.answer(&text, 1, 1);
    assert!(computed <= 30 + BLOCK_SIZE, "{computed}");
}

#[test]
fn a_history_that_was_cut_is_computed_from_the_last_snapshot_before_the_cut() {
    let mut random = Random::new(3);
    let prompt = random.tokens(200);
    for cut in [5, 20, 21, 99, 100, 101, 150, 199, 200] {
        let mut session = Session::new(INFO);
        session.answer(&prompt, 30, 1);
        let text = [&prompt[..cut], &random.tokens(10)].concat();
        let (_, computed) = session.answer(&text, 1, 1);
        assert!(computed <= 10 + cut % SPACING, "cut at {cut}: {computed}");
    }
    // Read again as it is, all but its last tokens are known.
    let mut session = Session::new(INFO);
    session.answer(&prompt, 1, 1);
    assert!(session.answer(&prompt, 1, 1).1 <= BLOCK_SIZE);
}

#[test]
fn further_choices_compute_one_token_of_the_prompt() {
    let prompt = Random::new(4).tokens(101);
    let mut session = Session::new(INFO);
    assert_eq!(session.answer(&prompt, 6, 4).1, 101 + 3 + 4 * 5);
    // Also where nothing is kept for prompts that begin alike.
    let mut session = Session::new(INFO);
    session.scheduler =
        Scheduler::new(&EngineConfig { prefix_cache: false, ..EngineConfig::default() }, INFO);
    assert_eq!(session.answer(&prompt, 6, 4).1, 101 + 3 + 4 * 5);
    assert_eq!(session.answer(&prompt, 6, 1).1, 101 + 5, "nothing is found");
}

#[test]
fn snapshots_and_blocks_that_were_unused_for_longest_make_room() {
    let slots = SlotSizes { n_slots: 14, slot_bytes: 50, block_bytes: 10, budget_bytes: 1100 };
    let mut session = Session::new(RunnerInfo { slots: Some(slots), ..INFO });
    let mut random = Random::new(5);
    let prompts: Vec<Vec<u32>> = (0..6).map(|_| random.tokens(60)).collect();
    for prompt in &prompts {
        session.answer(prompt, 9, 1);
    }
    // A text takes 170 bytes of blocks and 250 of snapshots: two of them stay.
    assert!(session.answer(&prompts[5], 1, 1).1 <= BLOCK_SIZE);
    assert!(session.answer(&prompts[4], 1, 1).1 <= BLOCK_SIZE);
    assert_eq!(session.answer(&prompts[0], 1, 1).1, 60);
    let counters = session.scheduler.counters();
    assert!(counters.evictions > 20 && counters.snapshot_evictions > 5, "{counters:?}");
}

#[test]
fn a_model_without_recurrent_layers_has_no_slots() {
    let mut session = Session::new(RunnerInfo { slots: None, ..INFO });
    let prompt = Random::new(6).tokens(60);
    session.answer(&prompt, 30, 2);
    assert_eq!(session.scheduler.slots(), (0, 0, 0));
    assert_eq!(session.scheduler.counters().snapshots, 0);
    assert_eq!(session.runner.n_moved, 0);
}

#[test]
fn a_state_that_is_lost_changes_the_tokens() {
    let lost = std::panic::catch_unwind(|| {
        let mut session = Session::new(INFO);
        let prompt = Random::new(7).tokens(60);
        session.answer(&prompt, 5, 1);
        session.runner.slots.fill(0);
        session.answer(&prompt, 5, 1);
    });
    assert!(lost.is_err(), "the test's model does not depend on its slots");
}
