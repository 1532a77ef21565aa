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
        advise_large_pages(start, layout.size());
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

/// Asks the system to back a large buffer with large pages: the processor's prefetchers stop at the border of a page.
#[cfg(target_os = "linux")]
fn advise_large_pages(start: NonNull<u8>, len: usize) {
    use std::ffi::{c_int, c_void};
    // From the C library, which the standard library links anyway; the value is the same on every architecture of Linux.
    unsafe extern "C" {
        fn madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int;
    }
    const MADV_HUGEPAGE: c_int = 14;
    if len >= LARGE_PAGE {
        // SAFETY: whole pages that the buffer owns; the advice changes no contents. Where the system does not follow it,
        // the buffer is as good as without.
        unsafe { madvise(start.as_ptr().cast(), len / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_large_pages(_start: NonNull<u8>, _len: usize) {}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
