//! Launches of products with weights.

use super::driver::DevicePtr;
use super::gemm::{Input, Output};
use super::matrix::{Layout, Matrix, Part};
use super::matvec::{self, Epilogue};
use super::{Cuda, embed, few, gemm as tensor_cores, skinny};
use crate::{DType, Result, Tensor};

/// Rows of activations that one pass over the weights serves.
pub(super) const TILE_ROWS: usize = 8;
/// Outputs of a block of `gemv`.
const GEMV_OUTPUTS: usize = 4;
/// Outputs, and rows, of a block of `gemm`.
const GEMM_TILE: usize = 128;
/// Elements of the largest slab of weights that is decoded at once.
const SLAB: usize = 16 << 20;

#[derive(Clone, Copy)]
#[repr(C)]
struct GemvArgs {
    y: DevicePtr,
    x: DevicePtr,
    w: DevicePtr,
    bias: DevicePtr,
    codebook: DevicePtr,
    tiles: DevicePtr,
    x_rows: DevicePtr,
    expert_bytes: u64,
    row_bytes: u64,
    n_in: u32,
    n_out: u32,
    m: u32,
    y_stride: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GemmArgs {
    y: DevicePtr,
    x: DevicePtr,
    w: DevicePtr,
    bias: DevicePtr,
    n_in: u32,
    n_out: u32,
    m: u32,
    y_stride: u32,
}

pub(super) fn matmul(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    x: &Tensor<Cuda>,
    w: &Matrix,
    bias: Option<&Tensor<Cuda>>,
) -> Result<()> {
    assert_eq!((x.row_len(), y.row_len(), x.rows()), (w.n_in, w.n_out, y.rows()));
    assert_eq!(w.n_experts, 1);
    assert!(bias.is_none_or(|b| b.len() == w.n_out), "a bias for {} outputs", w.n_out);
    let m = x.rows();
    match way(cuda, w, m) {
        Way::Matvec(plan) => return plan.run(cuda, y.ptr(), x.ptr(), None, bias, Epilogue::Store),
        Way::Few(plan) => return plan.run(cuda, y.ptr(), x.ptr(), None, bias, Epilogue::Store),
        Way::Skinny(plan) => {
            let (y, x) = (Output::Floats(y.ptr()), Input::Floats(x.ptr(), None));
            return plan.run(cuda, y, x, bias, Epilogue::Store);
        }
        Way::Gemm => {
            let (y, x) = (Output::Floats(y.ptr()), Input::Floats(x.ptr(), None));
            return tensor_cores::matmul(cuda, y, x, w, bias, m, Epilogue::Store);
        }
        Way::Plain => {}
    }
    let (y, x, bias) = (y.ptr(), x.ptr(), bias.map(Tensor::ptr));
    for part in &w.parts {
        let y = y.offset(4 * part.first_out);
        let bias = bias.map_or(DevicePtr::NULL, |b| b.offset(4 * part.first_out));
        if m <= TILE_ROWS || cuda.exact {
            let rows = Rows::All { m };
            gemv(cuda, y, x, bias, w, part, rows)?;
        } else {
            gemm(cuda, y, x, bias, w, part, m)?;
        }
    }
    Ok(())
}

/// How a product is done.
pub(super) enum Way {
    /// One row, or a few, straight from the weights, which are read once.
    Matvec(matvec::Plan),
    /// 2 to 8 rows on the tensor cores' integers, with packed weights.
    Few(few::Plan),
    /// Up to 256 rows on Hopper's tensor cores, for which each weight is decoded on the way.
    Skinny(skinny::Plan),
    /// Many rows on the tensor cores, for which weights are decoded to slabs.
    Gemm,
    /// In floats.
    Plain,
}

/// The way for `m` rows of activations.
pub(super) fn way(cuda: &Cuda, w: &Matrix, m: usize) -> Way {
    choose(
        m,
        || matvec::plan(cuda, w, m).map(Way::Matvec),
        || few::plan(cuda, w, m).map(Way::Few),
        || skinny::plan(cuda, w, m).map(Way::Skinny),
        || tensor_cores::can(cuda, w),
    )
}

/// The same where the first half of the outputs are the gate's.
pub(super) fn gated_way(cuda: &Cuda, w: &Matrix, m: usize) -> Way {
    choose(
        m,
        || matvec::gate_plan(cuda, w, m).map(Way::Matvec),
        || few::gate_plan(cuda, w, m).map(Way::Few),
        || skinny::gate_plan(cuda, w, m).map(Way::Skinny),
        || tensor_cores::can_gate(cuda, w) && tensor_cores::can(cuda, w),
    )
}

/// The first way that can: by speed, as measured.
fn choose(
    m: usize,
    one: impl Fn() -> Option<Way>,
    few: impl Fn() -> Option<Way>,
    some: impl Fn() -> Option<Way>,
    can_many: impl Fn() -> bool,
) -> Way {
    if m == 1 {
        return one().unwrap_or(Way::Plain);
    }
    let fast = few().or_else(some).or_else(one);
    // Fewer rows than this are read straight from the weights.
    fast.unwrap_or_else(|| if m > TILE_ROWS && can_many() { Way::Gemm } else { Way::Plain })
}

/// Which rows of activations meet which expert.
#[derive(Clone, Copy)]
pub(super) enum Rows {
    /// All `m` meet the one matrix.
    All { m: usize },
    /// As `n_tiles` tiles say; `x_rows` is null or the row of x for each row of y.
    Tiles { tiles: DevicePtr, n_tiles: usize, x_rows: DevicePtr },
}

/// One part's outputs from `y` on, in rows of the whole matrix's outputs; each row's sum is taken in an order of its own.
pub(super) fn gemv(
    cuda: &Cuda,
    y: DevicePtr,
    x: DevicePtr,
    bias: DevicePtr,
    w: &Matrix,
    part: &Part,
    rows: Rows,
) -> Result<()> {
    let (gemv_1, gemv_8) = match part.layout {
        Layout::Blocks => {
            let kernels = cuda.kernels.of_type(part.dtype);
            (kernels.gemv_1, kernels.gemv_8)
        }
        // One row of these is `matvec`'s.
        Layout::Packed => [cuda.kernels.of_packed(part.dtype).gemv_8; 2].into(),
    };
    let (f, n_tiles, m, tiles, x_rows) = match rows {
        Rows::All { m: 1 } => (gemv_1, 1, 1, DevicePtr::NULL, DevicePtr::NULL),
        Rows::All { m } => (gemv_8, m.div_ceil(TILE_ROWS), m, DevicePtr::NULL, DevicePtr::NULL),
        Rows::Tiles { tiles, n_tiles, x_rows } => (gemv_8, n_tiles, 0, tiles, x_rows),
    };
    let args = GemvArgs {
        y,
        x,
        w: part.weights.ptr(),
        bias,
        codebook: part.codebook,
        tiles,
        x_rows,
        expert_bytes: (part.n_out * part.row_bytes) as u64,
        row_bytes: part.row_bytes as u64,
        n_in: w.n_in as u32,
        n_out: part.n_out as u32,
        m: m as u32,
        y_stride: w.n_out as u32,
    };
    // SAFETY: the part holds n_experts · n_out rows; the callers' x and y have the rows that they say, and tiles were written by
    // `moe_group`.
    unsafe { cuda.launch(f, [part.n_out.div_ceil(GEMV_OUTPUTS), n_tiles, 1], 128, &args) }
}

fn gemm(
    cuda: &Cuda,
    y: DevicePtr,
    x: DevicePtr,
    bias: DevicePtr,
    w: &Matrix,
    part: &Part,
    m: usize,
) -> Result<()> {
    let n_in = w.n_in;
    let is_plain = part.dtype == DType::F32;
    let rows_per_slab = match is_plain {
        true => part.n_out,
        false => (SLAB / n_in).max(GEMM_TILE).next_multiple_of(GEMM_TILE).min(part.n_out),
    };
    for first in (0..part.n_out).step_by(rows_per_slab.max(1)) {
        let n_rows = rows_per_slab.min(part.n_out - first);
        let slab = if is_plain {
            part.weights.ptr()
        } else {
            let slab = cuda.scratch.get(&cuda.driver, "a slab of weights", 4 * rows_per_slab * n_in)?;
            embed::dequantize(cuda, slab, part, n_in, first, n_rows)?;
            slab
        };
        let args = GemmArgs {
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
        unsafe { cuda.launch(cuda.kernels.gemm, blocks, 256, &args)? };
    }
    Ok(())
}
