//! A decode step on the host allocates no more often for a larger batch or a longer context; what it allocates are a few buffers of the
//! step as a whole. In a binary of its own, since it counts what all threads allocate.

use realizar_engine::load::{CacheSize, Device, LoadOptions, load};
use realizar_engine::{Row, Runner, SamplingParams, Step};
use realizar_model::source;
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

static N_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches only an atomic number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        N_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
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
    let before = N_ALLOCATIONS.load(Ordering::Relaxed);
    let ticket = runner.launch(step).unwrap();
    let sampled = runner.finish(ticket).unwrap();
    let after = N_ALLOCATIONS.load(Ordering::Relaxed);
    assert_eq!(sampled.rows.len(), step.rows.len());
    after - before
}

#[test]
fn a_step_allocates_no_more_often_for_a_larger_batch_or_a_longer_context() {
    let demo = source::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf")).unwrap();
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let sampled = SamplingParams { temperature: 0.8, top_k: 20, top_p: 0.9, ..SamplingParams::default() };
    let penalized = SamplingParams { repetition_penalty: 1.2, presence_penalty: 0.3, ..sampled.clone() };
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
    let mut runner = load(&*demo, &options).unwrap().runner;
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
