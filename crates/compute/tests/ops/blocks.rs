//! The blocks of a layer, with norms, sums and gates around their matmuls.

use super::matrices::part;
use super::{
    Case, ELEMENTWISE, Emulated, Paths, Random, Sums, bits, check, compare, deterministic_gpus,
    is_worth_products, packed_types, poisoned, read, rows_of, staged, tolerance, vector,
};
use realizar_compute::{
    Activation, Backend, Batch, BlockInput, BlockOutput, DType, EmbedBlock, Experts, FfnBlock, FfnUp,
    HeadBlock, Join, LatentExperts, Linear, MoeBlock, MoeNorms, MoeParams, MoeScratch, Norm, NormKind,
    PerLayerInputBlock, Reference, Router, SharedExpert, Stream, Tensor,
};

/// A norm of these rows, with random weights around 1. Weights around 0 would make a few activations much larger than the others, and
/// these round to 8 bits with three times the error that the tolerances expect.
fn norm_of<B: Backend>(b: &B, kind: NormKind, n: usize, seed: u64) -> Norm<B> {
    let bias = (kind == NormKind::Layer).then(|| vector(b, &Random(seed + 1).normals(n)));
    let weight: Vec<f32> = Random(seed).normals(n).iter().map(|w| 1.0 + 0.25 * w).collect();
    Norm { kind, weight: vector(b, &weight), bias, eps: 1e-5 }
}

/// The residual stream with room for `n` columns.
struct Rows<B: Backend> {
    residual: Tensor<B>,
    normed: Tensor<B>,
    output: Tensor<B>,
}

impl<B: Backend> Rows<B> {
    fn new(b: &B, rows: usize, n: usize, seed: u64) -> Self {
        let residual = rows_of(b, &Random(seed).normals(rows * n), n);
        Self { residual, normed: poisoned(b, rows, n), output: poisoned(b, rows, n) }
    }

    fn stream(&mut self) -> Stream<'_, B> {
        Stream {
            residual: &mut self.residual,
            normed: &mut self.normed,
            output: &mut self.output,
            operand: None,
        }
    }
}

/// The way back to the residual through this matrix.
fn plain_output<B: Backend>(proj: &Linear<B>) -> BlockOutput<'_, B> {
    BlockOutput { sub_norm: None, proj, post_norm: None, sum_norm: None, join: Join::Alone }
}

/// What is added to embeddings, and their norm.
#[derive(Debug, Clone, Copy)]
struct Embedded {
    len: usize,
    rows: usize,
    positions: bool,
    types: bool,
    norm: Option<NormKind>,
}

impl Case for Embedded {
    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let Self { len, rows, .. } = *self;
        let mut batch = Batch::default();
        batch.push(&vec![0; rows], 7, &[0, 1, 2, 3], 1);
        batch.token_types = (0..rows as u32).map(|i| i * 7 % 3).collect();
        let batch = staged(b, &batch);
        let table = |n, seed| rows_of(b, &Random(seed).normals(n * len), len);
        let (positions, types) = (table(80, 1), table(3, 2));
        let norm = self.norm.map(|kind| norm_of(b, kind, len, 3));
        let mut x = rows_of(b, &Random(5).normals(rows * len), len);
        let block = EmbedBlock {
            positions: self.positions.then_some(&positions),
            token_types: self.types.then_some(&types),
            norm: norm.as_ref(),
        };
        b.embed_block(&mut x, &batch, block).unwrap();
        vec![("x", read(b, &mut x))]
    }

    fn tolerance(&self, _: Sums) -> f64 {
        ELEMENTWISE
    }
}

#[test]
fn what_is_added_to_embeddings() {
    let case = Embedded { len: 768, rows: 50, positions: true, types: true, norm: Some(NormKind::Layer) };
    check(&[case, Embedded { rows: 1, ..case }, Embedded { norm: None, ..case }]);
    check(&[Embedded { types: false, ..case }, Embedded { positions: false, ..case }]);
    for len in [8, 300, 1000, 1024, 2048, 2056] {
        check(&[
            Embedded { len, norm: Some(NormKind::Rms), ..case },
            Embedded { len, positions: false, ..case },
        ]);
    }
}

/// Matmuls with what stands before or after them in blocks.
#[derive(Debug)]
struct Fused {
    parts: Vec<(DType, usize)>,
    n_in: usize,
    rows: usize,
    norm: NormKind,
    bias: bool,
}

impl Fused {
    /// A matrix of random floats.
    fn floats<B: Backend>(b: &B, n_out: usize, n_in: usize) -> Linear<B> {
        Linear::bare(b.matrix(vec![part(DType::F32, 1, n_out, n_in, 11)]).unwrap())
    }

    /// `linear(norm(x))`
    fn after_norm<B: Backend>(&self, b: &B, linear: &Linear<B>, n_out: usize) -> Tensor<B> {
        let (n_in, rows) = (self.n_in, self.rows);
        let x = rows_of(b, &Random(6).normals(rows * n_in), n_in);
        let (mut y, mut normed) = (poisoned(b, rows, n_out), poisoned(b, rows, n_in));
        let norm = &norm_of(b, self.norm, n_in, 7);
        let block = HeadBlock { x: &x, norm, linear, softcap: None, normed: &mut normed, gather: None };
        b.head(&mut y, block).unwrap();
        y
    }

    /// `residual + linear(activation(...))`
    fn added<B: Backend>(&self, b: &B, linear: &Linear<B>, n_out: usize) -> Tensor<B> {
        let up = &Self::floats(b, self.n_in, n_out);
        let mut rows = Rows::new(b, self.rows, n_out, 9);
        let block = FfnBlock {
            input: BlockInput::Residual,
            up: FfnUp::Plain { up },
            activation: Activation::Relu,
            out: plain_output(linear),
            hidden: &mut poisoned(b, self.rows, self.n_in),
        };
        b.feed_forward(rows.stream(), block).unwrap();
        rows.residual
    }

    /// `residual + down(activation(gate(norm(residual))) · up(norm(residual)))` with the halves of `linear` for gate and up.
    fn gated<B: Backend>(&self, b: &B, gate_up: &Linear<B>, n_out: usize) -> Tensor<B> {
        let down = &Self::floats(b, self.n_in, n_out / 2);
        let mut rows = Rows::new(b, self.rows, self.n_in, 6);
        let block = FfnBlock {
            input: BlockInput::Norm(&norm_of(b, self.norm, self.n_in, 7)),
            up: FfnUp::Gated { gate_up, rows: &mut poisoned(b, self.rows, n_out) },
            activation: Activation::Silu,
            out: plain_output(down),
            hidden: &mut poisoned(b, self.rows, n_out / 2),
        };
        b.feed_forward(rows.stream(), block).unwrap();
        rows.residual
    }
}

impl Case for Fused {
    const PATHS: Paths = Paths::Weights;

    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let parts =
            self.parts.iter().zip(1..).map(|(&(dtype, n_out), seed)| part(dtype, 1, n_out, self.n_in, seed));
        let n_out: usize = self.parts.iter().map(|p| p.1).sum();
        let mut w = Linear::bare(b.matrix(parts.collect()).unwrap());
        let mut gated = self.gated(b, &w, n_out);
        w.bias = self.bias.then(|| vector(b, &Random(5).normals(n_out)));
        let (mut y, mut sum) = (self.after_norm(b, &w, n_out), self.added(b, &w, n_out));
        vec![("y", read(b, &mut y)), ("sum", read(b, &mut sum)), ("gated", read(b, &mut gated))]
    }

    fn tolerance(&self, sums: Sums) -> f64 {
        // The gated outputs multiply two results, and are multiplied once more.
        5.0 * self.parts.iter().map(|p| tolerance(p.0, sums)).fold(0.0, f64::max)
    }

    fn is_worth(&self, on: Emulated) -> bool {
        let dtypes: Vec<DType> = self.parts.iter().map(|p| p.0).collect();
        is_worth_products(on, &dtypes, self.rows)
    }
}

/// A gated feed-forward block.
#[derive(Debug, Clone, Copy)]
struct Gated {
    gate: DType,
    up: DType,
    down: DType,
    hidden_size: usize,
    intermediate_size: usize,
    rows: usize,
    activation: Activation,
    around: Around,
}

/// What stands around a block's matmuls.
#[derive(Debug, Clone, Copy, Default)]
struct Around {
    input: Reads,
    /// Norms of the last matmul's input and output.
    sub_norm: bool,
    post_norm: bool,
    /// Factors after the last matmul, in place of a bias.
    scale: bool,
}

#[derive(Debug, Clone, Copy, Default)]
enum Reads {
    #[default]
    Norm,
    Residual,
    Shared,
}

impl Case for Gated {
    const PATHS: Paths = Paths::Weights;

    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let Self { hidden_size: n, intermediate_size: inner, rows, around, .. } = *self;
        let parts = vec![part(self.gate, 1, inner, n, 1), part(self.up, 1, inner, n, 2)];
        let gate_up = &Linear::bare(b.matrix(parts).unwrap());
        let mut down = Linear::bare(b.matrix(vec![part(self.down, 1, n, inner, 3)]).unwrap());
        match around.scale {
            true => down.scale = Some(vector(b, &Random(5).normals(n))),
            false => down.bias = Some(vector(b, &Random(5).normals(n))),
        }
        let norms = [
            norm_of(b, NormKind::Rms, n, 7),
            norm_of(b, NormKind::Rms, inner, 12),
            norm_of(b, NormKind::Rms, n, 14),
        ];
        let [norm, sub_norm, post_norm] = &norms;
        let mut stream = Rows::new(b, rows, n, 6);
        if let Reads::Shared = around.input {
            stream.normed = rows_of(b, &Random(16).normals(rows * n), n);
        }
        let block = FfnBlock {
            input: match around.input {
                Reads::Norm => BlockInput::Norm(norm),
                Reads::Residual => BlockInput::Residual,
                Reads::Shared => BlockInput::Shared,
            },
            up: FfnUp::Gated { gate_up, rows: &mut poisoned(b, rows, 2 * inner) },
            activation: self.activation,
            out: BlockOutput {
                sub_norm: around.sub_norm.then_some(sub_norm),
                proj: &down,
                post_norm: around.post_norm.then_some(post_norm),
                sum_norm: None,
                join: Join::Alone,
            },
            hidden: &mut poisoned(b, rows, inner),
        };
        b.feed_forward(stream.stream(), block).unwrap();
        vec![("y", read(b, &mut stream.residual))]
    }

    fn tolerance(&self, sums: Sums) -> f64 {
        // The gated outputs multiply two results.
        4.0 * [self.gate, self.up, self.down].map(|t| tolerance(t, sums)).into_iter().fold(0.0, f64::max)
    }

    fn is_worth(&self, on: Emulated) -> bool {
        is_worth_products(on, &[self.gate, self.up, self.down], self.rows)
    }
}

#[test]
fn blocks_with_norms_before_between_and_after() {
    for dtype in [DType::F32, DType::Q4_K, DType::BF16] {
        for rows in [1, 3, 20, 300] {
            let case = Gated {
                gate: dtype,
                up: dtype,
                down: dtype,
                hidden_size: 256,
                intermediate_size: 512,
                rows,
                activation: Activation::Silu,
                around: Around::default(),
            };
            for input in [Reads::Norm, Reads::Residual, Reads::Shared] {
                let around = Around { input, ..Around::default() };
                check(&[Gated { around, ..case }]);
            }
            let around = Around { sub_norm: true, scale: true, ..Around::default() };
            check(&[Gated { around, ..case }]);
            check(&[Gated { around: Around { post_norm: true, ..Around::default() }, ..case }]);
            check(&[Gated { around: Around { scale: true, ..Around::default() }, ..case }]);
        }
    }
}

#[test]
fn rows_of_blocks_on_a_deterministic_gpu_do_not_depend_on_the_batch() {
    use DType::*;
    let types = [(Q4_K, Q4_K, Q6_K), (BF16, BF16, BF16), (Q4_K, Q6_K, F16), (Q8_0, Q8_0, Q4_0)];
    for (gate, up, down) in types {
        let all = Gated {
            gate,
            up,
            down,
            hidden_size: 512,
            intermediate_size: 768,
            rows: 140,
            activation: Activation::Silu,
            around: Around::default(),
        };
        let want = all.run(&Reference);
        for (path, gpu) in deterministic_gpus() {
            let found = all.run(gpu);
            compare(&all, path, &found, &want, all.tolerance(Sums::FastGpu));
            for rows in [1, 8, 9, 70] {
                let some = Gated { rows, ..all }.run(gpu).remove(0).1;
                assert_eq!(bits(&found[0].1[..some.len()]), bits(&some), "{rows} rows of {all:?} on {path}");
            }
        }
    }
}

#[test]
fn gated_blocks() {
    use DType::*;
    let activation = Activation::Silu;
    for (gate, up, down) in
        [(BF16, BF16, BF16), (Q4_K, Q4_K, Q6_K), (Q4_K, Q6_K, F16), (F16, F16, Q8_0), (F32, F32, F32)]
    {
        let of = |rows, hidden_size, intermediate_size, activation| {
            let around = Around::default();
            check(&[Gated { gate, up, down, hidden_size, intermediate_size, rows, activation, around }]);
        };
        of(3, 256, 256, activation);
        for (rows, inner) in [(20, 512), (100, 768), (256, 512)] {
            of(rows, 256, inner, activation);
        }
        of(270, 256, 512, Activation::GeluTanh);
        of(270, 256, 256, Activation::GeluErf);
    }
    let of = |dtype, rows| {
        let (hidden_size, intermediate_size) = (512, 768);
        check(&[Gated {
            gate: dtype,
            up: dtype,
            down: dtype,
            hidden_size,
            intermediate_size,
            rows,
            activation,
            around: Around::default(),
        }]);
    };
    of(BF16, 387);
    of(Q4_K, 387);
    // Several blocks share a tile of outputs on a GPU of 132 SMs.
    let (hidden_size, intermediate_size, around) = (768, 1024, Around::default());
    for rows in [70, 140] {
        let (gate, up, down) = (Q4_K, Q4_K, Q6_K);
        check(&[Gated { gate, up, down, hidden_size, intermediate_size, rows, activation, around }]);
    }
    // Pieces of 64 columns that are not multiples of 128 or 256.
    let case = Gated {
        gate: BF16,
        up: BF16,
        down: BF16,
        hidden_size: 320,
        intermediate_size: 320,
        rows: 261,
        activation: Activation::Silu,
        around: Around::default(),
    };
    check(&[Gated { gate: Q8_0, down: Q8_0, ..case }]);
    check(&[Gated { gate: Q8_0, up: Q8_0, down: BF16, ..case }, case]);
}

/// Two feed-forward blocks without gates, after each of which the residual is normalized; the second reads what the first left.
#[derive(Debug, Clone, Copy)]
struct SumNorms {
    dtype: DType,
    hidden_size: usize,
    intermediate_size: usize,
    rows: usize,
    activation: Activation,
    norm: NormKind,
    bias: bool,
}

impl Case for SumNorms {
    const PATHS: Paths = Paths::Weights;

    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let Self { dtype, hidden_size: n, intermediate_size: inner, rows, .. } = *self;
        let mut stream = Rows::new(b, rows, n, 6);
        let mut operand = None;
        for seed in [1, 2] {
            let linear = |n_out, n_in, seed| Linear {
                bias: self.bias.then(|| vector(b, &Random(seed + 20).normals(n_out))),
                ..Linear::bare(b.matrix(vec![part(dtype, 1, n_out, n_in, seed)]).unwrap())
            };
            let (up, down) = (linear(inner, n, seed), linear(n, inner, seed + 10));
            let block = FfnBlock {
                input: BlockInput::Residual,
                up: FfnUp::Plain { up: &up },
                activation: self.activation,
                out: BlockOutput { sum_norm: Some(&norm_of(b, self.norm, n, seed)), ..plain_output(&down) },
                hidden: &mut poisoned(b, rows, inner),
            };
            operand = b.feed_forward(Stream { operand, ..stream.stream() }, block).unwrap();
            b.synchronize().unwrap();
        }
        if let Some(operand) = operand {
            b.read_operand(&mut stream.residual, operand).unwrap();
        }
        vec![("y", read(b, &mut stream.residual))]
    }

    fn tolerance(&self, sums: Sums) -> f64 {
        // Four products follow one another.
        4.0 * tolerance(self.dtype, sums)
    }

    fn is_worth(&self, on: Emulated) -> bool {
        is_worth_products(on, &[self.dtype], self.rows)
    }
}

#[test]
fn blocks_without_gates_and_norms_of_the_residual() {
    use Activation::*;
    use DType::*;
    let case = SumNorms {
        dtype: F16,
        hidden_size: 320,
        intermediate_size: 448,
        rows: 290,
        activation: GeluErf,
        norm: NormKind::Layer,
        bias: true,
    };
    for dtype in [F32, F16, BF16, Q4_1, Q8_0, Q4_K] {
        let hidden_size = if dtype == Q4_K { 512 } else { 320 };
        let intermediate_size = if dtype == Q4_K { 256 } else { 448 };
        let case = SumNorms { dtype, hidden_size, intermediate_size, ..case };
        check(&[case, SumNorms { rows: 1, ..case }, SumNorms { rows: 20, ..case }]);
    }
    for activation in [Silu, GeluTanh, Relu, ReluSquared] {
        check(&[SumNorms { activation, dtype: Q4_1, rows: 40, ..case }]);
    }
    let norm = NormKind::Rms;
    check(&[SumNorms { norm, bias: false, hidden_size: 1088, intermediate_size: 128, ..case }]);
    // Rows that no tile holds.
    check(&[
        SumNorms { hidden_size: 300, ..case },
        SumNorms { hidden_size: 2112, rows: 270, intermediate_size: 64, ..case },
    ]);
}

/// Queries, keys and values of rows that lie as products read them, where boxes of a product meet.
#[test]
fn products_of_several_matrices_of_16_bits() {
    use DType::*;
    for parts in [
        vec![(BF16, 256), (BF16, 128), (BF16, 128)],
        vec![(BF16, 384), (BF16, 40), (BF16, 40)],
        vec![(F16, 512), (F16, 30)],
    ] {
        check(&[Fused { parts, n_in: 320, rows: 290, norm: NormKind::Rms, bias: true }]);
    }
}

#[test]
fn products_with_what_stands_around_them() {
    use DType::*;
    for dtype in packed_types().into_iter().chain([F32, F16, BF16, Q4_1]) {
        for (parts, n_in, rows) in [(vec![16, 16], 256, 1), (vec![30, 30], 768, 3), (vec![44], 1792, 9)] {
            let parts = parts.into_iter().map(|n| (dtype, n)).collect();
            let norm = if rows == 9 { NormKind::Layer } else { NormKind::Rms };
            check(&[Fused { parts, n_in, rows, norm, bias: rows == 3 }]);
        }
    }
    // Blocks of outputs that end within the gate; a gate and its up of different types.
    for parts in
        [vec![(Q4_K, 150), (Q4_K, 150)], vec![(Q4_K, 300)], vec![(Q6_K, 70), (F16, 70)], vec![(BF16, 90)]]
    {
        for rows in [70, 270] {
            check(&[Fused { parts: parts.clone(), n_in: 256, rows, norm: NormKind::Rms, bias: true }]);
        }
    }
    for (rows, n_in) in [(2, 2304), (8, 256), (7, 4352)] {
        for parts in [
            vec![(Q4_K, 90), (Q4_K, 90)],
            vec![(Q6_K, 30)],
            vec![(Q4_K, 40), (Q6_K, 40)],
            vec![(Q8_0, 7), (Q8_0, 7)],
        ] {
            check(&[Fused { parts, n_in, rows, norm: NormKind::Rms, bias: true }]);
        }
    }
    check(&[Fused {
        parts: vec![(F16, 64), (BF16, 64)],
        n_in: 96,
        rows: 20,
        norm: NormKind::Rms,
        bias: true,
    }]);
    let parts = vec![(Q4_K, 64), (Q4_K, 16), (Q6_K, 16)];
    check(&[Fused { parts, n_in: 512, rows: 2, norm: NormKind::Rms, bias: true }]);
}

/// A mixture of experts, maybe with a shared one beside it.
#[derive(Clone, Copy, Debug)]
struct Mixture {
    dtype: DType,
    hidden_size: usize,
    rows: usize,
    shared: bool,
    /// Of the shared one.
    gate: bool,
    /// Norms of its parts, of which the shared one has the block's input.
    norms: bool,
    /// Length of what experts read; these and the shared one then have no gates.
    latent: Option<usize>,
    input: Reads,
    post_norm: bool,
}

impl Case for Mixture {
    const PATHS: Paths = Paths::Weights;

    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let Self { dtype, hidden_size: n, rows, .. } = *self;
        let (inner, shared_inner, n_experts, n_used) = (256, 512, 5, 2);
        let matrix = |parts| b.matrix(parts).unwrap();
        let scores = Linear {
            bias: Some(vector(b, &Random(17).normals(n_experts))),
            ..Linear::bare(matrix(vec![part(DType::F32, 1, n_experts, n, 1)]))
        };
        let (width, up_rows) = (self.latent.unwrap_or(n), if self.latent.is_some() { 1 } else { 2 });
        let gate_up = matrix(vec![part(dtype, n_experts, up_rows * inner, width, 2)]);
        let down = matrix(vec![part(dtype, n_experts, width, inner, 3)]);
        let shared_gate_up = Linear::bare(matrix(vec![part(dtype, 1, up_rows * shared_inner, n, 4)]));
        let latent_down = Linear::bare(matrix(vec![part(dtype, 1, width, n, 38)]));
        let latent_up = Linear::bare(matrix(vec![part(dtype, 1, n, width, 39)]));
        let shared_down = Linear::bare(matrix(vec![part(dtype, 1, n, shared_inner, 5)]));
        let shared_gate = Linear::bare(matrix(vec![part(DType::F32, 1, 1, n, 6)]));
        let params = MoeParams {
            router: Router::softmax(n_used, true),
            activation: if up_rows == 2 { Activation::Silu } else { Activation::ReluSquared },
            gated: up_rows == 2,
        };
        let (norm, post_norm) = (norm_of(b, NormKind::Rms, n, 7), norm_of(b, NormKind::Rms, n, 14));
        let mut stream = Rows::new(b, rows, n, 8);
        if let Reads::Shared = self.input {
            stream.normed = rows_of(b, &Random(16).normals(rows * n), n);
        }
        let (mut shared_rows, mut shared_hidden) =
            (poisoned(b, rows, 2 * shared_inner), poisoned(b, rows, shared_inner));
        let shared = SharedExpert {
            gate_up: &shared_gate_up,
            down: &shared_down,
            gate: self.gate.then_some(&shared_gate),
            rows: &mut shared_rows,
            hidden: &mut shared_hidden,
        };
        let [mut latent_x, mut latent_y] = [width, width].map(|len| poisoned(b, rows, len));
        let mut shared_out = poisoned(b, rows, n);
        let [router, experts, post_experts, post_shared] =
            &[30, 32, 34, 36].map(|seed| norm_of(b, NormKind::Rms, n, seed));
        let block = MoeBlock {
            input: match self.input {
                Reads::Norm => BlockInput::Norm(&norm),
                Reads::Residual => BlockInput::Residual,
                Reads::Shared => BlockInput::Shared,
            },
            router: &scores,
            experts: Experts {
                gate_up: &gate_up,
                gate_up_bias: None,
                down: &down,
                down_bias: None,
                selection_bias: None,
                output_scale: None,
                params,
            },
            shared: self.shared.then_some(shared),
            latent: self.latent.map(|_| LatentExperts {
                down: &latent_down,
                up: &latent_up,
                x: &mut latent_x,
                y: &mut latent_y,
                shared: &mut shared_out,
            }),
            norms: self.norms.then_some(MoeNorms { router, experts, post_experts, post_shared }),
            post_norm: self.post_norm.then_some(&post_norm),
            is_part: false,
            scores: &mut poisoned(b, rows, n_experts),
            scratch: &mut MoeScratch {
                x: poisoned(b, rows * n_used, width),
                gate_up: poisoned(b, rows * n_used, up_rows * inner),
                hidden: poisoned(b, rows * n_used, inner),
                y: poisoned(b, rows * n_used, width),
            },
        };
        b.experts(stream.stream(), block).unwrap();
        vec![("y", read(b, &mut stream.residual))]
    }

    fn tolerance(&self, sums: Sums) -> f64 {
        // The gated outputs multiply two results.
        4.0 * tolerance(self.dtype, sums)
    }

    fn is_worth(&self, on: Emulated) -> bool {
        is_worth_products(on, &[self.dtype], self.rows)
    }
}

#[test]
fn experts_alone_and_with_a_shared_one() {
    for dtype in [DType::F32, DType::Q4_K, DType::BF16] {
        for (shared, gate) in [(false, false), (true, false), (true, true)] {
            for rows in [1, 3, 20] {
                let case = |input, post_norm, norms| {
                    let (hidden_size, latent) = (256, None);
                    check(&[Mixture {
                        dtype,
                        hidden_size,
                        rows,
                        shared,
                        gate,
                        norms,
                        latent,
                        input,
                        post_norm,
                    }]);
                };
                case(Reads::Norm, true, true);
                case(Reads::Norm, false, false);
                case(Reads::Residual, true, false);
                case(Reads::Shared, false, false);
            }
        }
    }
}

#[test]
fn rows_of_experts_on_a_deterministic_gpu_do_not_depend_on_the_batch() {
    for dtype in [DType::Q4_K, DType::MXFP4] {
        let all = Mixture {
            dtype,
            hidden_size: 1280,
            rows: 20,
            shared: true,
            gate: true,
            norms: false,
            latent: None,
            input: Reads::Norm,
            post_norm: false,
        };
        let want = all.run(&Reference);
        for (path, gpu) in deterministic_gpus() {
            let found = all.run(gpu);
            compare(&all, path, &found, &want, all.tolerance(Sums::FastGpu));
            for rows in [1, 2, 9] {
                let some = Mixture { rows, ..all }.run(gpu).remove(0).1;
                assert_eq!(bits(&found[0].1[..some.len()]), bits(&some), "{rows} rows of {all:?} on {path}");
            }
        }
    }
}

#[test]
fn experts_between_two_matrices() {
    for (dtype, rows) in [(DType::F32, 3), (DType::Q8_0, 1), (DType::BF16, 20)] {
        for (shared, input) in [(false, Reads::Norm), (true, Reads::Norm), (true, Reads::Residual)] {
            let (hidden_size, latent) = (256, Some(512));
            let (gate, norms, post_norm) = (false, false, false);
            check(&[Mixture { dtype, hidden_size, rows, shared, gate, norms, latent, input, post_norm }]);
        }
    }
}

/// What tokens have for one layer of several.
#[derive(Debug)]
struct LayerInput {
    dtype: DType,
    rows: usize,
    len: usize,
    post_norm: bool,
}

impl Case for LayerInput {
    const PATHS: Paths = Paths::Weights;

    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let Self { dtype, rows, len, .. } = *self;
        let n = 256;
        let gate = &Linear::bare(b.matrix(vec![part(dtype, 1, len, n, 1)]).unwrap());
        let proj = &Linear::bare(b.matrix(vec![part(dtype, 1, n, len, 2)]).unwrap());
        let post_norm = &norm_of(b, NormKind::Rms, n, 14);
        let mut stream = Rows::new(b, rows, n, 8);
        let block = PerLayerInputBlock {
            gate,
            activation: Activation::GeluTanh,
            inputs: &rows_of(b, &Random(3).normals(rows * 3 * len), 3 * len),
            start: len,
            out: BlockOutput { post_norm: self.post_norm.then_some(post_norm), ..plain_output(proj) },
            rows: &mut poisoned(b, rows, len),
        };
        b.per_layer_input(stream.stream(), block).unwrap();
        vec![("y", read(b, &mut stream.residual))]
    }

    fn tolerance(&self, sums: Sums) -> f64 {
        // The second matmul reads what the first made.
        4.0 * tolerance(self.dtype, sums)
    }

    fn is_worth(&self, on: Emulated) -> bool {
        is_worth_products(on, &[self.dtype], self.rows)
    }
}

#[test]
fn inputs_of_layers() {
    for (dtype, len) in [(DType::F32, 12), (DType::Q4_K, 256), (DType::BF16, 64)] {
        for rows in [1, 3, 20] {
            for post_norm in [false, true] {
                check(&[LayerInput { dtype, rows, len, post_norm }]);
            }
        }
    }
}
