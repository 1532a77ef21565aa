//! What the choice of a matmul kernel depends on: the sizes of a matrix, and the device.

use super::packed_types::packed_row_bytes;
use crate::DType;
use crate::cuda::driver::{Cuda, Mode};

/// How the weights of a part lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum Layout {
    /// As in the file.
    Blocks,
    /// As quant/<type>/packed.cuh says.
    Packed,
}

/// Sizes of a matrix and of its parts.
#[derive(Clone, Debug)]
pub(in crate::cuda) struct MatrixShape {
    /// Experts; 1 for a plain matrix.
    pub(in crate::cuda) n_experts: usize,
    /// Columns.
    pub(in crate::cuda) n_in: usize,
    /// Rows of all parts together.
    pub(in crate::cuda) n_out: usize,
    /// In the order of their outputs.
    pub(in crate::cuda) parts: Vec<PartShape>,
}

/// Outputs `first_out` to `first_out + n_out` of a matrix.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct PartShape {
    pub(in crate::cuda) dtype: DType,
    pub(in crate::cuda) layout: Layout,
    pub(in crate::cuda) first_out: usize,
    pub(in crate::cuda) n_out: usize,
    /// Bytes of one row of weights.
    pub(in crate::cuda) row_bytes: usize,
}

/// Rows of one part of a matrix, from one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartRows {
    /// Index of the part.
    pub(super) part: usize,
    /// First row.
    pub(super) first: usize,
}

impl MatrixShape {
    /// A matrix `[n_experts, n_out, n_in]` of one part, as it would be loaded.
    pub(super) fn single(dtype: DType, [n_experts, n_out, n_in]: [usize; 3], mode: Mode) -> Option<Self> {
        let block_bytes = dtype.bytes_for(n_in)?;
        let (layout, row_bytes) = match packed_row_bytes(dtype, n_in) {
            Some(bytes) if mode < Mode::Exact => (Layout::Packed, bytes),
            _ => (Layout::Blocks, block_bytes),
        };
        let parts = vec![PartShape { dtype, layout, first_out: 0, n_out, row_bytes }];
        Some(Self { n_experts, n_in, n_out, parts })
    }

    /// Where the first and the second half of the outputs begin, a gate's and its up's; `None` where a half is not one part's.
    pub(super) fn halves(&self) -> Option<[PartRows; 2]> {
        match &self.parts[..] {
            [both] if both.n_out.is_multiple_of(2) => {
                Some([PartRows { part: 0, first: 0 }, PartRows { part: 0, first: both.n_out / 2 }])
            }
            [gate, up] if gate.n_out == up.n_out => {
                Some([PartRows { part: 0, first: 0 }, PartRows { part: 1, first: 0 }])
            }
            _ => None,
        }
    }
}

/// What the choice of a kernel depends on of a device.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct Target {
    /// SMs.
    pub(in crate::cuda) n_sms: usize,
    /// Shared memory that a block can have, in bytes.
    pub(in crate::cuda) max_shared_bytes: usize,
    /// Whether it runs code for Hopper.
    pub(in crate::cuda) hopper: bool,
    /// Whether blocks of a kernel may wait for each other: in the device's first stream of the process only.
    pub(in crate::cuda) may_spin_across_blocks: bool,
    /// What results may depend on.
    pub(in crate::cuda) mode: Mode,
}

impl Target {
    /// An A100: the kernels that every GPU from Ampere on runs.
    pub(super) const SM_80: Self = Self {
        n_sms: 108,
        max_shared_bytes: 163 << 10,
        hopper: false,
        may_spin_across_blocks: true,
        mode: Mode::Fast,
    };
    /// An H200.
    pub(super) const SM_90: Self =
        Self { n_sms: 132, max_shared_bytes: 227 << 10, hopper: true, ..Self::SM_80 };

    pub(in crate::cuda) fn of(cuda: &Cuda) -> Self {
        Self {
            n_sms: cuda.driver.n_multiprocessors() as usize,
            max_shared_bytes: cuda.driver.max_shared_bytes(),
            hopper: cuda.driver.is_hopper(),
            may_spin_across_blocks: cuda.driver.is_first(),
            mode: cuda.mode,
        }
    }
}
