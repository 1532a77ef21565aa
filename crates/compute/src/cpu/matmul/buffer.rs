//! Memory for packed weights: zeroed, and aligned to the lines that the kernels load.

use crate::cpu::simd::LINE;
use crate::{Error, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment: a large page, so that the system may back the buffer with such pages.
const LARGE_PAGE: usize = 2 << 20;

/// A zeroed buffer whose address is a multiple of 64.
pub(super) struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the buffer owns its memory; shared references only read.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of `len` bytes, all zero.
    ///
    /// Errors: `OutOfMemory`.
    pub(super) fn zeroed(len: usize) -> Result<Self> {
        let align = if len >= LARGE_PAGE { LARGE_PAGE } else { LINE };
        let no_memory =
            || Error::OutOfMemory { device: "cpu".into(), what: "packed weights".into(), requested: len };
        let layout = Layout::from_size_align(len.max(1), align).map_err(|_| no_memory())?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(no_memory)?;
        Ok(Self { start, layout })
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: the buffer owns `size` initialized bytes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
