//! Convolutions and delta rules with state, in ragged batches that read and write slots.

use super::matrices::part;
use super::perf::op;
use super::{
    Case, ELEMENTWISE, Paths, Random, Sums, bits, check, compare, cpus, deterministic_gpus, gpus, poisoned,
    read, rows_of, tolerance, vector,
};
use realizar_compute::{
    Backend, Batch, BatchLimits, BlockInput, BlockOutput, CacheShape, ConvKind, DType, DeltaInput, DeltaPart,
    DeltaShape, Device, GatedNorm, HeadOrder, Join, Linear, Norm, NormKind, Recurrence, RecurrentBlock,
    Reference, ShortConv, StateLayer, StateWrite, Stream, Tensor,
};

pub(crate) const N_SLOTS: usize = 6;
const CACHE: CacheShape = CacheShape {
    n_blocks: 8,
    block_size: 1 << 20,
    n_positions: 1 << 20,
    n_slots: N_SLOTS,
    n_token_types: 0,
    drafts: false,
    heads: super::NO_HEADS,
};

/// A sequence of a step: tokens, the slot that it reads, and writes as (after so many tokens, slot).
pub(crate) type Part<'a> = (usize, Option<u32>, &'a [(usize, u32)]);

/// Sequences that begin, go on, decode, share what they read, and leave states from within.
pub(crate) const RAGGED: &[Part<'_>] = &[
    (7, None, &[(2, 4), (7, 0)]),
    (1, Some(1), &[(1, 1)]),
    (3, Some(3), &[(1, 2), (3, 5)]),
    (1, Some(3), &[]),
];

/// A token of each sequence.
pub(crate) const DECODE: &[Part<'_>] =
    &[(1, Some(1), &[(1, 1)]), (1, None, &[(1, 0)]), (1, Some(3), &[(1, 2), (1, 5)]), (1, Some(3), &[])];

/// Sequences that begin and end within and between groups of 8 tokens.
pub(crate) const LONG: &[Part<'_>] = &[
    (5, Some(2), &[(5, 2)]),
    (3, None, &[(1, 1)]),
    (1, Some(3), &[]),
    (45, Some(4), &[(1, 4), (8, 5), (45, 0)]),
    (1, Some(3), &[]),
];

pub(crate) fn batch_of(parts: &[Part<'_>]) -> Batch {
    let mut batch = Batch::default();
    for &(n, from, writes) in parts {
        let start = if from.is_some() { 9 } else { 0 };
        batch.push(&vec![1; n], start, &[0], 1);
        let writes: Vec<_> = writes.iter().map(|&(n_tokens, slot)| StateWrite { n_tokens, slot }).collect();
        batch.push_state(from, &writes);
    }
    batch
}

pub(crate) fn staged<B: Backend>(b: &B, batch: &Batch) -> B::Batch {
    let limits = BatchLimits { n_tokens: 1 << 10, n_seqs: 8, n_blocks: 8, n_logits: 8 };
    let mut staged = b.new_batch(limits, CACHE).unwrap();
    b.stage(&mut staged, batch).unwrap();
    staged
}

pub(crate) fn n_tokens(parts: &[Part<'_>]) -> usize {
    parts.iter().map(|p| p.0).sum()
}

pub(crate) fn all<B: Backend>(b: &B, t: &Tensor<B>) -> Vec<f32> {
    let mut values = vec![0.0; t.len()];
    b.synchronize().unwrap();
    b.download(&mut values, t).unwrap();
    values
}

#[derive(Debug)]
struct Conv {
    n_channels: usize,
    width: usize,
    kind: ConvKind,
    bias: bool,
    parts: &'static [Part<'static>],
}

impl Case for Conv {
    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let Self { n_channels: n, width, kind, bias, parts } = *self;
        let rows = n_tokens(parts);
        // Columns after those that are convolved are not read.
        let x_len = if kind == ConvKind::Gated { 3 * n } else { n + 5 };
        let x = rows_of(b, &Random(1).normals(rows * x_len), x_len);
        let weight = b.upload(&[width, n], &Random(2).normals(width * n)).unwrap();
        let tails = Random(3).normals(N_SLOTS * (width - 1) * n);
        let mut state = b.upload(&[N_SLOTS, width - 1, n], &tails).unwrap();
        let mut y = poisoned(b, rows, n);
        let bias = bias.then(|| vector(b, &Random(4).normals(n)));
        let conv = ShortConv { weight: &weight, bias: bias.as_ref(), kind };
        b.short_conv(&mut y, &x, conv, &mut state, &staged(b, &batch_of(parts))).unwrap();
        vec![("y", read(b, &mut y)), ("state", all(b, &state))]
    }

    fn tolerance(&self, _: Sums) -> f64 {
        ELEMENTWISE
    }
}

#[test]
fn convolutions() {
    for kind in [ConvKind::Silu, ConvKind::Gated] {
        for (n_channels, width) in [(1, 2), (40, 4), (256, 3), (300, 4), (513, 8)] {
            for parts in [RAGGED, DECODE, LONG] {
                check(&[false, true].map(|bias| Conv { n_channels, width, kind, bias, parts }));
            }
        }
        check(&[5, 6, 7].map(|width| Conv { n_channels: 130, width, kind, bias: false, parts: LONG }));
        // A state that is written in place before all tokens of the step are read.
        const IN_PLACE: &[Part<'_>] = &[(2, Some(1), &[(1, 1), (2, 3)])];
        check(&[Conv { n_channels: 20, width: 5, kind, bias: false, parts: IN_PLACE }]);
    }
}

const SHAPE: DeltaShape =
    DeltaShape { n_k_heads: 2, n_v_heads: 6, k_dim: 16, v_dim: 16, order: HeadOrder::Grouped };

#[derive(Debug)]
struct Delta {
    shape: DeltaShape,
    parts: &'static [Part<'static>],
    /// Whether GPUs multiply chunks of its tokens in 16 bits, where sums need not be exact.
    in_chunks: bool,
}

/// What the delta rule reads of a layer, and its state before a step.
struct DeltaTensors<B: Backend> {
    decay: Tensor<B>,
    dt_bias: Tensor<B>,
    state: Tensor<B>,
}

impl<B: Backend> DeltaTensors<B> {
    fn new(b: &B, shape: &DeltaShape) -> Self {
        let n = shape.n_v_heads;
        let decay: Vec<f32> = Random(4).normals(n).iter().map(|x| -x.exp()).collect();
        Self {
            decay: vector(b, &decay),
            dt_bias: vector(b, &Random(5).normals(n)),
            state: b.zeros(DType::F32, &[N_SLOTS, n, shape.k_dim, shape.v_dim]).unwrap(),
        }
    }

    /// `rates`: `b` and `a` after three other columns.
    fn run(&mut self, b: &B, shape: &DeltaShape, qkv: &[f32], rates: &[f32], batch: &Batch) -> Vec<f32> {
        let mut qkv = rows_of(b, qkv, shape.qkv_len());
        let mut rates = rows_of(b, rates, 3 + 2 * shape.n_v_heads);
        let mut y = poisoned(b, qkv.rows(), shape.v_len());
        let Self { decay, dt_bias, state } = self;
        let batch = &staged(b, batch);
        op(b, 1, |_| {
            let rates_start = 3;
            let input = DeltaInput { qkv: &mut qkv, rates: &mut rates, rates_start, decay, dt_bias };
            b.delta_rule(&mut y, input, state, batch, shape)
        });
        read(b, &mut y)
    }
}

fn delta_rows(shape: &DeltaShape, rows: usize, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let rates = Random(seed + 1).normals(rows * (3 + 2 * shape.n_v_heads));
    (Random(seed).normals(rows * shape.qkv_len()), rates)
}

impl Case for Delta {
    /// In two steps: one that fills all slots, and one whose batch reads and writes them.
    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let Self { shape, parts, .. } = self;
        let mut tensors = DeltaTensors::new(b, shape);
        let fill: [Part<'_>; N_SLOTS] = [
            (3, None, &[(3, 0)]),
            (3, None, &[(3, 1)]),
            (3, None, &[(3, 2)]),
            (3, None, &[(3, 3)]),
            (3, None, &[(3, 4)]),
            (3, None, &[(3, 5)]),
        ];
        let (qkv, rates) = delta_rows(shape, 3 * N_SLOTS, 20);
        let first = tensors.run(b, shape, &qkv, &rates, &batch_of(&fill));
        let (qkv, rates) = delta_rows(shape, n_tokens(parts), 30);
        let second = tensors.run(b, shape, &qkv, &rates, &batch_of(parts));
        // What is in the slots shows in what follows.
        let follow: [Part<'_>; N_SLOTS] = [0, 1, 2, 3, 4, 5].map(|slot| (1, Some(slot), &[][..]));
        let (qkv, rates) = delta_rows(shape, N_SLOTS, 40);
        let third = tensors.run(b, shape, &qkv, &rates, &batch_of(&follow));
        vec![("first", first), ("second", second), ("third", third)]
    }

    fn tolerance(&self, sums: Sums) -> f64 {
        if self.in_chunks && matches!(sums, Sums::FastGpu) { 5e-7 } else { 1e-10 }
    }
}

#[test]
fn delta_rules() {
    check(&[RAGGED, DECODE, LONG].map(|parts| Delta { shape: SHAPE, parts, in_chunks: false }));
    check(&[Delta {
        shape: DeltaShape { order: HeadOrder::Tiled, ..SHAPE },
        parts: RAGGED,
        in_chunks: false,
    }]);
    for (k_dim, v_dim) in [(1, 1), (6, 20), (128, 128), (64, 72), (20, 48), (250, 40)] {
        check(&[Delta { shape: DeltaShape { k_dim, v_dim, ..SHAPE }, parts: RAGGED, in_chunks: false }]);
    }
    check(&[Delta {
        shape: DeltaShape { n_v_heads: 2, ..SHAPE },
        parts: &[(70, None, &[(64, 3), (70, 1)])],
        in_chunks: false,
    }]);
}

/// Prompts that end within and at the end of chunks of 32 tokens and leave states from within, beside sequences of few tokens.
#[test]
fn delta_rules_of_prompts() {
    const PROMPTS: &[Part<'_>] = &[
        (70, None, &[(1, 4), (32, 0), (33, 5)]),
        (1, Some(2), &[(1, 2)]),
        (64, Some(1), &[(63, 1)]),
        (37, Some(3), &[]),
    ];
    let shape = DeltaShape { k_dim: 128, v_dim: 32, ..SHAPE };
    let tiled = DeltaShape { v_dim: 64, order: HeadOrder::Tiled, ..shape };
    let many_heads = DeltaShape { n_k_heads: 1, ..shape };
    check(&[shape, tiled, many_heads].map(|shape| Delta { shape, parts: PROMPTS, in_chunks: true }));
    check(&[Delta { shape, parts: &[(165, None, &[(160, 0), (165, 1)])], in_chunks: true }]);
}

/// How a sequence is cut into steps, and what else is in them, changes no bit.
#[test]
fn states_do_not_depend_on_the_steps() {
    fn run<B: Backend>(b: &B, shape: DeltaShape, n: usize, cuts: &[usize]) {
        let (qkv, rates) = delta_rows(&shape, n, 50);
        let rates_len = 3 + 2 * shape.n_v_heads;
        let whole = DeltaTensors::new(b, &shape).run(b, &shape, &qkv, &rates, &batch_of(&[(n, None, &[])]));
        let (others_qkv, others_rates) = delta_rows(&shape, 4, 60);
        for &cut in cuts {
            let mut tensors = DeltaTensors::new(b, &shape);
            let rows = |range: std::ops::Range<usize>| {
                let qkv = [&others_qkv, &qkv[range.start * shape.qkv_len()..range.end * shape.qkv_len()]];
                let rates = [&others_rates, &rates[range.start * rates_len..range.end * rates_len]];
                (qkv.concat(), rates.concat())
            };
            let own = |y: Vec<f32>| y[4 * shape.v_len()..].to_vec();
            let first: [Part<'_>; 2] = [(4, None, &[(4, 2)]), (cut, None, &[(cut, 1)])];
            let (q, r) = rows(0..cut);
            let mut y = own(tensors.run(b, &shape, &q, &r, &batch_of(&first)));
            let second: [Part<'_>; 2] = [(4, Some(2), &[(4, 2)]), (n - cut, Some(1), &[(n - cut, 1)])];
            let (q, r) = rows(cut..n);
            y.extend(own(tensors.run(b, &shape, &q, &r, &batch_of(&second))));
            assert_eq!(bits(&y), bits(&whole), "cut after {cut} on {}", b.describe());
        }
    }
    let small = DeltaShape { k_dim: 24, v_dim: 72, ..SHAPE };
    let cuts: Vec<usize> = (1..9).collect();
    run(&Reference, small, 9, &cuts);
    cpus(Paths::Instructions).for_each(|cpu| run(cpu, small, 9, &cuts));
    gpus().iter().for_each(|gpu| run(&gpu.2, small, 9, &cuts));
    // Which the fast mode takes in chunks of 32.
    let large = DeltaShape { k_dim: 128, v_dim: 64, ..SHAPE };
    for (_, gpu) in deterministic_gpus() {
        run(gpu, small, 9, &cuts);
        run(gpu, large, 70, &[1, 31, 33, 69]);
    }
}

/// Gates on rows, after a norm and without.
#[derive(Debug)]
struct Gates {
    rows: usize,
    group: usize,
    n_groups: usize,
    /// Whether groups have weights of their own, and the gate comes first.
    as_mamba: bool,
}

impl Case for Gates {
    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let (rows, n) = (self.rows, self.group * self.n_groups);
        let x = || rows_of(b, &Random(1).normals(rows * n), n);
        let (mut normed, mut plain) = (x(), x());
        let wide = rows_of(b, &Random(2).normals(rows * (n + 9)), n + 9);
        let narrow = rows_of(b, &Random(3).normals(rows * n), n);
        let weight = vector(b, &Random(4).normals(if self.as_mamba { n } else { self.group }));
        let norm = &Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-3 };
        let norm = GatedNorm { norm, group_len: self.group, gate_first: self.as_mamba };
        b.gated_norm(&mut normed, &wide, 4, norm).unwrap();
        b.sigmoid_gate(&mut plain, &narrow).unwrap();
        vec![("normed", read(b, &mut normed)), ("plain", read(b, &mut plain))]
    }

    fn tolerance(&self, _: Sums) -> f64 {
        ELEMENTWISE
    }
}

#[test]
fn gates() {
    for (rows, group, n_groups) in [(1, 1, 1), (3, 20, 3), (40, 128, 4)] {
        check(&[false, true].map(|as_mamba| Gates { rows, group, n_groups, as_mamba }));
    }
}

/// A whole block.
#[derive(Debug)]
struct Block {
    delta: bool,
    dtype: DType,
    shape: DeltaShape,
    parts: &'static [Part<'static>],
}

impl Case for Block {
    const PATHS: Paths = Paths::Weights;

    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let Self { shape, parts, .. } = *self;
        let (n, rows) = (256, n_tokens(parts));
        let (n_channels, in_len, mixed) = match self.delta {
            true => (shape.qkv_len(), shape.qkv_len() + shape.v_len() + 2 * shape.n_v_heads, shape.v_len()),
            false => (n, 3 * n, n),
        };
        let in_proj = &Linear::bare(b.matrix(vec![part(self.dtype, 1, in_len, n, 1)]).unwrap());
        let proj = &Linear::bare(b.matrix(vec![part(DType::F32, 1, n, mixed, 2)]).unwrap());
        let norm_of = |n, seed| Norm {
            kind: NormKind::Rms,
            weight: vector(b, &Random(seed).normals(n)),
            bias: None,
            eps: 1e-5,
        };
        let (pre, inner) = (norm_of(n, 3), norm_of(shape.v_dim, 4));
        let DeltaTensors { decay, dt_bias, state } = DeltaTensors::new(b, &shape);
        let tails = Random(6).normals(N_SLOTS * 3 * n_channels);
        let mut state = StateLayer {
            conv: b.upload(&[N_SLOTS, 3, n_channels], &tails).unwrap(),
            matrix: self.delta.then_some(state),
        };
        let weight = b.upload(&[4, n_channels], &Random(7).normals(4 * n_channels)).unwrap();
        let kind = if self.delta { ConvKind::Silu } else { ConvKind::Gated };
        let mut convolved = poisoned(b, rows, shape.qkv_len());
        let mut residual = rows_of(b, &Random(8).normals(rows * n), n);
        let stream = Stream {
            residual: &mut residual,
            normed: &mut poisoned(b, rows, n),
            output: &mut poisoned(b, rows, n),
            operand: None,
        };
        let block = RecurrentBlock {
            input: BlockInput::Norm(&pre),
            in_proj,
            conv: ShortConv { weight: &weight, bias: None, kind },
            recurrence: match self.delta {
                true => Recurrence::Delta(DeltaPart {
                    shape: &shape,
                    decay: &decay,
                    dt_bias: &dt_bias,
                    norm: &inner,
                    convolved: &mut convolved,
                }),
                false => Recurrence::None,
            },
            state: &mut state,
            out: BlockOutput { sub_norm: None, proj, post_norm: None, sum_norm: None, join: Join::Alone },
            rows: &mut poisoned(b, rows, in_len),
            mixed: &mut poisoned(b, rows, mixed),
        };
        b.recurrent_block(stream, &staged(b, &batch_of(parts)), block).unwrap();
        vec![("residual", read(b, &mut residual)), ("conv", all(b, &state.conv))]
    }

    fn tolerance(&self, sums: Sums) -> f64 {
        // Gates and the delta rule multiply several results.
        20.0 * tolerance(self.dtype, sums).max(tolerance(DType::F32, sums))
    }
}

#[test]
fn blocks_with_recurrent_state() {
    for delta in [false, true] {
        for dtype in [DType::F32, DType::Q8_0] {
            for parts in [RAGGED, DECODE] {
                check(&[Block { delta, dtype, shape: SHAPE, parts }]);
            }
        }
    }
    for (k_dim, v_dim) in [(128, 128), (20, 48), (6, 132), (200, 64)] {
        let shape = DeltaShape { k_dim, v_dim, n_v_heads: 4, ..SHAPE };
        check(&[Block { delta: true, dtype: DType::F32, shape, parts: DECODE }]);
    }
}

/// Sequences that go on, then prompts.
const STEP: &[Part<'_>] =
    &[(1, Some(1), &[]), (1, None, &[]), (1, Some(3), &[]), (37, None, &[]), (5, Some(3), &[])];

/// Its first tokens as steps of their own.
const BEGINNINGS: [&[Part<'_>]; 4] = [
    &[(1, Some(1), &[])],
    &[(1, Some(1), &[]), (1, None, &[]), (1, Some(3), &[])],
    &[(1, Some(1), &[]), (1, None, &[]), (1, Some(3), &[]), (9, None, &[])],
    &[(1, Some(1), &[]), (1, None, &[]), (1, Some(3), &[]), (37, None, &[])],
];

/// Runs a block whose first output has a row per token on the deterministic GPUs: the first tokens of a step as a step of their own give the same
/// bits.
pub(crate) fn check_beginnings<C: Case>(block: impl Fn(&'static [Part<'static>]) -> C) {
    let whole = block(STEP);
    let want = whole.run(&Reference);
    for (path, gpu) in deterministic_gpus() {
        let found = whole.run(gpu);
        compare(&whole, path, &found, &want, whole.tolerance(Sums::FastGpu));
        for parts in BEGINNINGS {
            let some = block(parts).run(gpu).remove(0).1;
            assert_eq!(bits(&found[0].1[..some.len()]), bits(&some), "{parts:?} of {whole:?} on {path}");
        }
    }
}

#[test]
fn recurrent_blocks_on_a_deterministic_gpu_do_not_depend_on_the_step() {
    let shape = DeltaShape { k_dim: 128, v_dim: 128, ..SHAPE };
    for dtype in [DType::Q4_K, DType::BF16] {
        for delta in [false, true] {
            check_beginnings(|parts| Block { delta, dtype, shape, parts });
        }
    }
}

#[test]
fn delta_rules_with_larger_keys_than_a_device_takes_are_refused() {
    let shape = DeltaShape { k_dim: 257, ..SHAPE };
    Reference.check_delta_rule(&shape).unwrap();
    for (_, _, gpu) in gpus() {
        let error = gpu.check_delta_rule(&shape).unwrap_err().to_string();
        assert_eq!(error, "cuda cannot run the delta rule with keys of 257 elements; the largest have 256");
    }
}

/// Times, for the benchmark.
#[allow(dead_code, reason = "tests do not measure")]
pub(super) mod times {
    use super::super::perf::{On, Work, table};
    use super::*;

    /// The delta rule of Qwen3-Next.
    pub(in super::super) fn delta_rule(on: On) {
        const STEPS: [(&str, &[Part<'static>]); 3] = [
            ("1 token", &[(1, Some(1), &[(1, 1)])]),
            (
                "4 sequences, 1 token each",
                &[
                    (1, Some(0), &[(1, 0)]),
                    (1, Some(1), &[(1, 1)]),
                    (1, Some(2), &[(1, 2)]),
                    (1, Some(3), &[(1, 3)]),
                ],
            ),
            ("512 tokens", &[(512, Some(1), &[(512, 1)])]),
        ];
        let shape =
            DeltaShape { n_k_heads: 16, n_v_heads: 32, k_dim: 128, v_dim: 128, order: HeadOrder::Grouped };
        let cases = {
            let case = |&(name, parts): &(&str, &'static [Part<'static>])| {
                let (n, state) = (n_tokens(parts), shape.n_v_heads * shape.k_dim * shape.v_dim);
                let work = Work {
                    bytes: (8 * parts.len() * state + 4 * n * (shape.qkv_len() + shape.v_len())) as f64,
                    operations: (6 * n * state) as f64,
                };
                (name.to_string(), DType::F32, Step { shape, parts }, work)
            };
            STEPS.iter().map(case).collect()
        };
        table(on, "Delta rule, 32 heads of 128", cases);
    }

    /// One step of the delta rule alone.
    #[derive(Debug)]
    struct Step {
        shape: DeltaShape,
        parts: &'static [Part<'static>],
    }

    impl Case for Step {
        fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
            let (qkv, rates) = delta_rows(&self.shape, n_tokens(self.parts), 30);
            vec![(
                "y",
                DeltaTensors::new(b, &self.shape).run(b, &self.shape, &qkv, &rates, &batch_of(self.parts)),
            )]
        }

        fn tolerance(&self, _: Sums) -> f64 {
            1e-10
        }
    }
}
