//! Launches of normalization.

use super::Cuda;
use super::driver::DevicePtr;
use crate::{Norm, NormKind, Result, Tensor};

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    y: DevicePtr,
    x: DevicePtr,
    weight: DevicePtr,
    bias: DevicePtr,
    n: u32,
    layer: u32,
    add: u32,
    eps: f32,
}

/// `y = norm(x)`, or `y += norm(x)`; `y` has the shape of `x`.
pub(super) fn norm(cuda: &Cuda, y: DevicePtr, x: &Tensor<Cuda>, norm: &Norm<Cuda>, add: bool) -> Result<()> {
    let n = x.row_len();
    assert_eq!(n, norm.weight.len());
    assert!(norm.bias.as_ref().is_none_or(|b| b.len() == n), "a bias for {n} elements");
    let args = Args {
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
    unsafe { cuda.launch(cuda.kernels.norm_rows, [x.rows(), 1, 1], threads, &args) }
}
