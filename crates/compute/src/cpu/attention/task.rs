//! The rows of one key-value head over one sequence: online softmax tile by tile.

use super::layout::{CodeOffset, CodeOffsets, KeyLayout, head_bytes};
use super::softmax::{Weights, exp2, larger, softmax_tile};
use super::tile::{
    Arithmetic, Bf16, Bf16Number, CHUNKS, Codes, F16Number, F32Number, Integers, Number, Numbers, ROWS,
    SCALED, Scales, Single, Source, TILE, TINY, Tile, Words, reduce,
};
use crate::cpu::memory::Line;
use crate::cpu::parallel::Shared;
use crate::cpu::simd::{Kernel, LANES, LINE, Simd, dispatch};
use crate::cpu::{Cpu, CpuOptions};
use crate::{AttentionParams, DType, KvLayer};
use half::f16;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

/// Positions whose result is computed by itself and merged with the others'; a multiple of a tile.
pub(super) const SPLIT: usize = 512;

/// Up to so many rows, numbers of the cache are converted for each matmul instead of once for all.
const DIRECT_ROWS: usize = 2 * ROWS;

thread_local! {
    static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// One key-value head's queries of some consecutive tokens of a sequence.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) options: CpuOptions,
    pub(super) qkv: &'a [f32],
    /// Elements of a row of `qkv`.
    pub(super) qkv_len: usize,
    pub(super) kv: &'a KvLayer<Cpu>,
    /// Elements of a value: those of a head, or fewer, from its first on.
    pub(super) v_dim: usize,
    pub(super) params: &'a AttentionParams,
    /// `[n_heads]`
    pub(super) sinks: Option<&'a [f32]>,
    pub(super) table: &'a [u32],
    /// The first of the tokens in the batch.
    pub(super) first: usize,
    pub(super) n_tokens: usize,
    /// Position of that token.
    pub(super) start: usize,
    /// Tokens of the sequence, those of the step among them.
    pub(super) len: usize,
    pub(super) kv_head: usize,
}

/// What to compute, and where it goes.
pub(super) enum Output<'a> {
    /// All splits, merged: the rows of the result.
    All(&'a Shared<'a, f32>),
    /// One split, in the form of [`Partial`].
    Split(usize, &'a mut [f32]),
}

impl Rows<'_> {
    fn group(&self) -> usize {
        self.params.heads.n_heads / self.params.heads.n_kv_heads
    }

    /// Number of rows, padded so that they go by four.
    pub(super) fn count(&self) -> usize {
        (self.n_tokens * self.group()).next_multiple_of(ROWS)
    }

    /// Numbers of a head, padded to whole vectors.
    fn dim(&self) -> usize {
        self.params.heads.head_dim.next_multiple_of(LANES)
    }

    /// Positions that any row sees.
    fn positions(&self) -> Range<usize> {
        self.seen(0).start..self.seen((self.n_tokens - 1) * self.group()).end
    }

    /// Positions that row `r` sees; none if it is padding.
    fn seen(&self, r: usize) -> Range<usize> {
        let token = r / self.group();
        if token >= self.n_tokens {
            return 0..0;
        }
        self.params.seen(self.start + token, self.len)
    }

    pub(super) fn splits(&self) -> Range<usize> {
        let Range { start, end } = self.positions();
        start / SPLIT..end.div_ceil(SPLIT)
    }

    /// Numbers of a [`Partial`].
    pub(super) fn partial_len(&self) -> usize {
        self.count() * (self.dim() + 2)
    }

    /// Computes the rows.
    pub(super) fn attend(self, output: Output<'_>) {
        match (KeyLayout::of(self.kv), self.kv.k.dtype()) {
            (KeyLayout::ByElement, DType::F16) => self.run::<Numbers<F16Number>>(output),
            (KeyLayout::ByElement, DType::BF16) => self.run::<Numbers<Bf16Number>>(output),
            (KeyLayout::Codes, _) if !self.options.exact => self.run::<Codes>(output),
            // As they are, or decoded first.
            _ => self.run::<Numbers<F32Number>>(output),
        }
    }

    fn cache(&self) -> HeadCache<'_> {
        HeadCache {
            k: self.kv.k.buffer().bytes(),
            v: self.kv.values().buffer().bytes(),
            table: self.table,
            n_kv_heads: self.params.heads.n_kv_heads,
            kv_head: self.kv_head,
            block_size: self.kv.k.shape()[2],
            head_bytes: head_bytes(&self.kv.k),
        }
    }

    /// Whether the cache is read as it lies.
    fn is_direct(&self) -> bool {
        match KeyLayout::of(self.kv) {
            KeyLayout::ByElement => true,
            KeyLayout::Codes => !self.options.exact,
            KeyLayout::ByPosition => false,
        }
    }

    fn run<L>(self, output: Output<'_>)
    where
        for<'a> Task<'a, L>: Kernel,
    {
        SCRATCH.with_borrow_mut(|scratch| {
            let task = Task::<L> { rows: self, output, scratch, source: PhantomData };
            // SAFETY: `Cpu::new` checked that the processor has `options.isa`. The task writes the rows of its tokens and heads, which no other task has.
            unsafe { dispatch(self.options.isa, task) }
        });
    }

    /// Takes what row `r` loses by distance (ALiBi) off its scores of the positions from `at` on, which are multiplied with `factor` later.
    #[inline(always)]
    fn subtract_distances(&self, scores: &mut [f32; TILE], r: usize, at: usize, factor: f32) {
        let (token, head) = (r / self.group(), self.kv_head * self.group() + r % self.group());
        let slope = self.params.slope(head) * self.units() / factor;
        let position = (self.start + token) as f32;
        for (i, score) in scores.iter_mut().enumerate() {
            *score -= slope * (position - (at + i) as f32).abs();
        }
    }

    /// What scores are multiplied with: they are exponents of 2, where no cap comes between.
    fn units(&self) -> f32 {
        if self.params.softcap.is_some() { 1.0 } else { std::f32::consts::LOG2_E }
    }

    /// Writes the rows of the result.
    pub(super) fn finish(&self, total: &Partial<'_>, y: &Shared<'_, f32>) {
        let (h, v_dim, group) = (self.params.heads, self.v_dim, self.group());
        for r in 0..self.n_tokens * group {
            let (token, head) = (self.first + r / group, self.kv_head * group + r % group);
            // SAFETY: this row belongs to this task alone, and the output has a row per token.
            let y = unsafe { y.slice((token * h.n_heads + head) * v_dim, v_dim) };
            let inv = self.sinks.map_or(1.0 / total.sum[r], |sinks| total.share(r, sinks[head]));
            y.iter_mut().zip(&total.out[r * self.dim()..]).for_each(|(y, o)| *y = o * inv);
        }
    }
}

/// The rows' result over some positions, before it is divided by the sum of its weights.
pub(super) struct Partial<'a> {
    /// `[rows, dim]`, weighted by `2^(score - max)`.
    out: &'a mut [f32],
    /// Largest score of each row, in units of log 2; negative infinity where a row saw nothing.
    max: &'a mut [f32],
    /// Sum of each row's weights.
    sum: &'a mut [f32],
}

impl<'a> Partial<'a> {
    /// Divides up the memory of a partial result.
    pub(super) fn of(values: &'a mut [f32], n_rows: usize) -> Self {
        let n = values.len();
        let (out, rest) = values.split_at_mut(n - 2 * n_rows);
        let (max, sum) = rest.split_at_mut(n_rows);
        Self { out, max, sum }
    }

    #[inline(always)]
    fn clear(&mut self) {
        self.out.fill(0.0);
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
    }

    /// What a row's result has to be multiplied with where a sink of this score, in units of e, joins the sum of its weights.
    fn share(&self, r: usize, sink: f32) -> f32 {
        let sink = sink * std::f32::consts::LOG2_E;
        let max = larger(self.max[r], sink);
        let seen = exp2(self.max[r] - max);
        seen / (self.sum[r] * seen + exp2(sink - max))
    }

    /// Adds the result over other positions.
    #[inline(always)]
    pub(super) fn merge(&mut self, other: &Partial<'_>) {
        let dim = self.out.len() / self.max.len();
        for r in 0..self.max.len() {
            if other.max[r] == f32::NEG_INFINITY {
                continue;
            }
            let max = larger(self.max[r], other.max[r]);
            let (a, b) = (exp2(self.max[r] - max), exp2(other.max[r] - max));
            self.max[r] = max;
            self.sum[r] = self.sum[r] * a + other.sum[r] * b;
            let (x, y) = (&mut self.out[r * dim..][..dim], &other.out[r * dim..][..dim]);
            for i in 0..dim {
                x[i] = x[i] * a + y[i] * b;
            }
        }
    }
}

struct Task<'a, L> {
    rows: Rows<'a>,
    output: Output<'a>,
    scratch: &'a mut Vec<Line>,
    /// How the cache is read.
    source: PhantomData<L>,
}

/// Cuts `n` elements off the front.
fn take<'a>(rest: &mut &'a mut [f32], n: usize) -> &'a mut [f32] {
    let (front, back) = std::mem::take(rest).split_at_mut(n);
    *rest = back;
    front
}

impl Kernel for Task<'_, Codes> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the contract of `compute` is that of `Kernel::run`, whose memory is the output.
        unsafe { self.compute::<S, Integers>() }
    }
}

impl<N: Number> Kernel for Task<'_, Numbers<N>> {
    const USES_BF16: bool = true;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // A cache of full precision is multiplied in full precision.
        let full = self.rows.options.exact || self.rows.kv.k.dtype() == DType::F32;
        // SAFETY: the contract of `compute` is that of `Kernel::run`, whose memory is the output.
        unsafe {
            if S::HAS_BF16_DOT && !full { self.compute::<S, Bf16>() } else { self.compute::<S, Single>() }
        }
    }
}

impl<L> Task<'_, L> {
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Output*: nobody else uses the rows of the result that `self` computes.
    #[inline(always)]
    unsafe fn compute<S: Simd, A: Arithmetic>(self)
    where
        L: Source<A>,
    {
        let Self { rows, output, scratch, .. } = self;
        let (n_rows, dim) = (rows.count(), rows.dim());
        let partial_len = rows.partial_len().next_multiple_of(LANES);
        let padded = n_rows.next_multiple_of(LANES);
        let sizes = [n_rows * dim, padded, n_rows * TILE, 2 * TILE * dim, 2 * TILE * dim, 2 * partial_len];
        let n_lines = sizes.iter().sum::<usize>() / LANES;
        scratch.resize(scratch.len().max(n_lines), bytemuck::Zeroable::zeroed());
        let mut rest = bytemuck::cast_slice_mut(&mut scratch[..]);
        let [q, q_factors, scores, staged, words, partials] = sizes.map(|n| take(&mut rest, n));
        let (one, total) = partials.split_at_mut(partial_len);
        // SAFETY: the instructions are this function's contract (1); each part of the scratch has the size that its field in `TileLoop` says.
        unsafe {
            rows.queries::<S, A>(q, q_factors);
            let mut tiles = TileLoop { rows, q, q_factors, scores, staged, words };
            let (splits, total, y) = match output {
                Output::Split(split, partial) => (split..split + 1, partial, None),
                Output::All(y) => (rows.splits(), &mut total[..rows.partial_len()], Some(y)),
            };
            let mut total = Partial::of(total, n_rows);
            let mut one = Partial::of(&mut one[..rows.partial_len()], n_rows);
            let first = splits.start;
            for split in splits {
                // One call, since it is inlined: the kernel is large.
                let partial = if split == first { &mut total } else { &mut one };
                tiles = tiles.run_split::<S, A, L>(split, partial);
                if split != first {
                    total.merge(&one);
                }
            }
            if let Some(y) = y {
                rows.finish(&total, y);
            }
        }
    }
}

impl Rows<'_> {
    /// The queries as words: `[rows, dim]`, scaled so that scores are exponents of 2 (where no cap comes between); and what each row's
    /// scores have to be multiplied with.
    ///
    /// # Safety
    /// *Instructions*: those of [`Simd`].
    #[inline(always)]
    unsafe fn queries<S: Simd, A: Arithmetic>(&self, q: &mut [f32], factors: &mut [f32]) {
        let (h, dim, group) = (self.params.heads, self.dim(), self.group());
        let factor = self.params.scale * self.units();
        for (r, (q, row_factor)) in q.chunks_exact_mut(dim).zip(factors).enumerate() {
            let n = if r < self.n_tokens * group { h.head_dim } else { 0 };
            let (token, head) = (self.first + r / group, self.kv_head * group + r % group);
            if n > 0 {
                let src = &self.qkv[token * self.qkv_len + head * n..][..n];
                for (q, x) in q[..n].iter_mut().zip(src) {
                    *q = x * factor;
                }
            }
            q[n..].fill(0.0);
            *row_factor = 1.0;
            // SAFETY: a row is dim / 16 whole vectors, and its words take no more room; the instructions are this function's contract.
            unsafe {
                if let Some(largest) = A::LARGEST {
                    let mut lanes = S::splat(TINY);
                    for numbers in q.as_chunks::<LANES>().0 {
                        lanes = S::max_magnitude(lanes, S::load_f32(numbers.as_ptr()));
                    }
                    *row_factor = S::first(reduce::<S>(lanes, |a, b| S::max_magnitude(a, b))) / largest;
                    let inv = 1.0 / *row_factor;
                    q.iter_mut().for_each(|x| *x *= inv);
                }
                for i in 0..dim / LANES {
                    let numbers = S::load_f32(q[i * LANES..].as_ptr());
                    A::write::<S>(q.as_mut_ptr().cast::<u8>().add(i * LINE / A::STEP), numbers);
                }
            }
        }
    }
}

/// What a task keeps while it goes through its tiles.
struct TileLoop<'a, 'b> {
    rows: Rows<'a>,
    /// `[rows, dim]` words
    q: &'b mut [f32],
    /// `[rows]`: what their scores have to be multiplied with, where keys are codes.
    q_factors: &'b [f32],
    /// `[rows, 64]`: scores, then weights
    scores: &'b mut [f32],
    /// Keys `[dim, 64]` and values `[64, dim]` of a tile as numbers, where they can't be read from the cache as it is.
    staged: &'b mut [f32],
    /// Keys and values of a tile as words.
    words: &'b mut [f32],
}

impl TileLoop<'_, '_> {
    /// The rows' result over one split.
    ///
    /// # Safety
    /// *Instructions*: those of [`Simd`].
    #[inline(always)]
    unsafe fn run_split<S: Simd, A: Arithmetic, L: Source<A>>(
        self,
        split: usize,
        partial: &mut Partial<'_>,
    ) -> Self {
        let mut this = self;
        partial.clear();
        let seen = this.rows.positions();
        let (begin, end) = (seen.start.max(split * SPLIT), seen.end.min((split + 1) * SPLIT));
        for at in (begin / TILE * TILE..end).step_by(TILE) {
            let here = at.max(begin)..end.min(at + TILE);
            // SAFETY: `stage` makes tiles whose pointers are readable in the form of `L`; `words` has room for a tile's keys and values.
            unsafe {
                let tile = this.stage::<S, A, L>(at, here);
                if this.rows.count() <= DIRECT_ROWS {
                    this.tile::<S, A, L>(at, &tile, partial);
                } else {
                    let (k, v) = this.words.split_at_mut(TILE * tile.dim);
                    let (k, v) = (k.as_mut_ptr().cast(), v.as_mut_ptr().cast());
                    let tile = tile.convert::<S, A, L>(k, v);
                    this.tile::<S, A, Words>(at, &tile, partial);
                }
            }
        }
        this
    }

    /// Adds one tile to the result.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Tile*: it is readable in the form of `L`.
    #[inline(always)]
    unsafe fn tile<S: Simd, A: Arithmetic, L: Source<A>>(
        &mut self,
        at: usize,
        tile: &Tile,
        partial: &mut Partial<'_>,
    ) {
        let cap = self.rows.params.softcap;
        let dim = tile.dim;
        for r in (0..self.rows.count()).step_by(ROWS) {
            let mut seen = [0..0, 0..0, 0..0, 0..0];
            for (i, seen) in seen.iter_mut().enumerate() {
                let all = self.rows.seen(r + i);
                *seen = all.start.clamp(at, at + TILE) - at..all.end.clamp(at, at + TILE) - at;
            }
            if seen.iter().all(|s| s.is_empty()) {
                continue;
            }
            let scores = &mut self.scores[r * TILE..][..ROWS * TILE];
            // SAFETY: the tile is readable (2), and each array has `ROWS` rows from `r` on, since their number is a multiple of it.
            unsafe {
                tile.scores::<S, A, L>(scores.as_mut_ptr(), self.q[r * dim..].as_ptr(), dim);
                let rows = scores.as_chunks_mut::<TILE>().0;
                let rows: &mut [[f32; TILE]; ROWS] = rows.try_into().expect("four rows");
                let max = partial.max[r..].first_chunk_mut().expect("rows go by four");
                let sum = partial.sum[r..].first_chunk_mut().expect("rows go by four");
                let q_factors = self.q_factors[r..].first_chunk().expect("rows go by four");
                if self.rows.params.alibi {
                    for (i, scores) in rows.iter_mut().enumerate() {
                        self.rows.subtract_distances(scores, r + i, at, q_factors[i]);
                    }
                }
                let of_tile = A::LARGEST.is_some();
                let Weights { weights, shares, rescale } =
                    softmax_tile::<S>(rows, q_factors, &seen, cap, of_tile, max, sum);
                let out = partial.out[r * dim..][..ROWS * dim].as_mut_ptr();
                let write = |row: &mut [f32; TILE], weights: &[S::F; CHUNKS]| {
                    for c in 0..CHUNKS {
                        A::write::<S>(row.as_mut_ptr().cast::<u8>().add(c * LINE / A::STEP), weights[c]);
                    }
                };
                if A::LARGEST.is_none() {
                    for i in 0..ROWS {
                        write(&mut rows[i], &weights[i]);
                    }
                    let range = 0..self.rows.v_dim.next_multiple_of(LANES);
                    tile.values::<S, A, L>(out, &rescale, &shares, rows.as_ptr().cast(), range);
                    continue;
                }
                let scales = tile.scales.expect("codes have scales");
                for b in 0..dim / SCALED {
                    // A position's weight takes the scale of its values.
                    let (mut of_values, mut factor) = scales.of_values::<S>(b, &seen[0]);
                    let mut factors = shares;
                    for i in 0..ROWS {
                        if i > 0 && seen[i] != seen[i - 1] {
                            (of_values, factor) = scales.of_values::<S>(b, &seen[i]);
                        }
                        factors[i] *= factor;
                        let mut scaled = of_values;
                        for c in 0..CHUNKS {
                            scaled[c] = S::mul(weights[i][c], of_values[c]);
                        }
                        write(&mut rows[i], &scaled);
                    }
                    let range = b * SCALED..(b + 1) * SCALED;
                    tile.values::<S, A, L>(out, &rescale, &factors, rows.as_ptr().cast(), range);
                }
            }
        }
    }

    /// The tile at position `at`, of which `seen` is wanted: where it lies in the cache if it can be read as it is, else decoded.
    ///
    /// # Safety
    /// *Instructions*: those of [`Simd`].
    #[inline(always)]
    unsafe fn stage<S: Simd, A: Arithmetic, L: Source<A>>(&mut self, at: usize, seen: Range<usize>) -> Tile {
        if self.rows.is_direct() {
            // SAFETY: the contract of `find` is this one's.
            unsafe { self.find::<S, A, L>(at, seen) }
        } else {
            self.decode::<A>(at, seen)
        }
    }

    /// Finds the tile in the cache. Values of a chunk that rows attend to only in part are copied, with zeros in place of the others.
    ///
    /// # Safety
    /// *Instructions*: those of [`Simd`].
    #[inline(always)]
    unsafe fn find<S: Simd, A: Arithmetic, L: Source<A>>(&mut self, at: usize, seen: Range<usize>) -> Tile {
        let (cache, dim) = (self.rows.cache(), self.rows.dim());
        let block_size = cache.block_size;
        // Codes go by pairs of elements, and their values have no scales between them.
        let is_code = KeyLayout::of(self.rows.kv) == KeyLayout::Codes;
        let key_bytes = if is_code { A::STEP } else { L::BYTES };
        let value_bytes = dim * L::BYTES;
        let offsets = CodeOffsets { head_dim: dim, block_size };
        let none = [std::ptr::null(); CHUNKS];
        let mut tile = Tile {
            n_chunks: (seen.end - at).div_ceil(LANES),
            dim,
            k: none,
            k_step: A::STEP * block_size * L::BYTES,
            v: none,
            v_step: A::STEP * value_bytes,
            next: (none, none),
            scales: None,
        };
        let mut scales = (none, none);
        let mut place = BlockPosition::of(at, block_size);
        let to_v = bytemuck::cast_slice_mut::<f32, u8>(&mut self.staged[TILE * dim..]);
        for (c, to) in to_v.chunks_exact_mut(LANES * dim * 4).take(CHUNKS).enumerate() {
            let chunk = at + c * LANES..at + (c + 1) * LANES;
            if c < tile.n_chunks {
                let wanted = chunk.start.max(seen.start)..chunk.end.min(seen.end);
                // Keys of a chunk that no row attends to may be any: their weights are zero.
                let head = cache.start(if wanted.is_empty() { seen.start / block_size } else { place.block });
                let keys = &cache.k[head..][..block_size * cache.head_bytes];
                tile.k[c] = keys[place.first * key_bytes..].as_ptr();
                let values = &cache.v[head + place.first * value_bytes..][..LANES * value_bytes];
                tile.v[c] = values.as_ptr();
                if is_code {
                    let scale = offsets.scale(place.first, 0);
                    (scales.0[c], scales.1[c]) = (keys[scale..].as_ptr(), cache.v[head + scale..].as_ptr());
                } else if wanted != chunk {
                    let wanted =
                        wanted.start.saturating_sub(chunk.start)..wanted.end.saturating_sub(chunk.start);
                    tile.v[c] = copy_wanted(to, values, value_bytes, wanted);
                }
            }
            place.advance(block_size);
        }
        let end = self.rows.positions().end;
        for c in 0..CHUNKS {
            if at + TILE + c * LANES < end {
                let head = cache.start(place.block);
                tile.next.0[c] = cache.k[head + place.first * key_bytes..].as_ptr();
                tile.next.1[c] = cache.v[head + place.first * value_bytes..].as_ptr();
                if is_code {
                    // SAFETY: the contract of `prefetch_scales` is this function's.
                    unsafe { cache.prefetch_scales::<S>(head, place.first, offsets) }
                }
            }
            place.advance(block_size);
        }
        if is_code {
            // Where no row attends to a position, the scales of its values may be any.
            let any = scales.1[0];
            scales.1[tile.n_chunks..].fill(any);
            let step = offsets.scale(0, 1) - offsets.scale(0, 0);
            tile.scales = Some(Scales { k: scales.0, v: scales.1, step });
        }
        tile
    }

    /// Decodes the tile into `staged`.
    fn decode<A: Arithmetic>(&mut self, at: usize, seen: Range<usize>) -> Tile {
        let Rows { kv, params, .. } = self.rows;
        let (cache, dim, head_dim) = (self.rows.cache(), self.rows.dim(), params.heads.head_dim);
        let HeadCache { block_size, head_bytes, .. } = cache;
        let n_chunks = (seen.end - at).div_ceil(LANES);
        let (to_k, to_v) = self.staged.split_at_mut(TILE * dim);
        let dequantize = kv.k.dtype().spec().dequantize;
        let offsets = CodeOffsets { head_dim, block_size };
        to_k.fill(0.0);
        to_v.fill(0.0);
        for pos in seen {
            let (head, first) = (cache.start(pos / block_size), pos % block_size);
            let decode = |cache: &[u8], to: &mut [f32], offset_of: CodeOffset| {
                let block = &cache[head..][..block_size * head_bytes];
                if KeyLayout::of(kv) == KeyLayout::ByPosition {
                    dequantize(&block[first * head_bytes..][..head_bytes], to);
                    return;
                }
                for (d, to) in to.iter_mut().enumerate() {
                    let at = offsets.scale(first, d / SCALED);
                    let scale = f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
                    *to = scale * f32::from(block[offset_of(offsets, first, d)].cast_signed());
                }
            };
            let i = pos - at;
            let row = &mut to_v[i * dim..][..head_dim];
            // The values' row serves for the key before the values come.
            decode(cache.k, row, CodeOffsets::key);
            row.iter().zip(to_k[i..].iter_mut().step_by(TILE)).for_each(|(x, to)| *to = *x);
            if kv.v.is_some() {
                decode(cache.v, row, CodeOffsets::value);
            }
        }
        let chunks = |p: &[f32], distance: usize| {
            std::array::from_fn::<_, CHUNKS, _>(|c| p[c * distance..].as_ptr().cast::<u8>())
        };
        let (k, v) = (chunks(to_k, LANES), chunks(to_v, LANES * dim));
        let (k_step, v_step) = (A::STEP * TILE * 4, A::STEP * dim * 4);
        // Decoding has already read the cache ahead of the matmuls.
        Tile { n_chunks, dim, k, k_step, v, v_step, next: (k, v), scales: None }
    }
}

/// The part of a layer's cache that belongs to one key-value head of a sequence.
struct HeadCache<'a> {
    /// All keys of the layer
    k: &'a [u8],
    /// All values of the layer
    v: &'a [u8],
    /// Blocks of the sequence
    table: &'a [u32],
    n_kv_heads: usize,
    kv_head: usize,
    /// Positions of a block
    block_size: usize,
    /// Bytes of one key or value
    head_bytes: usize,
}

impl HeadCache<'_> {
    /// Where the head's part of a block of the sequence begins, in bytes.
    fn start(&self, block: usize) -> usize {
        (self.table[block] as usize * self.n_kv_heads + self.kv_head) * self.block_size * self.head_bytes
    }

    /// Prefetches the scales of 16 positions from `first` on in the block at `head`.
    ///
    /// # Safety
    /// *Instructions*: those of [`Simd`].
    #[inline(always)]
    unsafe fn prefetch_scales<S: Simd>(&self, head: usize, first: usize, offsets: CodeOffsets) {
        // Blocks of small size have the scales of several elements in a line.
        let per_line = (LINE / (2 * self.block_size)).max(1);
        for b in (0..offsets.head_dim / SCALED).step_by(per_line) {
            let scales = head + offsets.scale(first, b);
            // SAFETY: a prefetch takes any address; the instructions are this function's contract.
            unsafe {
                S::prefetch_l2(self.k[scales..].as_ptr());
                S::prefetch_l2(self.v[scales..].as_ptr());
            }
        }
    }
}

/// Where a position lies in a sequence's cache.
struct BlockPosition {
    /// Number of the block in the sequence
    block: usize,
    /// Position in the block
    first: usize,
}

impl BlockPosition {
    fn of(position: usize, block_size: usize) -> Self {
        Self { block: position / block_size, first: position % block_size }
    }

    /// Goes on to the next chunk; blocks are whole chunks.
    fn advance(&mut self, block_size: usize) {
        self.first += LANES;
        if self.first == block_size {
            (self.block, self.first) = (self.block + 1, 0);
        }
    }
}

/// Copies the `wanted` of a chunk's values and puts zeros in place of the others: a weight of 0 does not hide what is no number.
fn copy_wanted(to: &mut [u8], values: &[u8], value_bytes: usize, wanted: Range<usize>) -> *const u8 {
    let to = &mut to[..LANES * value_bytes];
    to.fill(0);
    if !wanted.is_empty() {
        let bytes = wanted.start * value_bytes..wanted.end * value_bytes;
        to[bytes.clone()].copy_from_slice(&values[bytes]);
    }
    to.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_equals_softmax_over_all() {
        let scores = [[3.0, -1.0, 0.5], [90.0, 2.0, 88.0], [f32::NEG_INFINITY; 3], [-40.0, -2.0, 91.0]];
        let mut total = [0.0, f32::NEG_INFINITY, 0.0];
        let mut total = Partial::of(&mut total, 1);
        for (i, scores) in scores.iter().enumerate() {
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = scores.iter().map(|s| (s - max).exp2()).sum();
            let mut one = [sum * i as f32, max, sum];
            total.merge(&Partial::of(&mut one, 1));
        }
        let weights = scores.map(|s| s.iter().map(|s| f64::from(*s - 91.0).exp2()).sum::<f64>());
        let want =
            weights.iter().zip(0..).map(|(w, i)| w * f64::from(i)).sum::<f64>() / weights.iter().sum::<f64>();
        assert!((f64::from(total.out[0] / total.sum[0]) - want).abs() < 1e-6);
    }
}
