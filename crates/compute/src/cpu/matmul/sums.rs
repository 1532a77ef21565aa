//! Room for the sums of a matmul.

use crate::cpu::simd::LANES;
use std::mem::MaybeUninit;

/// [`ROWS`](Self) rows of 16 sums. Aligned, because a vector that crosses two cache lines costs twice; not initialized, because most
/// matmuls have one row.
#[repr(align(64))]
pub(super) struct Sums<const ROWS: usize>(MaybeUninit<[[f32; LANES]; ROWS]>);

impl<const ROWS: usize> Sums<ROWS> {
    pub(super) fn uninit() -> Self {
        Self(MaybeUninit::uninit())
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }

    /// Zeros for the first `rows` rows.
    pub(super) fn zeroed(&mut self, rows: usize) -> &mut [f32] {
        assert!(rows <= ROWS);
        let start = self.as_mut_ptr();
        // SAFETY: the array has `ROWS` rows, of which these are the first; zero bytes are floats, so all elements are initialized.
        unsafe {
            start.write_bytes(0, rows * LANES);
            std::slice::from_raw_parts_mut(start, rows * LANES)
        }
    }
}
