//! How long others wait while a long prompt is read, on a clock that the test turns.
//!
//! Method: each step takes as long as its tokens cost: a fixed time and so much for each token. Running streams must get their next
//! token after every step, and no step may hold more than its budget.

mod support;

use realizar_compute::BatchLimits;
use realizar_engine::{EngineConfig, Event, Runner, RunnerInfo, Scheduler, Step};
use std::collections::HashMap;
use std::time::Duration;
use support::{Case, FakeRunner, Random};

/// Of a step, and of each of its tokens.
const STEP_COST: Duration = Duration::from_millis(10);
const TOKEN_COST: Duration = Duration::from_micros(100);

/// The longest time between two tokens of each running stream, from when the prompt of `n_prompt` tokens arrives until its first token,
/// and when that came.
fn gaps_while_reading(n_prompt: usize, n_streams: usize, step_tokens: usize) -> (Vec<Duration>, Duration) {
    let limits = BatchLimits { n_tokens: 4096, n_seqs: 64, n_blocks: 100_000, n_logits: 64 };
    let info = RunnerInfo {
        vocab_size: support::VOCAB_SIZE,
        n_blocks: 4000,
        block_size: 16,
        context_length: 40_000,
        limits,
        slots: None,
        asynchronous: false,
        drafts: false,
    };
    let mut scheduler =
        Scheduler::new(&EngineConfig { step_tokens: Some(step_tokens), ..EngineConfig::default() }, info);
    let mut runner = FakeRunner::new(info);
    let mut random = Random::new(1);
    let (mut step, mut events, mut now) = (Step::default(), Vec::new(), Duration::ZERO);
    for i in 0..n_streams as u64 {
        let case = Case::greedy(random.tokens(20), 100_000);
        scheduler.add(i, case.request(), now, 0, &mut events).unwrap();
    }
    let long = n_streams as u64;
    let mut last: HashMap<u64, Duration> = HashMap::new();
    let mut gaps = vec![Duration::ZERO; n_streams];
    let mut arrived = None;
    for i in 0..100_000 {
        if i == 20 {
            let case = Case::greedy(random.tokens(n_prompt), 1);
            scheduler.add(long, case.request(), now, 0, &mut events).unwrap();
            arrived = Some(now);
        }
        assert!(scheduler.schedule(now, &mut step));
        assert!(step.batch.tokens.len() <= step_tokens);
        now += STEP_COST + TOKEN_COST * step.batch.tokens.len() as u32;
        let ticket = runner.launch(&step).unwrap();
        scheduler.commit(runner.finish(ticket).unwrap(), now, &mut events);
        for (id, event) in events.drain(..) {
            match event {
                Event::Token { .. } if id.request == long => return (gaps, now - arrived.unwrap()),
                Event::Token { .. } => {
                    let before = last.insert(id.request, now).unwrap_or(now);
                    if arrived.is_some() {
                        gaps[id.request as usize] = gaps[id.request as usize].max(now - before);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
    panic!("the long prompt is never read");
}

#[test]
fn a_long_prompt_delays_running_streams_by_no_more_than_a_chunk() {
    for (n_streams, step_tokens) in [(1, 512), (8, 512), (30, 128)] {
        let (gaps, first_token) = gaps_while_reading(30_000, n_streams, step_tokens);
        // A step: the streams' own tokens, and the chunk that fills it up.
        let chunk = step_tokens - n_streams;
        let most = STEP_COST + TOKEN_COST * (n_streams + chunk) as u32;
        assert!(
            gaps.iter().all(|g| *g <= most && *g > STEP_COST),
            "{gaps:?} with chunks of {chunk}, not {most:?}"
        );
        // And the prompt gets all that the streams leave: no step is spent on less.
        let n_steps = 30_000usize.div_ceil(chunk) as u32;
        assert!(first_token <= most * n_steps, "{first_token:?} for {n_steps} steps");
    }
}
