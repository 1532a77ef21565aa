//! Launches of normalization.

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
}

kernels! {
    /// Kernels of norm.cu.
    pub(in crate::cuda) struct Kernels in norm {
        norm_rows: NormArgs,
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
