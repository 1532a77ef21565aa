//! Causal attention over the blocks of the cache, by online softmax (Milakov and Gimelshein 2018; Dao et al. 2022).
//!
//! A task is one key-value head of one sequence and up to [`TILE`] rows, where a row is one query head of one token. The task walks the
//! sequence's blocks once, decodes each to f32, and updates every row's running maximum, sum and output. A row's result does not
//! depend on the rows beside it.

use super::Cpu;
use super::activation::exp;
use super::isa::Isa;
use super::parallel::Shared;
use super::simd::{Kernel, LANES, Simd, dispatch};
use super::threads::Pool;
use crate::{AttentionParams, BatchSeq, DType, HostBatch, KvLayer, Result, Tensor};
use half::slice::HalfFloatSliceExt;
use std::cell::RefCell;

/// Rows of a task.
const TILE: usize = 32;

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn attention(
    pool: &Pool,
    isa: Isa,
    y: &mut Tensor<Cpu>,
    qkv: &Tensor<Cpu>,
    kv: &KvLayer<Cpu>,
    batch: &HostBatch,
    params: &AttentionParams,
) -> Result<()> {
    let h = params.heads;
    assert_eq!((qkv.row_len(), y.row_len()), (h.qkv_len(), h.n_heads * h.head_dim));
    assert_eq!((qkv.rows(), y.rows()), (batch.tokens().len(), batch.tokens().len()));
    let tokens_per_task = (TILE / (h.n_heads / h.n_kv_heads)).max(1);
    let tasks_of = |s: &BatchSeq| s.tokens.len().div_ceil(tokens_per_task) * h.n_kv_heads;
    let n_tasks = batch.seqs().iter().map(tasks_of).sum();
    let qkv = qkv.floats();
    let y = Shared::new(y.floats_mut());
    pool.for_each_chunk(n_tasks, 1, |range| {
        for mut task in range {
            let seq = batch.seqs().iter().find(|s| {
                let n = tasks_of(s);
                let here = task < n;
                task -= if here { 0 } else { n };
                here
            });
            let seq = seq.expect("a task belongs to a sequence");
            let first = seq.tokens.start + task / h.n_kv_heads * tokens_per_task;
            let n_tokens = tokens_per_task.min(seq.tokens.end - first);
            SCRATCH.with_borrow_mut(|scratch| {
                let task = Task {
                    y,
                    qkv,
                    kv,
                    table: batch.block_table(seq),
                    params,
                    first,
                    n_tokens,
                    start: seq.start + first - seq.tokens.start,
                    kv_head: task % h.n_kv_heads,
                    scratch,
                };
                // SAFETY: the processor has `isa`. The task writes the rows of its tokens and heads, which no other task has.
                unsafe { dispatch(isa, task) }
            });
        }
    });
    Ok(())
}

struct Task<'a> {
    y: Shared<f32>,
    qkv: &'a [f32],
    kv: &'a KvLayer<Cpu>,
    table: &'a [u32],
    params: &'a AttentionParams,
    /// The first of the task's tokens in the batch.
    first: usize,
    n_tokens: usize,
    /// Position of that token.
    start: usize,
    kv_head: usize,
    scratch: &'a mut Vec<f32>,
}

/// Cuts `n` elements off the front.
fn take<'a>(rest: &mut &'a mut [f32], n: usize) -> &'a mut [f32] {
    let (front, back) = std::mem::take(rest).split_at_mut(n);
    *rest = back;
    front
}

impl Kernel for Task<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { params, kv, .. } = self;
        let h = params.heads;
        let dim = h.head_dim;
        // Heads are padded with zeros to whole vectors; zeros change no product.
        let padded = dim.next_multiple_of(LANES);
        let group = h.n_heads / h.n_kv_heads;
        let n_rows = self.n_tokens * group;
        let block_size = kv.k.shape()[2];
        let head_bytes = kv.k.dtype().bytes_for(dim).expect("a cache was made of whole blocks");

        let scratch = self.scratch;
        scratch.clear();
        scratch.resize(
            2 * n_rows * padded
                + block_size * padded
                + dim * block_size
                + (n_rows + 1) * block_size
                + 2 * n_rows,
            0.0,
        );
        let mut rest = &mut scratch[..];
        let q = take(&mut rest, n_rows * padded);
        let out = take(&mut rest, n_rows * padded);
        let block = take(&mut rest, block_size * padded);
        let plain = take(&mut rest, dim * block_size);
        let weights = take(&mut rest, block_size);
        let scores = take(&mut rest, n_rows * block_size);
        let (max, sum) = rest.split_at_mut(n_rows);
        max.fill(f32::NEG_INFINITY);
        for r in 0..n_rows {
            let (token, head) = (self.first + r / group, self.kv_head * group + r % group);
            let src = &self.qkv[token * h.qkv_len() + head * dim..][..dim];
            q[r * padded..][..dim].iter_mut().zip(src).for_each(|(q, x)| *q = x * params.scale);
        }

        let end = self.start + self.n_tokens;
        let begin = params.window.map_or(0, |w| (self.start + 1).saturating_sub(w));
        for b in begin / block_size..end.div_ceil(block_size) {
            let at = (self.table[b] as usize * h.n_kv_heads + self.kv_head) * block_size * head_bytes;
            let n_here = block_size.min(end - b * block_size);
            let bytes = at..at + n_here * head_bytes;
            // Positions of this block that a row sees: its own and those before it, inside the window.
            let seen = |r: usize| {
                let pos = self.start + r / group;
                let from =
                    params.window.map_or(0, |w| (pos + 1).saturating_sub(w)).saturating_sub(b * block_size);
                let to = (pos + 1).saturating_sub(b * block_size).min(n_here);
                from.min(to)..to
            };
            decode(kv.k.dtype(), &kv.k.buffer().bytes()[bytes.clone()], plain, block, n_here, dim, padded);
            // All rows' scores come first, so that one buffer serves for the decoded keys and then for the values.
            for r in 0..n_rows {
                let q = &q[r * padded..][..padded];
                for p in seen(r) {
                    // SAFETY: the contract of `Kernel::run` is this function's own; both slices have `padded` elements.
                    scores[r * block_size + p] = unsafe { dot::<S>(q, &block[p * padded..][..padded]) };
                }
            }
            decode(kv.v.dtype(), &kv.v.buffer().bytes()[bytes], plain, block, n_here, dim, padded);
            for r in 0..n_rows {
                let seen = seen(r);
                if seen.is_empty() {
                    continue;
                }
                let w = &mut weights[seen.clone()];
                w.copy_from_slice(&scores[r * block_size..][seen.clone()]);
                if let Some(cap) = params.softcap {
                    w.iter_mut().for_each(|s| *s = cap * (*s / cap).tanh());
                }
                let new_max = w.iter().copied().fold(max[r], f32::max);
                let shrink = exp(max[r] - new_max);
                w.iter_mut().for_each(|s| *s = exp(*s - new_max));
                sum[r] = sum[r] * shrink + w.iter().sum::<f32>();
                max[r] = new_max;
                let out = &mut out[r * padded..][..padded];
                // SAFETY: as above; `block` has a row of `padded` values for every position seen.
                unsafe { accumulate::<S>(out, shrink, w, &block[seen.start * padded..]) };
            }
        }

        for r in 0..n_rows {
            let (token, head) = (self.first + r / group, self.kv_head * group + r % group);
            // SAFETY: this row belongs to this task alone, and the output has a row per token.
            let y = unsafe { self.y.slice((token * h.n_heads + head) * dim, dim) };
            let inv = 1.0 / sum[r];
            y.iter_mut().zip(&out[r * padded..]).for_each(|(y, o)| *y = o * inv);
        }
    }
}

/// Writes `n` heads as f32 rows of `padded` elements; the padding stays as it is (zero).
#[inline(always)]
fn decode(
    dtype: DType,
    bytes: &[u8],
    plain: &mut [f32],
    rows: &mut [f32],
    n: usize,
    dim: usize,
    padded: usize,
) {
    let plain = &mut plain[..n * dim];
    match dtype {
        DType::F16 => bytemuck::cast_slice::<u8, half::f16>(bytes).convert_to_f32_slice(plain),
        _ => (dtype.spec().dequantize)(bytes, plain),
    }
    for (row, head) in rows.chunks_exact_mut(padded).zip(plain.chunks_exact(dim)) {
        row[..dim].copy_from_slice(head);
    }
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn dot<S: Simd>(a: &[f32], b: &[f32]) -> f32 {
    assert!(a.len() == b.len() && a.len().is_multiple_of(LANES));
    let mut lanes = [0.0; LANES];
    // SAFETY: the loads stay within the slices, whose length is a multiple of a vector's.
    unsafe {
        let mut sum = S::splat(0.0);
        for i in (0..a.len()).step_by(LANES) {
            sum = S::fma(S::load_f32(a.as_ptr().add(i)), S::load_f32(b.as_ptr().add(i)), sum);
        }
        S::store_f32(lanes.as_mut_ptr(), sum);
    }
    let half: [f32; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
    let quarter: [f32; 4] = std::array::from_fn(|i| half[i] + half[i + 4]);
    (quarter[0] + quarter[2]) + (quarter[1] + quarter[3])
}

/// `out = out · shrink + Σ weights[i] · rows[i]`, with rows of `out.len()` elements.
///
/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn accumulate<S: Simd>(out: &mut [f32], shrink: f32, weights: &[f32], rows: &[f32]) {
    let n = out.len();
    assert!(n.is_multiple_of(LANES) && rows.len() >= n * weights.len());
    for i in (0..n).step_by(LANES) {
        // SAFETY: the loads and the store stay within the slices, as checked.
        unsafe {
            let o = out.as_mut_ptr().add(i);
            let mut sum = S::mul(S::load_f32(o), S::splat(shrink));
            for (r, &w) in weights.iter().enumerate() {
                sum = S::fma(S::splat(w), S::load_f32(rows.as_ptr().add(r * n + i)), sum);
            }
            S::store_f32(o, sum);
        }
    }
}
