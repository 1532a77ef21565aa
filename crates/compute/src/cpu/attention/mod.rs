//! Attention over the blocks of the cache, by online softmax (Milakov and Gimelshein 2018; Dao et al. 2022).
//!
//! A task is one key-value head of one sequence and some rows, where a row is one query head of one token. It goes through
//! the sequence in tiles of 64 positions ([`tile`]), multiplies each by all its rows, and keeps every row's maximum, sum and
//! output ([`task`]).
//!
//! ```text
//!   sequence  | split 0                       | split 1           …
//!   tiles     | 64 | 64 | 64 | 64 | … | 64 |  | 64 | 64 | …          at multiples of 64 in every batch
//!   a row       online softmax over the tiles   from the start       then the splits are merged in order
//! ```
//!
//! Tiles and splits lie at fixed positions and a row's arithmetic never looks at other rows, so a token's result is the same
//! bit by bit in a long prompt, in a chunk, alone, and on any number of threads. Splits let several threads share one long
//! sequence.

mod layout;
mod softmax;
mod task;
mod tile;

pub(super) use layout::{CodeOffset, CodeOffsets, KeyLayout};

use super::parallel::Shared;
use super::{Cpu, CpuOptions};
use crate::{AttentionParams, HostBatch, KvLayer, Result, Tensor};
use std::cell::RefCell;
use task::{Output, Partial, Rows};

/// Rows of a task: enough that converting a tile takes little time beside its matmuls, few enough for the caches.
const TASK_ROWS: usize = 128;

/// With fewer tasks than this per thread, splits become tasks of their own.
const TASKS_PER_THREAD: usize = 4;

thread_local! {
    /// Results of splits that wait for their merge; on the thread that calls.
    static PARTIALS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn attention(
    cpu: &Cpu,
    y: &mut Tensor<Cpu>,
    qkv: &Tensor<Cpu>,
    kv: &KvLayer<Cpu>,
    batch: &HostBatch,
    params: &AttentionParams,
    sinks: Option<&Tensor<Cpu>>,
) -> Result<()> {
    let (h, pool, options) = (params.heads, &*cpu.pool, cpu.options);
    let n_tokens = batch.tokens().len();
    let v_dim = y.row_len() / h.n_heads;
    let is_part = kv.v.is_none() && (1..h.head_dim).contains(&v_dim);
    assert!(is_part || v_dim == h.head_dim, "{y:?} for {h:?}");
    assert!(qkv.row_len() >= h.n_heads * h.head_dim && y.row_len() == h.n_heads * v_dim, "{qkv:?}, {y:?}");
    assert_eq!((qkv.rows(), y.rows()), (n_tokens, n_tokens));
    let sinks = sinks.map(|sinks| sinks.floats());
    assert!(sinks.is_none_or(|sinks| sinks.len() == h.n_heads));
    let y = Shared::new(y.floats_mut());
    let (qkv_len, qkv) = (qkv.row_len(), qkv.floats());
    let plan = Plan { options, qkv, qkv_len, kv, v_dim, batch, params, sinks, y };
    let n_tasks = plan.n_tasks();
    let n_splits: usize = (0..n_tasks).map(|i| plan.rows(i).splits().len()).sum();
    if n_splits == n_tasks || n_tasks >= TASKS_PER_THREAD * pool.n_threads() {
        // The last tokens of a prompt see the most positions: long tasks first leaves short ones to fill the end.
        pool.for_each_chunk(n_tasks, 1, |range| {
            range.for_each(|i| plan.rows(n_tasks - 1 - i).attend(Output::All(&plan.y)));
        });
        return Ok(());
    }

    let len = (0..n_tasks).map(|i| plan.rows(i).partial_len()).max().unwrap_or(0);
    let tasks: Vec<(usize, usize)> =
        (0..n_tasks).flat_map(|i| plan.rows(i).splits().map(move |split| (i, split))).collect();
    PARTIALS.with_borrow_mut(|partials| {
        partials.resize(partials.len().max(tasks.len() * len), 0.0);
        let partials = Shared::new(partials);
        pool.for_each_chunk(tasks.len(), 1, |range| {
            for t in range {
                let rows = plan.rows(tasks[t].0);
                // SAFETY: partial `t` belongs to this task alone, and there is room for `tasks.len()` of them.
                let partial = unsafe { partials.slice(t * len, rows.partial_len()) };
                rows.attend(Output::Split(tasks[t].1, partial));
            }
        });
        pool.for_each_chunk(n_tasks, 1, |range| {
            for i in range {
                let rows = plan.rows(i);
                let first = tasks.partition_point(|t| t.0 < i);
                let part = |t: usize| {
                    // SAFETY: only this task reads the partials of these rows, after all were written.
                    unsafe { partials.slice(t * len, rows.partial_len()) }
                };
                let mut total = Partial::of(part(first), rows.count());
                for t in first + 1..first + rows.splits().len() {
                    total.merge(&Partial::of(part(t), rows.count()));
                }
                rows.finish(&total, &plan.y);
            }
        });
    });
    Ok(())
}

/// How a step is cut into tasks.
struct Plan<'a> {
    options: CpuOptions,
    qkv: &'a [f32],
    /// Elements of a row of `qkv`.
    qkv_len: usize,
    kv: &'a KvLayer<Cpu>,
    /// Elements of a value.
    v_dim: usize,
    batch: &'a HostBatch,
    params: &'a AttentionParams,
    sinks: Option<&'a [f32]>,
    y: Shared<'a, f32>,
}

impl Plan<'_> {
    fn tokens_per_task(&self) -> usize {
        let h = self.params.heads;
        (TASK_ROWS / (h.n_heads / h.n_kv_heads)).max(1)
    }

    fn n_tasks(&self) -> usize {
        let per_task = self.tokens_per_task();
        let chunks: usize = self.batch.seqs().iter().map(|s| s.tokens.len().div_ceil(per_task)).sum();
        chunks * self.params.heads.n_kv_heads
    }

    /// The rows of a task; tasks are numbered by sequence, then by token, then by head.
    fn rows(&self, task: usize) -> Rows<'_> {
        let n_kv_heads = self.params.heads.n_kv_heads;
        let per_task = self.tokens_per_task();
        let (mut chunk, kv_head) = (task / n_kv_heads, task % n_kv_heads);
        for seq in self.batch.seqs() {
            let n_chunks = seq.tokens.len().div_ceil(per_task);
            if chunk < n_chunks {
                let first = seq.tokens.start + chunk * per_task;
                return Rows {
                    options: self.options,
                    qkv: self.qkv,
                    qkv_len: self.qkv_len,
                    kv: self.kv,
                    v_dim: self.v_dim,
                    params: self.params,
                    sinks: self.sinks,
                    table: self.batch.block_table(seq),
                    first,
                    n_tokens: per_task.min(seq.tokens.end - first),
                    start: seq.start + chunk * per_task,
                    len: seq.start + seq.tokens.len(),
                    kv_head,
                };
            }
            chunk -= n_chunks;
        }
        panic!("task {task} of {}", self.n_tasks())
    }
}
