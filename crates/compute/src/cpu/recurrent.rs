//! Layers with recurrent state: short convolutions and the gated delta rule.
//!
//! Both take the tokens of a sequence one after the other, so a result depends on the tokens before it and on nothing else: how a prompt
//! is cut into steps changes no bit. Threads share sequences and, within one, what does not depend on each other: channels of a
//! convolution, columns of the delta rule's state. A state is copied from its slot, computed on where it stays in the first cache
//! level, and copied to each slot that the batch says is written.

use super::activation::{exp, silu};
use super::isa::Isa;
use super::memory::Line;
use super::parallel::{self, Shared};
use super::simd::{Kernel, LANES, Simd, dispatch};
use super::threads::Pool;
use super::{Cpu, norm};
use crate::math::softplus;
use crate::{
    BatchSeq, BatchState, ConvKind, DeltaInput, DeltaShape, HostBatch, MAX_CONV_WIDTH, Norm, ShortConv,
    Tensor,
};
use std::cell::RefCell;
use std::ops::Range;

/// Channels of a convolution that are computed together.
const CHANNELS: usize = 256;
/// Columns of the delta rule's state that are computed together.
const COLUMNS: usize = 4 * LANES;

/// A row of inputs for each token before the step.
type Tail = [[f32; CHANNELS]; MAX_CONV_WIDTH - 1];

pub(super) fn short_conv(
    pool: &Pool,
    isa: Isa,
    y: &mut Tensor<Cpu>,
    x: &Tensor<Cpu>,
    conv: ShortConv<'_, Cpu>,
    state: &mut Tensor<Cpu>,
    batch: &HostBatch,
) {
    let (n_channels, width) = (y.row_len(), conv.weight.rows());
    assert_eq!((conv.weight.row_len(), state.row_len()), (n_channels, (width - 1) * n_channels));
    assert_eq!((y.rows(), x.rows()), (batch.tokens().len(), batch.tokens().len()));
    assert!((2..=MAX_CONV_WIDTH).contains(&width), "a convolution over {width} tokens");
    let task = ConvTask {
        isa,
        weight: conv.weight.floats(),
        kind: conv.kind,
        width,
        n_channels,
        x: x.floats(),
        x_len: x.row_len(),
        y: Shared::new(y.floats_mut()),
        state: Shared::new(state.floats_mut()),
        batch,
    };
    let n_blocks = n_channels.div_ceil(CHANNELS);
    pool.for_each_chunk(batch.states().len() * n_blocks, 1, |range| {
        for i in range {
            let start = i % n_blocks * CHANNELS;
            let channels = start..n_channels.min(start + CHANNELS);
            // SAFETY: each sequence and block of channels is one item.
            unsafe { task.run(&batch.seqs()[i / n_blocks], &batch.states()[i / n_blocks], channels) };
        }
    });
}

struct ConvTask<'a> {
    isa: Isa,
    /// `[width, n_channels]`
    weight: &'a [f32],
    kind: ConvKind,
    width: usize,
    n_channels: usize,
    x: &'a [f32],
    x_len: usize,
    y: Shared<'a, f32>,
    state: Shared<'a, f32>,
    batch: &'a HostBatch,
}

impl ConvTask<'_> {
    /// Some channels of one sequence.
    ///
    /// # Safety
    /// *Elements*: nobody else computes these channels of this sequence meanwhile. A staged batch lets no sequence write a slot that
    /// another reads or writes.
    unsafe fn run(&self, seq: &BatchSeq, at: &BatchState, channels: Range<usize>) {
        let (n, n_before) = (channels.len(), self.width - 1);
        let slot_row =
            |slot: u32, row: usize| (slot as usize * n_before + row) * self.n_channels + channels.start;
        // Oldest first; a copy, since a write may replace what later writes still need.
        let mut tail: Tail = [[0.0; CHANNELS]; MAX_CONV_WIDTH - 1];
        if let Some(slot) = at.from {
            for (i, row) in tail[..n_before].iter_mut().enumerate() {
                // SAFETY: no sequence but this one writes these channels of the slot, and that comes after (the contract).
                row[..n].copy_from_slice(unsafe { self.state.read(slot_row(slot, i), n) });
            }
        }
        let mut product = [0.0; CHANNELS];
        for (i, t) in seq.tokens.clone().enumerate() {
            // SAFETY: these channels of this token are this call's (the contract).
            let y = unsafe { self.y.slice(t * self.n_channels + channels.start, n) };
            y.fill(0.0);
            for j in 0..self.width {
                let input = self.input(seq, &tail, i + j, &channels, &mut product);
                let weight = &self.weight[j * self.n_channels..][channels.clone()];
                y.iter_mut().zip(weight).zip(input).for_each(|((y, w), x)| *y += w * x);
            }
            match self.kind {
                ConvKind::Silu => silu(self.isa, y),
                ConvKind::Gated => {
                    let c = &self.x[t * self.x_len + self.n_channels..][channels.clone()];
                    y.iter_mut().zip(c).for_each(|(y, c)| *y *= c);
                }
            }
        }
        for write in self.batch.state_writes(at) {
            for row in 0..n_before {
                let input = self.input(seq, &tail, write.n_tokens + row, &channels, &mut product);
                // SAFETY: these channels of a slot that only this sequence writes (the contract).
                unsafe { self.state.slice(slot_row(write.slot, row), n) }.copy_from_slice(input);
            }
        }
    }

    /// Input `i` of the sequence, where 0 is the oldest that the first token of the step reads. `product`: room for it.
    fn input<'a>(
        &'a self,
        seq: &BatchSeq,
        tail: &'a Tail,
        i: usize,
        channels: &Range<usize>,
        product: &'a mut [f32; CHANNELS],
    ) -> &'a [f32] {
        let n = channels.len();
        let Some(i) = i.checked_sub(self.width - 1) else { return &tail[i][..n] };
        let row = &self.x[(seq.tokens.start + i) * self.x_len..][..self.x_len];
        match self.kind {
            ConvKind::Silu => &row[channels.clone()],
            ConvKind::Gated => {
                let (b, x) = (&row[channels.clone()], &row[2 * self.n_channels..][channels.clone()]);
                product.iter_mut().zip(b).zip(x).for_each(|((p, b), x)| *p = b * x);
                &product[..n]
            }
        }
    }
}

pub(super) fn delta_rule(
    pool: &Pool,
    isa: Isa,
    y: &mut Tensor<Cpu>,
    input: DeltaInput<'_, Cpu>,
    state: &mut Tensor<Cpu>,
    batch: &HostBatch,
    shape: &DeltaShape,
) {
    let DeltaInput { qkv, rates, rates_start, decay, dt_bias } = input;
    let n_tokens = batch.tokens().len();
    assert_eq!((qkv.rows(), rates.rows(), y.rows()), (n_tokens, n_tokens, n_tokens));
    assert_eq!((qkv.row_len(), y.row_len()), (shape.qkv_len(), shape.v_len()));
    assert_eq!(state.row_len(), shape.v_len() * shape.k_dim);
    normalize(pool, isa, qkv, shape);
    apply_rates(pool, rates, rates_start, decay.floats(), dt_bias.floats());
    let task = DeltaTask {
        isa,
        shape,
        qkv: qkv.floats(),
        rates_len: rates.row_len(),
        rates: rates.floats(),
        rates_start,
        y: Shared::new(y.floats_mut()),
        state: Shared::new(state.floats_mut()),
        batch,
    };
    let n_blocks = shape.v_dim.div_ceil(COLUMNS);
    let per_seq = shape.n_v_heads * n_blocks;
    pool.for_each_chunk(batch.states().len() * per_seq, 1, |range| {
        for i in range {
            let (seq, head, start) = (i / per_seq, i % per_seq / n_blocks, i % n_blocks * COLUMNS);
            let columns = start..shape.v_dim.min(start + COLUMNS);
            // SAFETY: each sequence, head and block of columns is one item.
            unsafe { task.run(&batch.seqs()[seq], &batch.states()[seq], head, columns) };
        }
    });
}

/// Divides queries and keys by their length, and queries by the root of theirs.
fn normalize(pool: &Pool, isa: Isa, qkv: &mut Tensor<Cpu>, shape: &DeltaShape) {
    let (n, n_rows, k_dim) = (qkv.row_len(), shape.n_k_heads, shape.k_dim);
    parallel::rows(pool, qkv.floats_mut(), n, |_, row| {
        let (q, rest) = row.split_at_mut(n_rows * k_dim);
        for (heads, factor) in [(q, 1.0 / (k_dim as f32).sqrt()), (&mut rest[..n_rows * k_dim], 1.0)] {
            for x in heads.chunks_exact_mut(k_dim) {
                // SAFETY: `Cpu::new` checked that the processor has `isa`; the kernel has no pointers of its own.
                unsafe { dispatch(isa, Unit { x, factor }) }
            }
        }
    });
}

struct Unit<'a> {
    x: &'a mut [f32],
    factor: f32,
}

impl Kernel for Unit<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let sum = norm::sum(self.x, |x| x * x);
        // The reference library's epsilon.
        let inv = (f64::from(self.factor) / (sum + 1e-6).sqrt()) as f32;
        self.x.iter_mut().for_each(|x| *x *= inv);
    }
}

/// Turns `b` and `a` of each token into what the state takes up of it and what it keeps, in place.
fn apply_rates(pool: &Pool, rates: &mut Tensor<Cpu>, start: usize, decay: &[f32], dt_bias: &[f32]) {
    let (n, n_heads) = (rates.row_len(), decay.len());
    parallel::rows(pool, rates.floats_mut(), n, |_, row| {
        let (b, a) = row[start..start + 2 * n_heads].split_at_mut(n_heads);
        b.iter_mut().for_each(|b| *b = 1.0 / (1.0 + exp(-*b)));
        for ((a, decay), dt_bias) in a.iter_mut().zip(decay).zip(dt_bias) {
            *a = exp(decay * softplus(*a + dt_bias));
        }
    });
}

struct DeltaTask<'a> {
    isa: Isa,
    shape: &'a DeltaShape,
    qkv: &'a [f32],
    rates: &'a [f32],
    rates_len: usize,
    rates_start: usize,
    y: Shared<'a, f32>,
    state: Shared<'a, f32>,
    batch: &'a HostBatch,
}

thread_local! {
    /// Some columns of a head's state, `[k_dim, columns]`. Each thread keeps its own, so that no step allocates.
    static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

impl DeltaTask<'_> {
    /// Some columns of one head of one sequence.
    ///
    /// # Safety
    /// *Elements*: nobody else computes these columns of this head and sequence meanwhile. A staged batch lets no sequence write a slot
    /// that another reads or writes.
    unsafe fn run(&self, seq: &BatchSeq, at: &BatchState, head: usize, columns: Range<usize>) {
        let DeltaShape { n_k_heads, n_v_heads, k_dim, v_dim, .. } = *self.shape;
        let stride = columns.len().next_multiple_of(LANES);
        // Blocks of columns lie one after the other in a head's part of a slot.
        let len = k_dim * columns.len();
        let start = |slot: u32| (slot as usize * n_v_heads + head) * k_dim * v_dim + k_dim * columns.start;
        let k_head = self.shape.k_head(head);
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.resize(k_dim * stride / LANES, Line::ZERO);
            let scratch: &mut [f32] = bytemuck::cast_slice_mut(scratch);
            match at.from {
                // SAFETY: no sequence but this one writes these columns of the slot, and that comes after (the contract).
                Some(slot) => unpack(scratch, stride, unsafe { self.state.read(start(slot), len) }, &columns),
                None => scratch.fill(0.0),
            }
            let mut writes = self.batch.state_writes(at).iter().peekable();
            for (i, t) in seq.tokens.clone().enumerate() {
                let row = &self.qkv[t * self.shape.qkv_len()..][..self.shape.qkv_len()];
                let rates = &self.rates[t * self.rates_len + self.rates_start..][..2 * n_v_heads];
                let mut v = [0.0; COLUMNS];
                let values = &row[2 * n_k_heads * k_dim + head * v_dim..][columns.clone()];
                v[..columns.len()].copy_from_slice(values);
                let step = DeltaStep {
                    state: scratch,
                    q: &row[k_head * k_dim..][..k_dim],
                    k: &row[(n_k_heads + k_head) * k_dim..][..k_dim],
                    v: &mut v,
                    n_vectors: stride / LANES,
                    beta: rates[head],
                    decay: rates[n_v_heads + head],
                };
                // SAFETY: `Cpu::new` checked that the processor has `isa`; the kernel has no pointers of its own.
                unsafe { dispatch(self.isa, step) };
                // SAFETY: these columns of this token are this call's (the contract).
                let y =
                    unsafe { self.y.slice((t * n_v_heads + head) * v_dim + columns.start, columns.len()) };
                y.copy_from_slice(&v[..columns.len()]);
                while let Some(write) = writes.next_if(|w| w.n_tokens == i + 1) {
                    // SAFETY: these columns of a slot that only this sequence writes (the contract).
                    pack(unsafe { self.state.slice(start(write.slot), len) }, scratch, stride, &columns);
                }
            }
        });
    }
}

/// Copies columns from a slot to rows of `stride` elements, padded with zeros.
fn unpack(scratch: &mut [f32], stride: usize, slot: &[f32], columns: &Range<usize>) {
    let n = columns.len();
    for (row, values) in scratch.chunks_exact_mut(stride).zip(slot.chunks_exact(n)) {
        row[..n].copy_from_slice(values);
        row[n..].fill(0.0);
    }
}

/// The way back.
fn pack(slot: &mut [f32], scratch: &[f32], stride: usize, columns: &Range<usize>) {
    let n = columns.len();
    for (row, values) in scratch.chunks_exact(stride).zip(slot.chunks_exact_mut(n)) {
        values.copy_from_slice(&row[..n]);
    }
}

/// One token's step of some columns of a head's state.
struct DeltaStep<'a> {
    /// `[k_dim, n_vectors · LANES]`
    state: &'a mut [f32],
    /// `[k_dim]`
    q: &'a [f32],
    /// `[k_dim]`
    k: &'a [f32],
    /// Values, which become the result.
    v: &'a mut [f32; COLUMNS],
    n_vectors: usize,
    beta: f32,
    decay: f32,
}

impl Kernel for DeltaStep<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the contract of each is this one's.
        unsafe {
            match self.n_vectors {
                1 => self.columns::<S, 1>(),
                2 => self.columns::<S, 2>(),
                3 => self.columns::<S, 3>(),
                _ => self.columns::<S, 4>(),
            }
        }
    }
}

impl DeltaStep<'_> {
    /// `N` vectors of columns: one pass over the state reads what it holds for the key, a second one changes it and reads it for the
    /// query.
    ///
    /// # Safety
    /// That of [`Simd`].
    #[inline(always)]
    unsafe fn columns<S: Simd, const N: usize>(self) {
        let Self { state, q, k, v, n_vectors, beta, decay } = self;
        assert!(n_vectors == N && v.len() >= N * LANES);
        // SAFETY: only registers, and loads and stores of N vectors each from a row of N · LANES floats; `v` has as many.
        unsafe {
            let mut held = [S::splat(0.0); N];
            for (row, &k) in state.chunks_exact(N * LANES).zip(k) {
                let k = S::splat(k);
                for (j, held) in held.iter_mut().enumerate() {
                    *held = S::fma(k, S::load_f32(row.as_ptr().add(j * LANES)), *held);
                }
            }
            let (beta, decay) = (S::splat(beta), S::splat(decay));
            let mut delta = [S::splat(0.0); N];
            for (j, delta) in delta.iter_mut().enumerate() {
                let v = S::load_f32(v.as_ptr().add(j * LANES));
                *delta = S::mul(S::fnma(decay, held[j], v), beta);
            }
            let mut y = [S::splat(0.0); N];
            for ((row, &k), &q) in state.chunks_exact_mut(N * LANES).zip(k).zip(q) {
                let (k, q) = (S::splat(k), S::splat(q));
                for j in 0..N {
                    let p = row.as_mut_ptr().add(j * LANES);
                    let s = S::fma(k, delta[j], S::mul(decay, S::load_f32(p)));
                    S::store_f32(p, s);
                    y[j] = S::fma(q, s, y[j]);
                }
            }
            for (j, y) in y.into_iter().enumerate() {
                S::store_f32(v.as_mut_ptr().add(j * LANES), y);
            }
        }
    }
}

pub(super) fn gated_norm(
    pool: &Pool,
    isa: Isa,
    x: &mut Tensor<Cpu>,
    gate: &Tensor<Cpu>,
    start: usize,
    norm: &Norm<Cpu>,
) {
    assert_eq!(x.rows(), gate.rows());
    let (n, gate_len, gate) = (x.row_len(), gate.row_len(), gate.floats());
    let (weight, bias) = (norm.weight.floats(), norm.bias.as_ref().map(|b| b.floats()));
    parallel::rows(pool, x.floats_mut(), n, |t, row| {
        for group in row.chunks_exact_mut(weight.len()) {
            norm::norm_row(isa, group, norm.kind, weight, bias, norm.eps);
        }
        let gate = &gate[t * gate_len + start..][..n];
        // SAFETY: `Cpu::new` checked that the processor has `isa`; the kernel has no pointers of its own.
        unsafe { dispatch(isa, Gate { x: row, gate, is_silu: true }) }
    });
}

pub(super) fn sigmoid_gate(pool: &Pool, isa: Isa, x: &mut Tensor<Cpu>, gate: &Tensor<Cpu>) {
    assert_eq!(x.shape(), gate.shape());
    let gate = gate.floats();
    parallel::pieces(pool, x.floats_mut(), |start, x| {
        let gate = &gate[start..][..x.len()];
        // SAFETY: `Cpu::new` checked that the processor has `isa`; the kernel has no pointers of its own.
        unsafe { dispatch(isa, Gate { x, gate, is_silu: false }) }
    });
}

/// `x *= silu(gate)`, or `x *= sigmoid(gate)`.
struct Gate<'a> {
    x: &'a mut [f32],
    gate: &'a [f32],
    is_silu: bool,
}

impl Kernel for Gate<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { x, gate, is_silu } = self;
        match is_silu {
            true => x.iter_mut().zip(gate).for_each(|(x, &g)| *x *= g / (1.0 + exp(-g))),
            false => x.iter_mut().zip(gate).for_each(|(x, &g)| *x /= 1.0 + exp(-g)),
        }
    }
}
