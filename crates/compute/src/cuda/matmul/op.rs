//! One matmul with what stands before and after it.

use super::epilogue::Epilogue;
use super::matrix::Matrix;
use crate::cuda::common::{Input, Output};
use crate::cuda::driver::{Cuda, DevicePtr};
use crate::{Norm, Tensor};

/// `y = epilogue(x · wᵀ + bias)`, with `x` `[m, n_in]` and `y` `[m, n_out]`, or for a gate `[m, n_out / 2]`.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct Matmul<'a> {
    pub(in crate::cuda) w: &'a Matrix,
    pub(in crate::cuda) x: Input<'a>,
    pub(in crate::cuda) y: Output,
    /// `[n_out]`; not for a gate.
    pub(in crate::cuda) bias: Option<&'a Tensor<Cuda>>,
    pub(in crate::cuda) m: usize,
    pub(in crate::cuda) epilogue: Epilogue,
}

impl<'a> Matmul<'a> {
    /// The input as floats, with the norm that comes before.
    ///
    /// # Panics
    /// If it is tiles, which kernels for floats are not chosen for.
    pub(super) fn float_input(&self) -> (DevicePtr, Option<&'a Norm<Cuda>>) {
        match self.x {
            Input::Floats(x, norm) => (x, norm),
            Input::Tiles(tiles) => panic!("{tiles:?} for a kernel that reads floats"),
        }
    }

    /// The result's address, as floats.
    ///
    /// # Panics
    /// If it is tiles, which kernels for floats are not chosen for.
    pub(super) fn float_output(&self) -> DevicePtr {
        match self.y {
            Output::Floats(y) => y,
            Output::Tiles(tiles) => panic!("{tiles:?} from a kernel that writes floats"),
            Output::Qkv(..) => panic!("keys and values in the cache from a kernel that writes floats"),
        }
    }

    /// The bias, or null.
    pub(super) fn bias_ptr(&self) -> DevicePtr {
        self.bias.map_or(DevicePtr::NULL, Tensor::ptr)
    }
}
