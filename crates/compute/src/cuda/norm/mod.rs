//! Launches of normalization.

use super::common::{TileLayout, Tiles};
use super::driver::{Cuda, DevicePtr, kernel_args, kernels};
use crate::{Norm, NormKind, Result, Tensor};

kernel_args! {
    in "norm_args.cuh";

    struct NormArgs {
        /// [n_rows, n] in rows of `row_len`, may be x
        y: DevicePtr as "float*",
        /// As y.
        x: DevicePtr as "const float*",
        /// [n]
        weight: DevicePtr as "const float*",
        /// [n] or null
        bias: DevicePtr as "const float*",
        n: u32,
        /// Elements from one row to the next, of which n are normalized.
        row_len: u32,
        /// Whether the mean is taken out first.
        layer: u32,
        /// Whether the result is added to y.
        add: u32,
        eps: f32,
    }

    struct NormSumArgs {
        /// [m, n], n a multiple of 8
        x: DevicePtr as "float*",
        /// tiles of half precision, [m, n]
        y: DevicePtr as "const uint8_t*",
        /// [m, n]
        tiles: DevicePtr as "uint8_t*",
        /// [n]
        weight: DevicePtr as "const float*",
        /// [n] or null
        bias: DevicePtr as "const float*",
        m: u32,
        n: u32,
        /// of all tiles
        n_rows: u32,
        /// TileNumber of the result
        number: u32,
        /// 1: the mean is taken out first
        layer: u32,
        eps: f32,
    }
}

kernels! {
    /// Kernels of norm.cu.
    pub(in crate::cuda) struct Kernels in norm {
        norm_rows: NormArgs,
        /// For rows of up to 1,024 elements, and up to 2,048.
        norm_sum_1024: NormSumArgs,
        norm_sum_2048: NormSumArgs,
    }
}

/// `y = norm(x)`, or `y += norm(x)`; `y` has the shape of `x`.
pub(in crate::cuda) fn norm(
    cuda: &Cuda,
    y: DevicePtr,
    x: &Tensor<Cuda>,
    norm: &Norm<Cuda>,
    add: bool,
) -> Result<()> {
    assert_eq!(x.row_len(), norm.weight.len());
    // SAFETY: the norm has as many elements as a row of `x`, and `y` has the shape of `x`.
    unsafe { launch(cuda, y, x.ptr(), norm, add, [x.rows(), x.row_len()]) }
}

/// `x = norm(x)` in the columns from `start` on that the norm has elements for.
pub(in crate::cuda) fn norm_columns(
    cuda: &Cuda,
    x: &mut Tensor<Cuda>,
    start: usize,
    norm: &Norm<Cuda>,
) -> Result<()> {
    let (n, row_len) = (norm.weight.len(), x.row_len());
    assert!(start + n <= row_len, "columns {start}.. of {row_len} for {n} elements of a norm");
    let first = x.ptr().offset(start * size_of::<f32>());
    // SAFETY: from `start` on each row of `x` has `n` elements, as asserted above.
    unsafe { launch(cuda, first, first, norm, false, [x.rows(), row_len]) }
}

/// Normalizes as many elements of each row as `norm` has.
///
/// # Safety
/// - `x` and `y` point to `rows` rows, `row_len` elements apart, with as many elements in each as `norm` has.
unsafe fn launch(
    cuda: &Cuda,
    y: DevicePtr,
    x: DevicePtr,
    norm: &Norm<Cuda>,
    add: bool,
    [rows, row_len]: [usize; 2],
) -> Result<()> {
    let n = norm.weight.len();
    assert!(norm.bias.as_ref().is_none_or(|b| b.len() == n), "a bias for {n} elements");
    let args = NormArgs {
        y,
        x,
        weight: norm.weight.ptr(),
        bias: norm.bias.as_ref().map_or(DevicePtr::NULL, Tensor::ptr),
        n: n as u32,
        row_len: row_len as u32,
        layer: u32::from(norm.kind == NormKind::Layer),
        add: u32::from(add),
        eps: norm.eps,
    };
    let threads = n.div_ceil(4).next_multiple_of(32).clamp(32, 1024) as u32;
    // SAFETY: every row has n elements, as this function's contract says; weight and bias have n, as read and asserted above.
    unsafe { cuda.launch(cuda.room::<Kernels>().norm_rows, [rows, 1, 1], threads, &args) }
}

/// Elements of the longest row that [`norm_sum`] takes.
pub(in crate::cuda) const LONGEST_SUM: usize = 2048;

/// `x = norm(x + y)`, of `y` in tiles of half precision, and the same as `tiles` with as many rows.
pub(in crate::cuda) fn norm_sum(
    cuda: &Cuda,
    x: &mut Tensor<Cuda>,
    y: Tiles,
    tiles: Tiles,
    norm: &Norm<Cuda>,
) -> Result<()> {
    let (m, n) = (x.rows(), x.row_len());
    assert!(n == norm.weight.len() && n <= LONGEST_SUM && n.is_multiple_of(8), "{x:?}");
    assert!(norm.bias.as_ref().is_none_or(|b| b.len() == n), "a bias for {n} elements");
    assert!(y.layout == TileLayout::GemmHalf && y.rows == tiles.rows && m <= y.rows, "{y:?} to {tiles:?}");
    let args = NormSumArgs {
        x: x.ptr(),
        y: y.ptr,
        tiles: tiles.ptr,
        weight: norm.weight.ptr(),
        bias: norm.bias.as_ref().map_or(DevicePtr::NULL, Tensor::ptr),
        m: m as u32,
        n: n as u32,
        n_rows: y.rows as u32,
        number: tiles.number() as u32,
        layer: u32::from(norm.kind == NormKind::Layer),
        eps: norm.eps,
    };
    let kernels = cuda.room::<Kernels>();
    let f = if n > 1024 { kernels.norm_sum_2048 } else { kernels.norm_sum_1024 };
    // SAFETY: x, the norm and its bias have n columns, and tiles room for m rows of them, as their maker checked.
    unsafe { cuda.launch(f, [m.div_ceil(8), 1, 1], 256, &args) }
}

/// `y += norm(x)`
pub(in crate::cuda) fn add_norm(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    x: &Tensor<Cuda>,
    post_norm: &Norm<Cuda>,
) -> Result<()> {
    assert_eq!(y.shape(), x.shape());
    norm(cuda, y.ptr(), x, post_norm, true)
}
