//! Launches of gated_norm.cu: norms of groups of elements, with a gate.

use crate::cuda::driver::{Cuda, DevicePtr, kernel_args, kernels};
use crate::{GatedNorm, NormKind, Result, Tensor};

kernel_args! {
    in "gated_norm_args.cuh";

    struct GatedNormArgs {
        /// [n_rows, n_groups, n], in place
        x: DevicePtr as "float*",
        /// [n_rows] rows of `gate_len`, which begin with n_groups * n gates
        gate: DevicePtr as "const float*",
        /// [n], or [n_groups, n] where groups have their own
        weight: DevicePtr as "const float*",
        /// As the weights, or null
        bias: DevicePtr as "const float*",
        n_rows: u32,
        n_groups: u32,
        n: u32,
        gate_len: u32,
        /// From the weights of a group to those of the next; 0: one group's weights serve all
        weight_stride: u32,
        /// 1: the mean is taken out first
        layer: u32,
        /// 1: the gate multiplies what is normalized; 0: the result
        gate_first: u32,
        eps: f32,
    }
}

kernels! {
    /// Kernels of gated_norm.cu.
    pub(super) struct Kernels in gated_norm {
        gated_norm: GatedNormArgs,
    }
}

/// As [`Ops::gated_norm`](crate::Ops::gated_norm).
pub(in crate::cuda) fn gated_norm(
    cuda: &Cuda,
    x: &mut Tensor<Cuda>,
    gate: &Tensor<Cuda>,
    start: usize,
    norm: GatedNorm<'_, Cuda>,
) -> Result<()> {
    let GatedNorm { norm, group_len: n, gate_first } = norm;
    let (n_rows, row_len, n_weights) = (x.rows(), x.row_len(), norm.weight.len());
    assert!(row_len.is_multiple_of(n), "norms of {n} elements in rows of {row_len}");
    assert!([n, row_len].contains(&n_weights), "{n_weights} weights for {n} of {row_len} elements");
    assert!(norm.bias.as_ref().is_none_or(|b| b.len() == n_weights), "a bias for {n_weights} elements");
    assert_eq!(n_rows, gate.rows());
    assert!(start + row_len <= gate.row_len(), "gates {start}.. of {} for {row_len}", gate.row_len());
    let n_groups = row_len / n;
    let args = GatedNormArgs {
        x: x.ptr(),
        gate: gate.ptr().offset(size_of::<f32>() * start),
        weight: norm.weight.ptr(),
        bias: norm.bias.as_ref().map_or(DevicePtr::NULL, Tensor::ptr),
        n_rows: n_rows as u32,
        n_groups: n_groups as u32,
        n: n as u32,
        gate_len: gate.row_len() as u32,
        weight_stride: if n_weights == n { 0 } else { n as u32 },
        gate_first: u32::from(gate_first),
        layer: u32::from(norm.kind == NormKind::Layer),
        eps: norm.eps,
    };
    let blocks = [(n_rows * n_groups).div_ceil(4), 1, 1];
    // SAFETY: each row of x is `n_groups` groups of `n` elements, and as many gates follow `start` in each row of `gate`, as asserted above.
    unsafe { cuda.launch(cuda.room::<Kernels>().gated_norm, blocks, 128, &args) }
}
