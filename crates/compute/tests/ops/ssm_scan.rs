//! State-space scans in ragged batches that read and write slots, and the blocks of Mamba-2.

use super::matrices::part;
use super::perf::op;
use super::recurrent::{
    DECODE, LONG, N_SLOTS, Part, RAGGED, all, batch_of, check_beginnings, n_tokens, staged,
};
use super::{
    Case, Paths, Random, Sums, bits, check, cpus, deterministic_gpus, gpus, poisoned, read, rows_of,
    tolerance, vector,
};
use realizar_compute::{
    Backend, Batch, BlockInput, BlockOutput, ConvKind, DType, Device, DtLimits, Join, Linear, Norm, NormKind,
    Recurrence, RecurrentBlock, Reference, ShortConv, SsmInput, SsmPart, SsmShape, StateLayer, Stream,
    Tensor,
};

const SHAPE: SsmShape = SsmShape { n_heads: 6, head_dim: 16, n_groups: 2, state_dim: 16 };

/// Columns before those of `dt`.
const DT_START: usize = 3;

#[derive(Debug)]
struct Scan {
    shape: SsmShape,
    dt_limits: DtLimits,
    parts: &'static [Part<'static>],
    /// Whether GPUs multiply chunks of its tokens in TF32, where sums need not be exact.
    in_chunks: bool,
}

/// What a scan reads of a layer, and its state before a step.
struct SsmTensors<B: Backend> {
    decay: Tensor<B>,
    dt_bias: Tensor<B>,
    skip: Tensor<B>,
    dt_limits: DtLimits,
    state: Tensor<B>,
}

impl<B: Backend> SsmTensors<B> {
    fn new(b: &B, shape: &SsmShape, dt_limits: DtLimits) -> Self {
        let n = shape.n_heads;
        let decay: Vec<f32> = Random(4).normals(n).iter().map(|x| -x.exp()).collect();
        Self {
            decay: vector(b, &decay),
            dt_bias: vector(b, &Random(5).normals(n)),
            skip: vector(b, &Random(6).normals(n)),
            dt_limits,
            state: b.zeros(DType::F32, &[N_SLOTS, n, shape.state_dim, shape.head_dim]).unwrap(),
        }
    }

    /// `dt`: rows of [`dt_len`].
    fn run(&mut self, b: &B, shape: &SsmShape, xbc: &[f32], dt: &[f32], batch: &Batch) -> Vec<f32> {
        let xbc = rows_of(b, xbc, shape.xbc_len());
        let dt = rows_of(b, dt, dt_len(shape));
        let mut y = poisoned(b, xbc.rows(), shape.inner_len());
        let Self { decay, dt_bias, skip, dt_limits, state } = self;
        let batch = &staged(b, batch);
        op(b, 1, |_| {
            let (dt_start, dt_limits) = (DT_START, *dt_limits);
            let input = SsmInput { xbc: &xbc, dt: &dt, dt_start, decay, dt_bias, skip, dt_limits };
            b.ssm_scan(&mut y, input, state, batch, shape)
        });
        read(b, &mut y)
    }
}

fn dt_len(shape: &SsmShape) -> usize {
    DT_START + shape.n_heads + 1
}

fn rows(shape: &SsmShape, n: usize, seed: u64) -> (Vec<f32>, Vec<f32>) {
    (Random(seed).normals(n * shape.xbc_len()), Random(seed + 1).normals(n * dt_len(shape)))
}

impl Case for Scan {
    /// In two steps: one that fills all slots, and one whose batch reads and writes them.
    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let Self { shape, dt_limits, parts, .. } = self;
        let mut tensors = SsmTensors::new(b, shape, *dt_limits);
        let fill: [Part<'_>; N_SLOTS] = [
            (3, None, &[(3, 0)]),
            (3, None, &[(3, 1)]),
            (3, None, &[(3, 2)]),
            (3, None, &[(3, 3)]),
            (3, None, &[(3, 4)]),
            (3, None, &[(3, 5)]),
        ];
        let (xbc, dt) = rows(shape, 3 * N_SLOTS, 20);
        let first = tensors.run(b, shape, &xbc, &dt, &batch_of(&fill));
        let (xbc, dt) = rows(shape, n_tokens(parts), 30);
        let second = tensors.run(b, shape, &xbc, &dt, &batch_of(parts));
        // What is in the slots shows in what follows.
        let follow: [Part<'_>; N_SLOTS] = [0, 1, 2, 3, 4, 5].map(|slot| (1, Some(slot), &[][..]));
        let (xbc, dt) = rows(shape, N_SLOTS, 40);
        let third = tensors.run(b, shape, &xbc, &dt, &batch_of(&follow));
        vec![("first", first), ("second", second), ("third", third)]
    }

    fn tolerance(&self, sums: Sums) -> f64 {
        if self.in_chunks && matches!(sums, Sums::FastGpu) { 5e-7 } else { 1e-10 }
    }
}

#[test]
fn scans() {
    let of = |shape, parts| Scan { shape, dt_limits: DtLimits::NONE, parts, in_chunks: false };
    check(&[RAGGED, DECODE, LONG].map(|parts| of(SHAPE, parts)));
    for (state_dim, head_dim) in [(1, 1), (6, 20), (128, 64), (64, 72), (20, 48), (250, 40)] {
        check(&[of(SsmShape { state_dim, head_dim, ..SHAPE }, RAGGED)]);
    }
    check(&[1, 3, 6].map(|n_groups| of(SsmShape { n_groups, ..SHAPE }, RAGGED)));
    check(&[of(SsmShape { n_heads: 2, ..SHAPE }, &[(70, None, &[(64, 3), (70, 1)])])]);
    let dt_limits = DtLimits { min: 0.3, max: 0.9 };
    check(&[Scan { shape: SHAPE, dt_limits, parts: RAGGED, in_chunks: false }]);
}

/// Prompts that end within and at the end of chunks of 32 tokens and leave states from within, beside sequences of few tokens.
#[test]
fn scans_of_prompts() {
    const PROMPTS: &[Part<'_>] = &[
        (70, None, &[(1, 4), (32, 0), (33, 5)]),
        (1, Some(2), &[(1, 2)]),
        (64, Some(1), &[(63, 1)]),
        (37, Some(3), &[]),
    ];
    let shape = SsmShape { state_dim: 128, head_dim: 64, ..SHAPE };
    let two_slices = SsmShape { n_heads: 2, head_dim: 128, n_groups: 1, ..shape };
    let of = |shape, dt_limits, parts| Scan { shape, dt_limits, parts, in_chunks: true };
    check(&[shape, two_slices].map(|shape| of(shape, DtLimits::NONE, PROMPTS)));
    let bounded = DtLimits { min: 0.3, max: 0.9 };
    check(&[of(SsmShape { n_heads: 2, ..shape }, bounded, &[(165, None, &[(160, 0), (165, 1)])])]);
}

/// How a sequence is cut into steps, and what else is in them, changes no bit.
#[test]
fn states_of_scans_do_not_depend_on_the_steps() {
    fn run<B: Backend>(b: &B, shape: SsmShape, n: usize, cuts: &[usize]) {
        let (xbc, dt) = rows(&shape, n, 50);
        let new = || SsmTensors::new(b, &shape, DtLimits::NONE);
        let whole = new().run(b, &shape, &xbc, &dt, &batch_of(&[(n, None, &[])]));
        let (others_xbc, others_dt) = rows(&shape, 4, 60);
        for &cut in cuts {
            let mut tensors = new();
            let mut step = |range: std::ops::Range<usize>, parts: [Part<'_>; 2]| {
                let of = |own: &[f32], others: &[f32], len: usize| {
                    [others, &own[range.start * len..range.end * len]].concat()
                };
                let (xbc, dt) = (of(&xbc, &others_xbc, shape.xbc_len()), of(&dt, &others_dt, dt_len(&shape)));
                let y = tensors.run(b, &shape, &xbc, &dt, &batch_of(&parts));
                y[4 * shape.inner_len()..].to_vec()
            };
            let mut y = step(0..cut, [(4, None, &[(4, 2)]), (cut, None, &[(cut, 1)])]);
            y.extend(step(cut..n, [(4, Some(2), &[(4, 2)]), (n - cut, Some(1), &[(n - cut, 1)])]));
            assert_eq!(bits(&y), bits(&whole), "cut after {cut} on {}", b.describe());
        }
    }
    let small = SsmShape { state_dim: 24, head_dim: 72, ..SHAPE };
    let cuts: Vec<usize> = (1..9).collect();
    run(&Reference, small, 9, &cuts);
    cpus(Paths::Instructions).for_each(|cpu| run(cpu, small, 9, &cuts));
    gpus().iter().for_each(|gpu| run(&gpu.2, small, 9, &cuts));
    // Which the fast mode takes in chunks of 32.
    let large = SsmShape { n_heads: 2, state_dim: 128, head_dim: 64, ..SHAPE };
    for (_, gpu) in deterministic_gpus() {
        run(gpu, small, 9, &cuts);
        run(gpu, large, 70, &[1, 31, 33, 69]);
    }
}

/// A whole block.
#[derive(Debug)]
struct Block {
    dtype: DType,
    shape: SsmShape,
    parts: &'static [Part<'static>],
}

impl Case for Block {
    const PATHS: Paths = Paths::Weights;

    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let Self { shape, parts, .. } = *self;
        let (n, rows) = (256, n_tokens(parts));
        let (n_channels, mixed) = (shape.xbc_len(), shape.inner_len());
        let in_len = n_channels + mixed + shape.n_heads;
        let in_proj = &Linear::bare(b.matrix(vec![part(self.dtype, 1, in_len, n, 1)]).unwrap());
        let proj = &Linear::bare(b.matrix(vec![part(DType::F32, 1, n, mixed, 2)]).unwrap());
        let norm_of = |n, seed| Norm {
            kind: NormKind::Rms,
            weight: vector(b, &Random(seed).normals(n)),
            bias: None,
            eps: 1e-5,
        };
        let (pre, inner) = (norm_of(n, 3), norm_of(mixed, 4));
        let SsmTensors { decay, dt_bias, skip, dt_limits, state } =
            SsmTensors::new(b, &shape, DtLimits::NONE);
        let tails = Random(6).normals(N_SLOTS * 3 * n_channels);
        let mut state =
            StateLayer { conv: b.upload(&[N_SLOTS, 3, n_channels], &tails).unwrap(), matrix: Some(state) };
        let weight = b.upload(&[4, n_channels], &Random(7).normals(4 * n_channels)).unwrap();
        let bias = vector(b, &Random(9).normals(n_channels));
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
            conv: ShortConv { weight: &weight, bias: Some(&bias), kind: ConvKind::Silu },
            recurrence: Recurrence::Ssm(SsmPart {
                shape: &shape,
                decay: &decay,
                dt_bias: &dt_bias,
                skip: &skip,
                dt_limits,
                norm: &inner,
                convolved: &mut poisoned(b, rows, n_channels),
            }),
            state: &mut state,
            out: BlockOutput { sub_norm: None, proj, post_norm: None, sum_norm: None, join: Join::Alone },
            rows: &mut poisoned(b, rows, in_len),
            mixed: &mut poisoned(b, rows, mixed),
        };
        b.recurrent_block(stream, &staged(b, &batch_of(parts)), block).unwrap();
        vec![("residual", read(b, &mut residual)), ("conv", all(b, &state.conv))]
    }

    fn tolerance(&self, sums: Sums) -> f64 {
        // Gates and the scan multiply several results: Δ, x, B and C all come from the first matrix.
        40.0 * tolerance(self.dtype, sums).max(tolerance(DType::F32, sums))
    }
}

#[test]
fn blocks_of_mamba_2() {
    for dtype in [DType::F32, DType::Q8_0] {
        for parts in [RAGGED, DECODE] {
            check(&[Block { dtype, shape: SHAPE, parts }]);
        }
    }
    let wide = SsmShape { n_heads: 4, head_dim: 64, n_groups: 1, state_dim: 128 };
    check(&[Block { dtype: DType::F32, shape: wide, parts: DECODE }]);
}

#[test]
fn blocks_of_mamba_2_on_a_deterministic_gpu_do_not_depend_on_the_step() {
    let shape = SsmShape { n_heads: 4, head_dim: 64, n_groups: 2, state_dim: 128 };
    for dtype in [DType::Q4_K, DType::BF16] {
        check_beginnings(|parts| Block { dtype, shape, parts });
    }
}

#[test]
fn scans_with_larger_states_than_a_device_takes_are_refused() {
    let shape = SsmShape { state_dim: 257, ..SHAPE };
    Reference.check_ssm_scan(&shape).unwrap();
    for (_, _, gpu) in gpus() {
        let error = gpu.check_ssm_scan(&shape).unwrap_err().to_string();
        let wanted = "cuda cannot run a state-space scan with states of 257 elements; the largest have 256";
        assert_eq!(error, wanted);
    }
}

/// Times, for the benchmark.
#[allow(dead_code, reason = "tests do not measure")]
pub(super) mod times {
    use super::super::perf::{On, Work, table};
    use super::*;

    /// The scan of Nemotron-H 8B.
    pub(in super::super) fn ssm_scan(on: On) {
        const STEPS: [(&str, &[Part<'static>]); 2] =
            [("1 token", &[(1, Some(1), &[(1, 1)])]), ("512 tokens", &[(512, Some(1), &[(512, 1)])])];
        let shape = SsmShape { n_heads: 128, head_dim: 64, n_groups: 8, state_dim: 128 };
        let case = |&(name, parts): &(&str, &'static [Part<'static>])| {
            let (n, state) = (n_tokens(parts), shape.inner_len() * shape.state_dim);
            let work = Work {
                bytes: (8 * parts.len() * state + 4 * n * (shape.xbc_len() + shape.inner_len())) as f64,
                operations: (5 * n * state) as f64,
            };
            (name.to_string(), DType::F32, Step { shape, parts }, work)
        };
        table(on, "State-space scan, 128 heads of 64 with states of 128", STEPS.iter().map(case).collect());
    }

    /// One step of the scan alone.
    #[derive(Debug)]
    struct Step {
        shape: SsmShape,
        parts: &'static [Part<'static>],
    }

    impl Case for Step {
        fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
            let (xbc, dt) = rows(&self.shape, n_tokens(self.parts), 30);
            let mut tensors = SsmTensors::new(b, &self.shape, DtLimits::NONE);
            vec![("y", tensors.run(b, &self.shape, &xbc, &dt, &batch_of(self.parts)))]
        }

        fn tolerance(&self, _: Sums) -> f64 {
            1e-10
        }
    }
}
