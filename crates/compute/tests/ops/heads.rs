//! Products of heads, in every element type: heads may be longer than what is read of them and written to them.

use super::matrices::{fast_on_gpus, part};
use super::perf::{self, op};
use super::*;

/// Rows from which GPUs multiply on the tensor cores, in the fast mode.
const MANY_ROWS: usize = 9;
/// Most columns of these.
const MAX_IN: usize = 512;

#[derive(Debug, Clone)]
struct Heads {
    /// Type and outputs of each stacked part.
    parts: Vec<(DType, usize)>,
    n_heads: usize,
    n_in: usize,
    /// Elements of a head that are not read, and such that are not written.
    spare: [usize; 2],
    rows: usize,
    /// Factors of the rows, in turn.
    factors: &'static [f32],
}

fn case(dtype: DType, [n_out, n_in]: [usize; 2], rows: usize) -> Heads {
    Heads { parts: vec![(dtype, n_out)], n_heads: 3, n_in, spare: [8, 5], rows, factors: &[1.0] }
}

impl Heads {
    fn x(&self) -> Vec<f32> {
        let mut x = Vec::new();
        let mut random = Random(6);
        for row in 0..self.rows {
            let factor = self.factors[row % self.factors.len()];
            for _ in 0..self.n_heads {
                x.extend(random.normals(self.n_in).iter().map(|v| v * factor));
                // What is not read must not matter.
                x.extend(vec![f32::NAN; self.spare[0]]);
            }
        }
        x
    }

    fn y<B: Backend>(&self, b: &B, x: &[f32]) -> Vec<f32> {
        let n_out: usize = self.parts.iter().map(|p| p.1).sum();
        let parts = self.parts.iter().zip(1..);
        let parts: Vec<_> =
            parts.map(|(&(dtype, n_out), seed)| part(dtype, self.n_heads, n_out, self.n_in, seed)).collect();
        let copies = perf::copies(parts.iter().map(|p| p.bytes.len()).sum());
        let w: Vec<_> = (0..copies).map(|_| b.matrix(parts.clone()).unwrap()).collect();
        let x = rows_of(b, x, self.n_heads * (self.n_in + self.spare[0]));
        let mut y = poisoned(b, self.rows, self.n_heads * (n_out + self.spare[1]));
        op(b, w.len(), |i| b.head_matmul(&mut y, &x, &w[i % w.len()]));
        read(b, &mut y)
    }
}

impl Case for Heads {
    const PATHS: Paths = Paths::Weights;

    /// Rows of a factor are an output of their own, so that large ones do not hide errors of small ones. What is not written is NaN.
    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let y = self.y(b, &self.x());
        let rows: Vec<_> = y.chunks_exact(y.len() / self.rows).collect();
        let n = self.factors.len();
        (0..n).map(|i| ("y", rows.iter().skip(i).step_by(n).copied().flatten().copied().collect())).collect()
    }

    /// On the tensor cores weights and activations are rounded to F16, or activations alone to BF16; else a GPU rounds nothing.
    fn tolerance(&self, sums: Sums) -> f64 {
        let of = |dtype| match sums {
            Sums::FastGpu if self.rows < MANY_ROWS || self.n_in > MAX_IN => 1e-11,
            Sums::FastGpu if dtype == DType::BF16 => 1e-5,
            Sums::FastGpu if fast_on_gpus().contains(&dtype) => 1e-6,
            Sums::FastGpu => 1e-11,
            _ => tolerance(dtype, sums),
        };
        self.parts.iter().map(|p| of(p.0)).fold(0.0, f64::max)
    }

    /// All GPUs have the same kernels.
    fn is_worth(&self, on: Emulated) -> bool {
        on == Emulated::Portable || self.rows <= MANY_ROWS
    }
}

#[test]
fn head_matmul_of_every_type() {
    for dtype in QUANTS.iter().map(|spec| spec.dtype) {
        for rows in [1, 7, MANY_ROWS] {
            check(&[case(dtype, [20, 256], rows)]);
        }
    }
}

#[test]
fn head_matmul_of_every_fast_type_on_gpus() {
    for dtype in fast_on_gpus() {
        // An odd number of pieces of 64 columns, where blocks are smaller.
        let n_in = if dtype.block_len() == 256 { 512 } else { 320 };
        check_on_gpus(&[case(dtype, [150, n_in], 65)]);
    }
}

/// Rows, outputs and columns that end within a block's, a warp's and a step's, and that fill them; in steps of one head and of more than
/// GPUs have blocks for.
#[test]
fn head_matmul_at_the_borders_between_blocks_of_gpus() {
    use DType::*;
    for dtype in [Q8_0, F16, BF16] {
        for rows in [MANY_ROWS - 1, MANY_ROWS, 32, 33, 63, 64, 65, 130] {
            check_on_gpus(&[case(dtype, [100, 192], rows)]);
        }
        for (n_out, n_in) in [(1, 64), (128, 320), (129, 64), (256, 512), (300, 192)] {
            let of = |n_heads, rows| Heads { n_heads, ..case(dtype, [n_out, n_in], rows) };
            check_on_gpus(&[of(1, 40), of(2, 66), of(5, 150)]);
        }
    }
    for dtype in [F16, BF16] {
        for n_in in [8, 72, 504] {
            check_on_gpus(&[case(dtype, [70, n_in], 20)]);
        }
    }
    // More columns than shared memory holds.
    for dtype in [F16, Q8_0] {
        check_on_gpus(&[case(dtype, [40, MAX_IN + 64], 20)]);
    }
    // Pairs of outputs at addresses that are no multiples of their size, and none of a head that are spared.
    for spare in [[0, 0], [4, 1], [64, 64]] {
        check_on_gpus(&[Heads { spare, ..case(Q8_0, [101, 192], 20) }]);
    }
}

#[test]
fn head_matmul_of_stacked_parts_of_different_types() {
    use DType::*;
    for (parts, n_in) in [
        (vec![(Q8_0, 101), (F16, 140)], 192),
        (vec![(Q4_K, 20), (Q6_K, 130), (Q5_K, 7)], 256),
        // A type without a packed layout.
        (vec![(BF16, 30), (Q4_1, 20)], 64),
    ] {
        for rows in [3, 70] {
            check(&[Heads { parts: parts.clone(), ..case(F32, [0, n_in], rows) }]);
        }
    }
}

/// A row of half precision has a scale of its own.
#[test]
fn head_matmul_of_rows_of_very_different_magnitude_on_gpus() {
    const FACTORS: &[f32] = &[1e-6, 1e4, 0.0, 1e-30, 1.0, 1e12];
    for dtype in [DType::Q8_0, DType::Q4_K, DType::F16, DType::BF16] {
        for rows in [MANY_ROWS, 70] {
            check_on_gpus(&[Heads { factors: FACTORS, ..case(dtype, [100, 256], rows) }]);
        }
    }
}

/// Sums of the tensor cores have other bits than those of the deterministic mode, which few rows and other types have in all modes.
#[test]
fn head_matmul_of_many_rows_takes_the_tensor_cores_in_the_fast_mode_only() {
    let Some((path, deterministic)) = deterministic_gpus().first() else { return };
    for (_, _, gpu) in gpus().iter().filter(|(_, exact, _)| !exact) {
        for dtype in fast_on_gpus().into_iter().chain([DType::Q4_1, DType::F32]) {
            for rows in [MANY_ROWS - 1, MANY_ROWS] {
                let case = case(dtype, [20, 256], rows);
                let [fast, strict] = [gpu, deterministic].map(|gpu| bits(&case.y(gpu, &case.x())));
                let takes = rows >= MANY_ROWS && fast_on_gpus().contains(&dtype);
                assert_eq!(fast != strict, takes, "{case:?} on {} and {path}", gpu.describe());
            }
        }
    }
}

#[test]
fn head_matmul_rows_on_a_deterministic_gpu_do_not_depend_on_the_batch() {
    for dtype in [DType::Q8_0, DType::BF16] {
        for (path, gpu) in deterministic_gpus() {
            let all = case(dtype, [20, 192], 70);
            let (x, some) = (all.x(), Heads { rows: 5, ..all.clone() });
            let (y, few) = (all.y(gpu, &x), some.y(gpu, &x[..x.len() / 70 * 5]));
            assert_eq!(bits(&y[..few.len()]), bits(&few), "{dtype} on {path}");
        }
    }
}

#[test]
fn what_is_not_a_number_spoils_its_row_of_a_head_and_no_other() {
    for (_, _, gpu) in gpus() {
        for dtype in [DType::Q8_0, DType::Q4_K, DType::F16, DType::BF16] {
            let case = Heads { spare: [0, 0], ..case(dtype, [20, 256], 40) };
            let mut x = case.x();
            // Head 1 of the last row.
            x[(39 * 3 + 1) * 256 + 200] = f32::NAN;
            let y = case.y(gpu, &x);
            for (i, head) in y.chunks_exact(20).enumerate() {
                let is_spoiled = i == 39 * 3 + 1;
                assert!(head.iter().all(|v| v.is_nan() == is_spoiled), "{dtype} {i} on {}", gpu.describe());
            }
        }
    }
}

/// Times, for the benchmark.
#[allow(dead_code, reason = "tests do not measure")]
pub(super) mod times {
    use super::super::perf::{On, Work, table};
    use super::*;

    /// Keys and values of 20 heads of 192 and 256 elements, with vectors of 512.
    pub(in super::super) fn heads(on: On) {
        let cases = {
            let case = |dtype: DType, [n_out, n_in]: [usize; 2], spare: [usize; 2], rows: usize| {
                let size = 20 * n_out * n_in;
                let bytes = dtype.bytes_for(size).unwrap() + 80 * rows * (n_in + n_out);
                let work = Work { bytes: bytes as f64, operations: 2.0 * (size * rows) as f64 };
                let case = Heads { n_heads: 20, spare, ..case(dtype, [n_out, n_in], rows) };
                (format!("{dtype} [{n_out}, {n_in}], {rows} rows"), dtype, case, work)
            };
            let rows = [1, 8, 9, 16, 64, 512, 2048];
            let types = [DType::Q8_0, DType::Q4_0, DType::BF16];
            let shapes = [([512, 192], [64, 64]), ([256, 512], [0, 0])];
            let of_type =
                |dtype| shapes.into_iter().flat_map(move |(s, spare)| rows.map(|m| case(dtype, s, spare, m)));
            types.into_iter().flat_map(of_type).collect()
        };
        table(on, "Matrices of 20 heads", cases);
    }
}
