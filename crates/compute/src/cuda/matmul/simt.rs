//! Launches of matmuls in floats, without tensor cores: any element type, exact sums, experts.

use super::dequantize;
use super::heads::{HeadPart, HeadRows};
use super::matrix;
use super::op::Matmul;
use super::packed_types::{PACKED, packed_index};
use super::shape::{Layout, MatrixShape};
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, kernel_args, kernel_image, kernels};
use crate::quant::QUANTS;
use crate::{DType, Result, Tensor};

/// Rows of activations that one pass over the weights serves.
pub(in crate::cuda) const TILE_ROWS: usize = 8;
/// Outputs of a block of `gemv`.
const GEMV_OUTPUTS: usize = 4;
/// Outputs, and rows, of a block of `gemm`.
const GEMM_TILE: usize = 128;
/// Elements of the largest slab of weights that is decoded at once.
const SLAB: usize = 16 << 20;

kernel_args! {
    in "simt_args.cuh";

    struct SimtGemvArgs {
        /// [m, y_stride], and this part's outputs from 0 on
        y: DevicePtr as "float*",
        /// [.., x_stride], of which n_in count
        x: DevicePtr as "const float*",
        /// [n_experts, n_out, n_in]
        w: DevicePtr as "const uint8_t*",
        /// [n_out] or null
        bias: DevicePtr as "const float*",
        codebook: DevicePtr as "const void*",
        /// one per blockIdx.y; null: tiles of all rows, in order
        tiles: DevicePtr as "const struct Tile*",
        /// row of x for each row of y; null: the same
        x_rows: DevicePtr as "const uint32_t*",
        expert_bytes: u64,
        row_bytes: u64,
        n_in: u32,
        n_out: u32,
        m: u32,
        x_stride: u32,
        y_stride: u32,
        /// elements from the inputs, and outputs, of one blockIdx.z to the next, an expert each
        x_head: u32,
        y_head: u32,
    }

    struct SimtGemmArgs {
        /// [m, y_stride], and this slab's outputs from 0 on
        y: DevicePtr as "float*",
        /// [m, n_in]
        x: DevicePtr as "const float*",
        /// [n_out, n_in]
        w: DevicePtr as "const float*",
        /// [n_out] or null
        bias: DevicePtr as "const float*",
        n_in: u32,
        n_out: u32,
        m: u32,
        y_stride: u32,
    }
}

kernels! {
    /// Kernels of simt.cu that are not made for each type.
    pub(in crate::cuda) struct GemmKernels in simt {
        simt_gemm: SimtGemmArgs,
    }
}

/// Kernels of simt.cu for each element type.
pub(in crate::cuda) struct Kernels {
    /// One row of activations, and up to 8; indexed by element type.
    blocks: Vec<[Kernel<SimtGemvArgs>; 2]>,
    /// Up to 8 rows of activations, in the order of [`PACKED`].
    packed: Vec<Kernel<SimtGemvArgs>>,
}

impl Kernels {
    pub(in crate::cuda) fn load(driver: &dyn Driver) -> Result<Self> {
        let image = kernel_image!(simt);
        let kernel = |name: String| image.kernel(driver, &name, 0);
        let blocks = QUANTS.iter().map(|s| {
            Ok([kernel(format!("simt_gemv_1_{}", s.name))?, kernel(format!("simt_gemv_8_{}", s.name))?])
        });
        let packed = PACKED.iter().map(|t| kernel(format!("simt_gemv_8_Packed_{}", t.dtype)));
        Ok(Self { blocks: blocks.collect::<Result<_>>()?, packed: packed.collect::<Result<_>>()? })
    }
}

/// `y[m, n_out] = x[m, n_in] · wᵀ + bias`, a pass over the weights for every 8 rows; each row's sums are taken in an order of their own.
pub(super) fn gemv(cuda: &Cuda, op: &Matmul<'_>) -> Result<()> {
    for (part, y, bias) in parts(op) {
        gemv_part(cuda, Part { w: &op.w.shape, part, y, bias }, op.float_input().0, Rows::All { m: op.m })?;
    }
    Ok(())
}

/// The same with weights decoded in slabs of floats, which many rows read.
pub(super) fn gemm(cuda: &Cuda, op: &Matmul<'_>) -> Result<()> {
    for (part, y, bias) in parts(op) {
        gemm_part(cuda, Part { w: &op.w.shape, part, y, bias }, op.float_input().0, op.m)?;
    }
    Ok(())
}

/// The parts of the matrix, with where their outputs and biases begin.
fn parts<'a>(op: &Matmul<'a>) -> impl Iterator<Item = (&'a matrix::Part, DevicePtr, DevicePtr)> {
    let (y, bias) = (op.float_output(), op.bias.map(Tensor::ptr));
    op.w.parts.iter().map(move |part| {
        let first = 4 * part.shape.first_out;
        (part, y.offset(first), bias.map_or(DevicePtr::NULL, |b| b.offset(first)))
    })
}

/// A part of a matrix, and where its outputs go.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct Part<'a> {
    /// The whole matrix.
    pub(in crate::cuda) w: &'a MatrixShape,
    pub(in crate::cuda) part: &'a matrix::Part,
    /// The part's outputs, in rows of the whole matrix's outputs.
    pub(in crate::cuda) y: DevicePtr,
    /// The part's biases, or null.
    pub(in crate::cuda) bias: DevicePtr,
}

/// Which rows of activations meet which expert.
#[derive(Clone, Copy)]
pub(in crate::cuda) enum Rows {
    /// All `m` meet the one matrix.
    All { m: usize },
    /// As `n_tiles` tiles say; `x_rows` is null or the row of x for each row of y.
    Tiles { tiles: DevicePtr, n_tiles: usize, x_rows: DevicePtr },
}

/// One part's outputs; each row's sum is taken in an order of its own.
pub(in crate::cuda) fn gemv_part(cuda: &Cuda, to: Part<'_>, x: DevicePtr, rows: Rows) -> Result<()> {
    let Part { w, part, y, bias } = to;
    let (shape, kernels) = (part.shape, cuda.room::<Kernels>());
    let [gemv_1, gemv_8] = match shape.layout {
        Layout::Blocks => kernels.blocks[shape.dtype as usize],
        // One row of these is `gemv.cu`'s.
        Layout::Packed => [kernels.packed[packed_index(shape.dtype)]; 2],
    };
    let (f, n_tiles, m, tiles, x_rows) = match rows {
        Rows::All { m: 1 } => (gemv_1, 1, 1, DevicePtr::NULL, DevicePtr::NULL),
        Rows::All { m } => (gemv_8, m.div_ceil(TILE_ROWS), m, DevicePtr::NULL, DevicePtr::NULL),
        Rows::Tiles { tiles, n_tiles, x_rows } => (gemv_8, n_tiles, 0, tiles, x_rows),
    };
    let args = SimtGemvArgs {
        y,
        x,
        w: part.weights.ptr(),
        bias,
        codebook: part.codebook,
        tiles,
        x_rows,
        expert_bytes: (part.shape.n_out * part.shape.row_bytes) as u64,
        row_bytes: part.shape.row_bytes as u64,
        n_in: w.n_in as u32,
        n_out: part.shape.n_out as u32,
        m: m as u32,
        x_stride: w.n_in as u32,
        y_stride: w.n_out as u32,
        x_head: 0,
        y_head: 0,
    };
    // SAFETY: the part holds n_experts · n_out rows; the callers' x and y have the rows that they say, and tiles were written by
    // `moe_group`.
    unsafe { cuda.launch(f, [part.shape.n_out.div_ceil(GEMV_OUTPUTS), n_tiles, 1], 128, &args) }
}

/// A part of a product of heads; each row's sum is taken in an order of its own.
pub(super) fn head_gemv(cuda: &Cuda, op: &HeadPart<'_>) -> Result<()> {
    let (shape, kernels) = (op.part.shape, cuda.room::<Kernels>());
    let (n_heads, HeadRows { m, x_head, y_head }) = (op.w.n_experts, op.rows);
    let [gemv_1, gemv_8] = match shape.layout {
        Layout::Blocks => kernels.blocks[shape.dtype as usize],
        Layout::Packed => [kernels.packed[packed_index(shape.dtype)]; 2],
    };
    let args = SimtGemvArgs {
        y: op.y,
        x: op.x,
        w: op.part.weights.ptr(),
        bias: DevicePtr::NULL,
        codebook: op.part.codebook,
        tiles: DevicePtr::NULL,
        x_rows: DevicePtr::NULL,
        expert_bytes: (shape.n_out * shape.row_bytes) as u64,
        row_bytes: shape.row_bytes as u64,
        n_in: op.w.n_in as u32,
        n_out: shape.n_out as u32,
        m: m as u32,
        x_stride: (n_heads * x_head) as u32,
        y_stride: (n_heads * y_head) as u32,
        x_head: x_head as u32,
        y_head: y_head as u32,
    };
    let blocks = [shape.n_out.div_ceil(GEMV_OUTPUTS), m.div_ceil(TILE_ROWS), n_heads];
    // SAFETY: the part holds n_heads · n_out rows, and x and y have m rows with so many elements for each head.
    unsafe { cuda.launch(if m == 1 { gemv_1 } else { gemv_8 }, blocks, 128, &args) }
}

fn gemm_part(cuda: &Cuda, to: Part<'_>, x: DevicePtr, m: usize) -> Result<()> {
    let Part { w, part, y, bias } = to;
    let n_in = w.n_in;
    let is_plain = part.shape.dtype == DType::F32;
    let rows_per_slab = match is_plain {
        true => part.shape.n_out,
        false => (SLAB / n_in).max(GEMM_TILE).next_multiple_of(GEMM_TILE).min(part.shape.n_out),
    };
    for first in (0..part.shape.n_out).step_by(rows_per_slab.max(1)) {
        let n_rows = rows_per_slab.min(part.shape.n_out - first);
        let slab = if is_plain {
            part.weights.ptr()
        } else {
            let slab = cuda.scratch.get(&cuda.driver, "a slab of weights", 4 * rows_per_slab * n_in)?;
            dequantize::dequantize(cuda, slab, part, n_in, first, n_rows)?;
            slab
        };
        let args = SimtGemmArgs {
            y: y.offset(4 * first),
            x,
            w: slab,
            bias: if bias == DevicePtr::NULL { bias } else { bias.offset(4 * first) },
            n_in: n_in as u32,
            n_out: n_rows as u32,
            m: m as u32,
            y_stride: w.n_out as u32,
        };
        let blocks = [n_rows.div_ceil(GEMM_TILE), m.div_ceil(GEMM_TILE), 1];
        // SAFETY: the slab holds n_rows rows of n_in floats, and x and y have m rows, as the caller checked.
        unsafe { cuda.launch(cuda.room::<GemmKernels>().simt_gemm, blocks, 256, &args)? };
    }
    Ok(())
}
