//! Launches of normalization.

use super::driver::{Cuda, DevicePtr, kernel_args, kernels};
use crate::{Norm, NormKind, Result, Tensor};

kernel_args! {
    in "norm_args.cuh";

    struct NormArgs {
        /// [n_rows, n], may be x
        y: DevicePtr as "float*",
        x: DevicePtr as "const float*",
        /// [n]
        weight: DevicePtr as "const float*",
        /// [n] or null
        bias: DevicePtr as "const float*",
        n: u32,
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
    let n = x.row_len();
    assert_eq!(n, norm.weight.len());
    assert!(norm.bias.as_ref().is_none_or(|b| b.len() == n), "a bias for {n} elements");
    let args = NormArgs {
        y,
        x: x.ptr(),
        weight: norm.weight.ptr(),
        bias: norm.bias.as_ref().map_or(DevicePtr::NULL, Tensor::ptr),
        n: n as u32,
        layer: u32::from(norm.kind == NormKind::Layer),
        add: u32::from(add),
        eps: norm.eps,
    };
    let threads = n.div_ceil(4).next_multiple_of(32).clamp(32, 1024) as u32;
    // SAFETY: all rows have n elements, as checked here and by the callers.
    unsafe { cuda.launch(cuda.room::<Kernels>().norm_rows, [x.rows(), 1, 1], threads, &args) }
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
