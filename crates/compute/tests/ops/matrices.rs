//! Operations that read weights: products, mixtures of experts, embeddings; in every element type.

use super::perf::{self, op};
use super::*;
use bytes::Bytes;
use realizar_compute::{
    Activation, ExpertGroups, Experts, GroupScore, MatrixPart, MoeParams, MoeScratch, Router, RouterScores,
};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Weights that differ from each other, in blocks of every type; more repeat them, since some types take long to encode.
const DIFFERENT: usize = 1 << 20;

/// Bytes of `n` weights of about unit size: encoded if the type can be written, else random blocks, tried again until all
/// their numbers are of a sensible size. So are those of codebooks, since random blocks reach all points.
fn weights(dtype: DType, n: usize, random: &mut Random) -> Bytes {
    let spec = dtype.spec();
    if n > DIFFERENT {
        let some = weights(dtype, DIFFERENT, random);
        let n_bytes = dtype.bytes_for(n).unwrap();
        return some.iter().copied().cycle().take(n_bytes).collect();
    }
    let mut bytes = vec![0; dtype.bytes_for(n).unwrap()];
    let is_codebook = (DType::IQ1_S..=DType::IQ3_S).contains(&dtype);
    if let Some(quantize) = spec.quantize.filter(|_| !is_codebook) {
        quantize(&random.normals(n), &mut bytes, None);
        return bytes.into();
    }
    let mut floats = vec![0.0; spec.block_len];
    for block in bytes.chunks_exact_mut(spec.block_bytes) {
        loop {
            block.fill_with(|| random.next() as u8);
            (spec.dequantize)(block, &mut floats);
            let largest =
                floats.iter().fold(0.0, |m, x| if x.is_finite() { x.abs().max(m) } else { f32::MAX });
            if (0.1..10.0).contains(&largest) {
                break;
            }
        }
    }
    bytes.into()
}

/// A matrix with the weights of this seed, which are made once: every path wants them, and some types take long to encode.
pub(super) fn part(dtype: DType, n_experts: usize, n_out: usize, n_in: usize, seed: u64) -> MatrixPart {
    static MADE: Mutex<BTreeMap<(DType, usize, u64), Bytes>> = Mutex::new(BTreeMap::new());
    let n = n_experts * n_out * n_in;
    let found = MADE.lock().unwrap().get(&(dtype, n, seed)).cloned();
    let bytes = found.unwrap_or_else(|| {
        let bytes = weights(dtype, n, &mut Random(seed));
        MADE.lock().unwrap().insert((dtype, n, seed), bytes.clone());
        bytes
    });
    MatrixPart { name: "w".into(), dtype, n_experts, n_out, n_in, bytes }
}

#[derive(Debug, Clone)]
struct Matmul {
    /// Type and outputs of each stacked part.
    parts: Vec<(DType, usize)>,
    n_in: usize,
    rows: std::ops::Range<usize>,
    bias: bool,
}

impl Case for Matmul {
    const PATHS: Paths = Paths::Weights;

    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let Self { n_in, rows, .. } = self;
        let parts =
            self.parts.iter().zip(1..).map(|(&(dtype, n_out), seed)| part(dtype, 1, n_out, *n_in, seed));
        let parts: Vec<_> = parts.collect();
        let matrix = || b.matrix(parts.clone()).unwrap();
        let copies = perf::copies(parts.iter().map(|p| p.bytes.len()).sum());
        let w: Vec<_> = (0..copies).map(|_| matrix()).collect();
        assert!(b.matrix_bytes(&w[0]) > 0);
        let n_out = self.parts.iter().map(|p| p.1).sum();
        let bias = self.bias.then(|| vector(b, &Random(5).normals(n_out)));
        let x = rows_of(b, &Random(6).normals(rows.end * n_in)[rows.start * n_in..], *n_in);
        let mut y = poisoned(b, rows.len(), n_out);
        op(b, w.len(), |i| b.matmul(&mut y, &x, &w[i % w.len()], bias.as_ref()));
        vec![("y", read(b, &mut y))]
    }

    fn tolerance(&self, sums: Sums) -> f64 {
        self.parts.iter().map(|p| tolerance(p.0, sums)).fold(0.0, f64::max)
    }

    fn is_worth(&self, on: Emulated) -> bool {
        let dtypes: Vec<DType> = self.parts.iter().map(|p| p.0).collect();
        let n_out: usize = self.parts.iter().map(|p| p.1).sum();
        let is_large = n_out * self.n_in * self.rows.len() > 1 << 21;
        is_worth_products(on, &dtypes, self.rows.len()) && !(on == Emulated::Exact && is_large)
    }
}

#[test]
fn matmul_of_every_type() {
    for spec in QUANTS {
        for (n_out, blocks, m) in [(1, 1, 60), (16, 3, 1), (33, 1, 7), (20, 3, 33), (5, 2, 70)] {
            // Rows of plain numbers have odd lengths.
            let n_in = if spec.block_len == 1 { blocks * 35 - 2 } else { blocks * spec.block_len };
            check(&[Matmul { parts: vec![(spec.dtype, n_out)], n_in, rows: 0..m, bias: m % 2 == 0 }]);
        }
    }
}

#[test]
fn matmul_of_stacked_parts_of_different_types() {
    use DType::*;
    for (parts, n_in) in [
        (vec![(Q4_K, 40), (Q4_K, 8), (Q6_K, 8)], 512),
        (vec![(Q8_0, 17), (F16, 3), (Q5_1, 16)], 96),
        (vec![(F32, 1), (BF16, 1), (F16, 1), (F32, 30)], 37),
        (vec![(IQ4_XS, 5), (Q5_K, 21), (Q4_0, 6)], 256),
    ] {
        for (m, bias) in [(1, true), (3, false), (40, true)] {
            check(&[Matmul { parts: parts.clone(), n_in, rows: 0..m, bias }]);
        }
    }
}

#[test]
fn matmul_of_many_rows() {
    use DType::*;
    // More and fewer rows and outputs than blocks of a GPU have, and inputs that end within a step.
    for (n_out, n_in, m) in
        [(300, 64, 260), (1000, 64, 130), (129, 72, 65), (256, 320, 9), (2, 1, 20), (140, 2312, 70)]
    {
        for dtype in [F16, BF16, F32] {
            check(&[Matmul { parts: vec![(dtype, n_out)], n_in, rows: 0..m, bias: true }]);
        }
    }
    // Blocks that share the columns of their outputs, and more than one group of pieces, of which the last is short.
    check(&[Matmul { parts: vec![(Q8_0, 40), (Q4_0, 9)], n_in: 2240, rows: 0..40, bias: true }]);
    check(&[Matmul { parts: vec![(Q8_0, 40), (F16, 9), (Q4_0, 9)], n_in: 320, rows: 0..270, bias: true }]);
    let of = |(n_out, n_in, m), dtype| Matmul { parts: vec![(dtype, n_out)], n_in, rows: 0..m, bias: false };
    let types: Vec<DType> = packed_types().into_iter().chain([Q4_1, IQ3_XXS]).collect();
    for shape in [(300, 256, 140), (40, 1280, 64), (30, 4352, 20), (20, 2304, 200)] {
        types.iter().for_each(|&dtype| check(&[of(shape, dtype)]));
    }
    // GPUs decode the weights first.
    check_grid(4, &types.iter().map(|&dtype| of((300, 512, 400), dtype)).collect::<Vec<_>>());
}

#[test]
fn matmul_of_a_few_rows_of_packed_weights() {
    use DType::*;
    // Outputs that end within a tile, one group of pieces and several, an odd number of them, of which the last may be short.
    for (n_out, n_in, m) in [
        (1, 256, 2),
        (80, 6400, 2),
        (40, 512, 8),
        (300, 6400, 5),
        (70, 4352, 8),
        (33, 2048, 7),
        (90, 2816, 3),
        (33, 4096, 4),
        (20, 2304, 9),
    ] {
        // Two sums of one random block of IQ3_S are too few for a mean error: rounded activations alone exceed the bound, on CPUs too.
        for dtype in packed_types().into_iter().filter(|&dtype| (dtype, n_out) != (IQ3_S, 1)) {
            check(&[Matmul { parts: vec![(dtype, n_out)], n_in, rows: 0..m, bias: m % 2 == 0 }]);
        }
    }
    for m in [4, 8] {
        let parts = vec![(Q4_K, 70), (Q6_K, 24), (Q5_K, 1), (Q4_K, 5)];
        check(&[Matmul { parts, n_in: 2304, rows: 0..m, bias: true }]);
    }
}

/// Routers of experts are narrow matrices of floats.
#[test]
fn matmul_of_narrow_floats() {
    for (n_out, n_in) in [(128, 2052), (33, 4100), (1, 4), (500, 128)] {
        for (m, bias) in [(1, true), (8, false), (9, true), (70, false)] {
            let parts = vec![(DType::F32, n_out), (DType::F32, 3)];
            check_on_gpus(&[Matmul { parts, n_in, rows: 0..m, bias }]);
        }
    }
    // Rows of a prompt.
    check_on_gpus(&[Matmul { parts: vec![(DType::F32, 35)], n_in: 132, rows: 0..580, bias: true }]);
}

/// Every kernel, with rows of more than one group of pieces, of which the last is short.
#[test]
fn matmul_of_every_packed_type() {
    for dtype in packed_types() {
        for m in [1, 2, 8, 9, 64, 65, 257] {
            check_on_gpus(&[Matmul { parts: vec![(dtype, 70)], n_in: 2304, rows: 0..m, bias: m % 2 == 0 }]);
        }
    }
}

#[test]
fn matmul_at_the_borders_between_kernels_of_gpus() {
    use DType::*;
    for dtype in [F16, BF16, Q8_0, Q4_K, IQ4_XS] {
        for m in [16, 17, 32, 33, 64, 65, 128, 129, 256, 257] {
            let parts = vec![(dtype, 128), (dtype, 9)];
            check_on_gpus(&[Matmul { parts, n_in: 512, rows: 0..m, bias: true }]);
        }
    }
    // So many columns that clusters have their most blocks.
    for (dtype, m) in [(Q4_0, 8), (BF16, 40)] {
        check_on_gpus(&[Matmul { parts: vec![(dtype, 20)], n_in: 16384, rows: 0..m, bias: false }]);
    }
}

/// On a GPU of 132 multiprocessors several blocks share a tile of outputs.
#[test]
fn matmul_of_rows_whose_tiles_are_shared_among_blocks() {
    use DType::*;
    for rows in [70, 140] {
        check(&[Matmul { parts: vec![(Q4_K, 300), (Q6_K, 200)], n_in: 2304, rows: 0..rows, bias: true }]);
        check(&[Matmul { parts: vec![(Q8_0, 200)], n_in: 2560, rows: 0..rows, bias: false }]);
    }
}

/// Blocks wait for each other's sums, and rings are filled while they are read; neither may show in a bit. With 68 tiles of three steps,
/// blocks of a GPU of 132 multiprocessors have parts of two tiles.
#[test]
fn a_product_is_the_same_again_and_again() {
    for (_, _, gpu) in gpus() {
        for (dtype, n_out, n_in) in [(DType::Q4_K, 8600, 768), (DType::Q6_K, 300, 2560)] {
            let w = gpu.matrix(vec![part(dtype, 1, n_out, n_in, 1)]).unwrap();
            for m in [66, 130] {
                let x = rows_of(gpu, &Random(6).normals(m * n_in), n_in);
                let mut y = poisoned(gpu, m, n_out);
                gpu.matmul(&mut y, &x, &w, None).unwrap();
                let first = read(gpu, &mut y);
                for _ in 0..2 {
                    gpu.matmul(&mut y, &x, &w, None).unwrap();
                    assert_eq!(bits(&first), bits(&read(gpu, &mut y)), "{dtype} {m} on {}", gpu.describe());
                }
            }
        }
    }
}

/// Activations that are rounded to integers must not hide it.
#[test]
fn what_is_not_a_number_spoils_its_row_and_no_other() {
    let (n_out, n_in) = (24, 512);
    for (_, _, gpu) in gpus() {
        for dtype in [DType::Q4_K, DType::Q6_K, DType::Q8_0, DType::BF16] {
            let w = gpu.matrix(vec![part(dtype, 1, n_out, n_in, 1)]).unwrap();
            for m in [1, 2, 3, 5, 40, 300] {
                let mut x = Random(6).normals(m * n_in);
                x[(m - 1) * n_in + 300] = f32::NAN;
                let mut y = poisoned(gpu, m, n_out);
                gpu.matmul(&mut y, &rows_of(gpu, &x, n_in), &w, None).unwrap();
                let y = read(gpu, &mut y);
                let (others, spoiled) = y.split_at((m - 1) * n_out);
                assert!(others.iter().all(|v| v.is_finite()), "{dtype} {m} on {}", gpu.describe());
                assert!(spoiled.iter().all(|v| v.is_nan()), "{dtype} {m} on {}", gpu.describe());
            }
        }
    }
}

#[test]
fn matmul_rows_do_not_depend_on_the_batch() {
    use DType::*;
    for dtype in [F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K, Q3_K, IQ2_XS, MXFP4] {
        let all = Matmul { parts: vec![(dtype, 37)], n_in: 512, rows: 0..70, bias: true };
        for cpu in cpus(Paths::Weights) {
            let y = all.run(cpu).remove(0).1;
            for rows in [0..1, 31..33, 64..70, 5..22] {
                let some = Matmul { rows: rows.clone(), ..all.clone() }.run(cpu).remove(0).1;
                let same = &y[rows.start * 37..rows.end * 37];
                assert_eq!(bits(same), bits(&some), "{dtype} rows {rows:?} on {:?}", cpu.options());
            }
        }
    }
}

/// In the deterministic mode, on both sides of every border between kernels: on Hopper 16-bit weights take 8, 16, .., 256 rows at once.
#[test]
fn rows_on_a_deterministic_gpu_do_not_depend_on_the_batch() {
    use DType::*;
    let types = packed_types().into_iter().chain([F16, BF16, Q4_1, F32]);
    let one_type = types.map(|dtype| (vec![(dtype, 150)], 1536, 37));
    let others = [
        (vec![(Q4_K, 140), (Q6_K, 20)], 2304, 20),
        (vec![(Q4_K, 300)], 512, 150),
        (vec![(Q8_0, 40)], 256, 300),
        (vec![(BF16, 300)], 320, 290),
    ];
    for (parts, n_in, m) in one_type.chain(others) {
        let n_out: usize = parts.iter().map(|p| p.1).sum();
        let all = Matmul { parts, n_in, rows: 0..m, bias: true };
        let want = all.run(&Reference);
        for (path, gpu) in deterministic_gpus() {
            let found = all.run(gpu);
            compare(&all, path, &found, &want, all.tolerance(Sums::FastGpu));
            for rows in [0..1, 5..7, 2..5, 1..5, 3..11, 2..11, m - 9..m, 0..m - 1] {
                let some = Matmul { rows: rows.clone(), ..all.clone() }.run(gpu).remove(0).1;
                let same = &found[0].1[rows.start * n_out..rows.end * n_out];
                assert_eq!(bits(same), bits(&some), "rows {rows:?} of {all:?} on {path}");
            }
        }
    }
}

#[derive(Debug)]
struct Embed {
    dtype: DType,
    len: usize,
    tokens: Vec<u32>,
    scale: f32,
}

impl Case for Embed {
    const PATHS: Paths = Paths::Weights;

    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let part = part(self.dtype, 1, 50, self.len, 3);
        let tables = [b.matrix(vec![part.clone()]).unwrap(), b.table(part).unwrap()];
        let batch = batch_of(&self.tokens.iter().map(|&t| (t, 0, false)).collect::<Vec<_>>());
        let embed = |(name, table)| {
            let mut y = poisoned(b, self.tokens.len(), self.len);
            b.embed(&mut y, table, &staged(b, &batch), self.scale).unwrap();
            (name, read(b, &mut y))
        };
        ["matrix", "table"].into_iter().zip(&tables).map(embed).collect()
    }

    fn tolerance(&self, _: Sums) -> f64 {
        0.0
    }
}

#[test]
fn embed_of_every_type() {
    for spec in QUANTS {
        let dtype = spec.dtype;
        let len = if spec.block_len == 1 { 33 } else { 2 * spec.block_len };
        let many = (0..400).map(|i| i * 7 % 50).collect();
        check(&[
            Embed { dtype, len, tokens: vec![49, 0, 16, 16], scale: 1.0 },
            Embed { dtype, len, tokens: many, scale: 22.5 },
        ]);
    }
}

#[derive(Debug, Clone)]
struct Moe {
    dtype: DType,
    hidden_size: usize,
    intermediate_size: usize,
    n_experts: usize,
    params: MoeParams,
    /// Biases of the experts' matrices.
    bias: bool,
    /// A bias of the choice.
    selection_bias: bool,
    /// Factors on the weights of experts.
    output_scale: bool,
    rows: std::ops::Range<usize>,
    /// Scores of the router for every row, where they are not random.
    scores: Option<Vec<f32>>,
}

impl Case for Moe {
    const PATHS: Paths = Paths::Weights;

    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let Self { dtype, hidden_size: n, intermediate_size: inner, n_experts, .. } = *self;
        let (rows, n_rows) = (&self.rows, self.rows.len());
        let matrix = |parts| b.matrix(parts).unwrap();
        let mut gate_up = vec![part(dtype, n_experts, inner, n, 1), part(dtype, n_experts, inner, n, 2)];
        gate_up.truncate(self.params.up_rows());
        let gate_up = matrix(gate_up);
        let down = matrix(vec![part(dtype, n_experts, n, inner, 3)]);
        // Inputs of a size that leaves the gates in the range where activations bend.
        let x: Vec<f32> = Random(4).normals(rows.end * n)[rows.start * n..].iter().map(|x| x * 0.1).collect();
        let router = match &self.scores {
            Some(scores) => scores.repeat(n_rows),
            None => Random(5).normals(rows.end * n_experts)[rows.start * n_experts..].to_vec(),
        };
        let n_uses = n_rows * self.params.router.n_used;
        let mut scratch = MoeScratch {
            x: poisoned(b, n_uses, n),
            gate_up: poisoned(b, n_uses, 2 * inner),
            hidden: poisoned(b, n_uses, inner),
            y: poisoned(b, n_uses, n),
        };
        let mut y = poisoned(b, n_rows, n);
        let (x, router) = (rows_of(b, &x, n), rows_of(b, &router, n_experts));
        let biases = |len: usize, seed| vector(b, &Random(seed).normals(n_experts * len));
        let [gate_up_bias, down_bias] = [biases(2 * inner, 6), biases(n, 7)];
        let [selection_bias, output_scale] = [biases(1, 8), biases(1, 9)];
        let experts = Experts {
            gate_up: &gate_up,
            gate_up_bias: self.bias.then_some(&gate_up_bias),
            down: &down,
            down_bias: self.bias.then_some(&down_bias),
            selection_bias: self.selection_bias.then_some(&selection_bias),
            output_scale: self.output_scale.then_some(&output_scale),
            params: self.params,
        };
        op(b, 1, |_| b.moe(&mut y, &x, &router, &experts, &mut scratch));
        vec![("y", read(b, &mut y))]
    }

    fn tolerance(&self, sums: Sums) -> f64 {
        // Two products one after the other, with a product of two results of the first between them.
        4.0 * tolerance(self.dtype, sums)
    }

    fn is_worth(&self, on: Emulated) -> bool {
        let n_uses = self.rows.len() * self.params.router.n_used;
        let is_large = n_uses * self.hidden_size * self.intermediate_size > 1 << 20;
        is_worth_products(on, &[self.dtype], n_uses) && !(on == Emulated::Exact && is_large)
    }
}

fn moe_case(dtype: DType, n_experts: usize, n_used: usize, norm_topk: bool, n_rows: usize) -> Moe {
    Moe {
        dtype,
        hidden_size: 256,
        intermediate_size: if dtype.block_len() == 1 { 40 } else { 256 },
        n_experts,
        params: MoeParams {
            router: Router::softmax(n_used, norm_topk),
            activation: Activation::Silu,
            gated: true,
        },
        bias: false,
        selection_bias: false,
        output_scale: false,
        rows: 0..n_rows,
        scores: None,
    }
}

#[test]
fn moe() {
    use DType::*;
    for dtype in [F32, BF16, Q8_0, Q4_K, Q6_K, MXFP4] {
        for n_used in 1..=5 {
            check(&[moe_case(dtype, 5, n_used, n_used % 2 == 0, 4)]);
        }
        // One expert, one row, and more rows than a tile holds.
        check(&[
            moe_case(dtype, 1, 1, true, 3),
            moe_case(dtype, 16, 4, true, 1),
            moe_case(dtype, 3, 1, false, 60),
        ]);
    }
    for activation in [Activation::GeluTanh, Activation::ReluSquared] {
        let mut case = moe_case(F32, 4, 2, true, 5);
        case.params.activation = activation;
        check(&[case]);
    }
    for (dtype, n_rows) in [(F32, 5), (Q8_0, 1), (Q4_K, 20)] {
        let mut case = moe_case(dtype, 4, 2, true, n_rows);
        case.params = MoeParams { activation: Activation::ReluSquared, gated: false, ..case.params };
        check(&[case]);
    }
}

#[test]
fn moe_routers() {
    use DType::*;
    let sigmoid = |n_used, norm_topk| {
        let router = Router::softmax(n_used, norm_topk);
        Router { scores: RouterScores::Sigmoid, scale: 2.5, ..router }
    };
    let groups = |count, n_used, score| Some(ExpertGroups { count, n_used, score });
    for router in [
        Router { scale: 0.7, ..Router::softmax(3, false) },
        Router { groups: groups(4, 2, GroupScore::Largest), ..Router::softmax(3, false) },
        sigmoid(4, true),
        sigmoid(2, false),
        Router { groups: groups(2, 1, GroupScore::TopTwo), ..sigmoid(3, true) },
        Router { groups: groups(3, 2, GroupScore::TopTwo), ..sigmoid(5, true) },
    ] {
        for selection_bias in [false, true] {
            for rows in [1, 40] {
                let output_scale = rows > 1 || selection_bias;
                let mut case = Moe { selection_bias, output_scale, ..moe_case(F32, 12, 1, true, rows) };
                case.params.router = router;
                check(&[case]);
            }
        }
    }
}

#[test]
fn moe_with_biases_and_clamps() {
    use DType::*;
    for dtype in [F32, BF16, Q8_0, MXFP4] {
        for activation in [Activation::Silu, Activation::ClampedSwiglu] {
            for rows in [1, 4, 60] {
                let mut case = Moe { bias: true, ..moe_case(dtype, 5, 2, true, rows) };
                case.params.activation = activation;
                check(&[case]);
            }
        }
    }
}

/// Types that GPUs have fast kernels for.
pub(super) fn fast_on_gpus() -> Vec<DType> {
    [vec![DType::F16, DType::BF16], packed_types()].concat()
}

/// Every type with every number of rows around the borders between kernels, by turns with uses spread over the experts and all of one
/// expert, so that others have none, with and without biases, and with each activation.
#[test]
fn moe_of_every_fast_type_on_gpus() {
    let activations = [Activation::Silu, Activation::ClampedSwiglu, Activation::GeluTanh];
    let mut i = 0;
    for dtype in fast_on_gpus() {
        for rows in [1, 2, 8, 9, 34, 67, 257] {
            let mut case = Moe { hidden_size: 512, ..moe_case(dtype, 4, 2, true, rows) };
            case.intermediate_size = 256;
            case.bias = i % 2 == 0;
            case.params.activation = activations[i % 3];
            if i % 4 == 1 {
                case.params.router.n_used = 1;
                case.scores = Some(vec![0.1, 0.2, 0.9, 0.3]);
            }
            check_on_gpus(&[case]);
            i += 1;
        }
    }
}

/// Rows of weights of several groups, the last of which is short, and outputs that end within a block's.
#[test]
fn moe_of_sizes_that_are_no_multiples_on_gpus() {
    for dtype in fast_on_gpus() {
        let (hidden_size, intermediate_size) =
            if dtype.block_len() == 256 { (2304, 768) } else { (2112, 320) };
        for (rows, bias) in [(1, true), (3, false), (20, true)] {
            let case = moe_case(dtype, 3, 2, true, rows);
            check_on_gpus(&[Moe { hidden_size, intermediate_size, bias, ..case }]);
        }
    }
    // Rows of weights of more than one group in both products.
    for dtype in [DType::Q4_K, DType::Q8_0, DType::BF16] {
        let case = moe_case(dtype, 3, 3, false, 1);
        check_on_gpus(&[Moe { hidden_size: 256, intermediate_size: 2304, ..case }]);
    }
}

/// More uses than a warp sorts at a time, of more experts than a warp has lanes.
#[test]
fn moe_of_many_experts() {
    for rows in [1, 3, 100, 700] {
        let case = moe_case(DType::F32, 70, 8, true, rows);
        check_on_gpus(&[Moe { hidden_size: 8, intermediate_size: 4, ..case }]);
    }
}

#[test]
fn moe_gives_ties_to_the_lowest_expert() {
    fn run<B: Backend>(b: &B) {
        let case = |scores: [f32; 4]| {
            let case = Moe { scores: Some(scores.to_vec()), ..moe_case(DType::F32, 4, 2, true, 3) };
            case.run(b).remove(0).1
        };
        // Experts 1 and 2 share the second place; with norm_topk the weights of two equals are one half each.
        assert_eq!(bits(&case([0.0, 2.0, 2.0, 2.0])), bits(&case([0.0, 9.0, 9.0, 0.0])));
        assert_eq!(bits(&case([0.0, 0.0, 0.0, 0.0])), bits(&case([5.0, 5.0, 1.0, 1.0])));
        assert_ne!(bits(&case([0.0, 2.0, 2.0, 2.0])), bits(&case([0.0, 9.0, 0.0, 9.0])));
    }
    run(&Reference);
    cpus(Paths::Weights).for_each(run);
}

#[test]
fn moe_rows_do_not_depend_on_the_batch() {
    for dtype in [DType::F32, DType::Q4_K, DType::BF16] {
        let all = moe_case(dtype, 6, 3, true, 50);
        for cpu in cpus(Paths::Weights) {
            let y = all.run(cpu).remove(0).1;
            for rows in [0..1, 20..23, 49..50] {
                let some = Moe { rows: rows.clone(), ..all.clone() }.run(cpu).remove(0).1;
                let same = &y[rows.start * all.hidden_size..rows.end * all.hidden_size];
                assert_eq!(bits(same), bits(&some), "{dtype} rows {rows:?} on {:?}", cpu.options());
            }
        }
    }
}

/// Up to eight rows have blocks of their own on GPUs, in which nothing depends on the others.
#[test]
fn moe_of_a_few_rows_equals_each_alone_on_gpus() {
    for dtype in [DType::Q4_K, DType::Q8_0, DType::BF16] {
        let all = Moe { hidden_size: 512, bias: true, ..moe_case(dtype, 48, 3, true, 8) };
        for (path, _, gpu) in gpus() {
            let y = all.run(gpu).remove(0).1;
            for row in 0..8 {
                let alone = Moe { rows: row..row + 1, ..all.clone() }.run(gpu).remove(0).1;
                let same = &y[row * all.hidden_size..(row + 1) * all.hidden_size];
                assert_eq!(bits(same), bits(&alone), "{dtype} row {row} on {path}");
            }
        }
    }
}

#[test]
fn experts_rows_on_a_deterministic_gpu_do_not_depend_on_the_batch() {
    let types = packed_types().into_iter().chain([DType::BF16]).map(|dtype| (dtype, 512, 256));
    // Rows of more than a group of columns, and of experts that lie side by side.
    let sizes = [(DType::Q4_K, 2304, 768), (DType::Q6_K, 256, 1024), (DType::MXFP4, 320, 192)];
    for (dtype, hidden_size, intermediate_size) in types.chain(sizes) {
        let few = moe_case(dtype, 24, 3, true, 40);
        let all = Moe { hidden_size, intermediate_size, bias: true, ..few };
        for (path, gpu) in deterministic_gpus() {
            let y = all.run(gpu).remove(0).1;
            for rows in [0..1, 20..23, 7..40] {
                let some = Moe { rows: rows.clone(), ..all.clone() }.run(gpu).remove(0).1;
                let same = &y[rows.start * all.hidden_size..rows.end * all.hidden_size];
                assert_eq!(bits(same), bits(&some), "{dtype} rows {rows:?} on {path}");
            }
        }
    }
}

#[test]
fn a_matrix_whose_bytes_disagree_with_its_shape_is_refused() {
    fn run<B: Backend>(b: &B) {
        let short = MatrixPart { n_out: 9, ..part(DType::Q4_0, 1, 8, 64, 1) };
        assert!(matches!(b.matrix(vec![short]), Err(realizar_compute::Error::WrongSize { .. })));
        let cut = MatrixPart { n_in: 63, ..part(DType::Q4_0, 1, 8, 64, 1) };
        assert!(matches!(b.matrix(vec![cut]), Err(realizar_compute::Error::PartialBlock { .. })));
    }
    run(&Reference);
    cpus(Paths::Weights).for_each(run);
}

/// Times, for the benchmark.
#[allow(dead_code, reason = "tests do not measure")]
pub(super) mod times {
    use super::super::perf::{On, Work, table};
    use super::*;

    /// Types of weights that a table of times has.
    const TIMED: [DType; 16] = {
        use DType::*;
        [
            F16, BF16, Q8_0, Q6_K, Q5_K, Q5_0, Q4_K, Q4_0, IQ4_XS, IQ4_NL, MXFP4, NVFP4, Q3_K, IQ3_S, Q2_K,
            IQ2_XS,
        ]
    };

    /// A matrix of the size of Llama-3.1-8B's gate.
    pub(in super::super) fn matmul(on: On) {
        let cases = {
            let (n_out, n_in) = (14336, 4096);
            let case = |dtype: DType, m: usize| {
                let bytes = dtype.bytes_for(n_out * n_in).unwrap() + 4 * m * (n_in + n_out);
                let work = Work { bytes: bytes as f64, operations: 2.0 * (n_out * n_in * m) as f64 };
                let case = Matmul { parts: vec![(dtype, n_out)], n_in, rows: 0..m, bias: false };
                (format!("{dtype}, {m} rows"), dtype, case, work)
            };
            let rows = [1, 8, 32, 128, 512];
            TIMED.iter().flat_map(|&dtype| rows.map(|m| case(dtype, m))).collect()
        };
        table(on, "Matrices of [14336, 4096]", cases);
    }

    /// The experts of Qwen3-30B-A3B.
    pub(in super::super) fn experts(on: On) {
        let cases = {
            let (n, inner, n_experts, n_used) = (2048, 768, 128, 8);
            let case = |dtype: DType, m: usize| {
                let case = Moe {
                    hidden_size: n,
                    intermediate_size: inner,
                    rows: 0..m,
                    ..moe_case(dtype, n_experts, n_used, true, m)
                };
                let size = 3 * n * inner;
                // Experts that somebody is expected to choose.
                let share = n_used as f64 / n_experts as f64;
                let chosen = n_experts as f64 * (1.0 - (1.0 - share).powi(m as i32));
                let work = Work {
                    bytes: chosen * dtype.bytes_for(size).unwrap() as f64 + (8 * m * n) as f64,
                    operations: 2.0 * (size * m * n_used) as f64,
                };
                (format!("{dtype}, {m} rows"), dtype, case, work)
            };
            let rows = [1, 2, 4, 8, 9, 16, 32, 128, 2048];
            [DType::BF16, DType::Q8_0, DType::Q4_K, DType::MXFP4]
                .iter()
                .flat_map(|&dtype| rows.map(|m| case(dtype, m)))
                .collect()
        };
        table(on, "8 of 128 experts of [768, 2048]", cases);
    }
}
