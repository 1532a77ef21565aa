//! Launches of products with narrow matrices of F32, such as routers of experts.

use super::op::Matmul;
use super::shape::MatrixShape;
use crate::Result;
use crate::cuda::driver::{Cuda, DevicePtr, kernel_args, kernels};

/// Outputs at most: wider matrices are multiplied with less traffic by blocks that own more outputs.
const MAX_OUTS: usize = 512;
/// Rows and outputs of a block of `f32_small_m`, and of `f32_gemm`.
const SMALL_TILE: (usize, usize) = (8, 8);
const TILE: (usize, usize) = (64, 32);
/// Rows that `f32_gemv` takes: each reads the weights.
pub(super) const MAX_GEMV_ROWS: usize = 8;
/// Rows from which on `f32_gemm` is as fast as `f32_small_m`, which reads every operand more often.
pub(super) const MANY_ROWS: usize = 513;

kernel_args! {
    in "f32_args.cuh";

    struct F32Args {
        /// [m, y_stride]
        y: DevicePtr as "float*",
        /// [m, n_in]
        x: DevicePtr as "const float*",
        /// [n_out, n_in]
        w: DevicePtr as "const float*",
        /// [n_in]: x is normalized first (root mean square); or null; not f32_gemm
        norm_weight: DevicePtr as "const float*",
        /// [n_out] or null
        bias: DevicePtr as "const float*",
        /// a multiple of 4
        n_in: u32,
        n_out: u32,
        m: u32,
        y_stride: u32,
        eps: f32,
    }
}

kernels! {
    /// Kernels of f32.cu.
    pub(in crate::cuda) struct Kernels in f32 {
        f32_gemv: F32Args,
        f32_small_m: F32Args,
        f32_gemm: F32Args,
    }
}

/// Whether these kernels take such a matrix.
pub(super) fn supports(w: &MatrixShape) -> bool {
    w.n_experts == 1 && w.n_out <= MAX_OUTS && w.n_in.is_multiple_of(4)
}

/// `y[m, n_out] = x[m, n_in] · wᵀ + bias`, with the norm of x first where rows are few.
pub(super) fn matmul(cuda: &Cuda, op: &Matmul<'_>) -> Result<()> {
    let ((x, norm), y) = (op.float_input(), op.float_output());
    let kernels = cuda.room::<Kernels>();
    for part in &op.w.parts {
        let first = 4 * part.shape.first_out;
        let args = F32Args {
            y: y.offset(first),
            x,
            w: part.weights.ptr(),
            norm_weight: norm.map_or(DevicePtr::NULL, |n| n.weight.ptr()),
            bias: op.bias.map_or(DevicePtr::NULL, |b| b.ptr().offset(first)),
            n_in: op.w.shape.n_in as u32,
            n_out: part.shape.n_out as u32,
            m: op.m as u32,
            y_stride: op.w.shape.n_out as u32,
            eps: norm.map_or(0.0, |n| n.eps),
        };
        let n_out = part.shape.n_out;
        // SAFETY: the part has n_out rows of n_in floats; the callers checked x, y, the norm and the bias.
        unsafe {
            let (f, (rows, outs)) = match op.m {
                m if m <= MAX_GEMV_ROWS => (kernels.f32_gemv, (1, 1)),
                m if m < MANY_ROWS || n_out <= SMALL_TILE.1 => (kernels.f32_small_m, SMALL_TILE),
                _ => (kernels.f32_gemm, TILE),
            };
            cuda.launch(f, [n_out.div_ceil(outs), op.m.div_ceil(rows), 1], 256, &args)?;
        }
    }
    Ok(())
}
