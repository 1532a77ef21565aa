//! Host memory of tensors: zeroed, aligned to cache lines, read as numbers or as bytes.

use super::Cpu;
use super::memory::Memory;
use crate::{DType, Error, Result, Tensor};

/// Memory of a tensor of the [`Cpu`] backend.
pub struct Buffer(Memory);

impl Buffer {
    /// Zeros.
    pub(super) fn zeros(dtype: DType, shape: &[usize]) -> Result<Self> {
        let row = shape.last().copied().unwrap_or(1);
        let rows = shape.iter().rev().skip(1).try_fold(1usize, |n, &d| n.checked_mul(d));
        let row_bytes = dtype.bytes_for(row).ok_or_else(|| Error::PartialBlock {
            what: "a tensor".into(),
            dtype,
            len: row,
            block_len: dtype.block_len(),
        })?;
        // A size that overflows is more than there is.
        let len = rows.and_then(|r| r.checked_mul(row_bytes)).unwrap_or(usize::MAX);
        Ok(Self(Memory::zeroed(len, || format!("{dtype} {shape:?}"))?))
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// All bytes, to write to.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_slice()
    }
}

impl Tensor<Cpu> {
    /// The elements in use of an `F32` tensor.
    pub fn floats(&self) -> &[f32] {
        assert_eq!(self.dtype(), DType::F32);
        &bytemuck::cast_slice(self.buffer().bytes())[..self.len()]
    }

    /// The elements in use of an `F32` tensor, to write to.
    pub fn floats_mut(&mut self) -> &mut [f32] {
        assert_eq!(self.dtype(), DType::F32);
        let len = self.len();
        &mut bytemuck::cast_slice_mut(self.buffer_mut().bytes_mut())[..len]
    }
}
