//! Memory for weights and caches: zeroed, aligned to the lines that the kernels load, and in large pages where the system
//! gives them.
//!
//! Buffers are cut one after the other from slabs of whole large pages. With pages of 4 KiB, decoding one token looks up
//! hundreds of thousands of them, and the processor's prefetchers stop at each border; the lookups are dearest in a virtual
//! machine, where they cost more than the reading.

use crate::cpu::simd::{LANES, LINE};
use crate::{Error, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Numbers of a line, aligned as one, so that no vector of a buffer of these lies across two.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line([f32; LANES]);

impl Line {
    pub(super) const ZERO: Self = Self([0.0; LANES]);
}

/// Alignment of a slab: a large page.
const LARGE_PAGE: usize = 2 << 20;
/// Least size of a slab. The last one of a model stays partly unused, and its untouched pages take no memory.
const SLAB: usize = 32 * LARGE_PAGE;
/// Buffers below this size are allocated alone: they would keep a slab alive that has no other buffer.
const SMALL: usize = 64 << 10;

/// A buffer, zero at first, whose address is a multiple of 64.
pub(super) struct Memory {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the memory alive.
    _slab: Arc<Slab>,
}

// SAFETY: the buffer is the only one that has these bytes of its slab, so they go with it to another thread.
unsafe impl Send for Memory {}
// SAFETY: shared references only read the bytes.
unsafe impl Sync for Memory {}

/// One allocation, from which buffers are cut; freed with the last of them.
struct Slab {
    allocation: NonNull<u8>,
    layout: Layout,
    /// The first byte that has the alignment.
    start: NonNull<u8>,
    /// Bytes from there on.
    size: usize,
}

// SAFETY: a slab never touches the memory that it gives out, and any thread may free it.
unsafe impl Send for Slab {}
// SAFETY: a slab's fields do not change.
unsafe impl Sync for Slab {}

/// The slab that is being filled, and how many of its bytes are given out.
static OPEN: Mutex<(Weak<Slab>, usize)> = Mutex::new((Weak::new(), 0));

impl Memory {
    /// `len` bytes, all zero; the system hands out the pages of large ones when they are first written.
    ///
    /// Errors: `OutOfMemory`, for `what`.
    pub(super) fn zeroed(len: usize, what: impl Fn() -> String) -> Result<Self> {
        Self::try_zeroed(len).ok_or_else(|| Error::OutOfMemory {
            device: "cpu".into(),
            what: what(),
            requested: len,
        })
    }

    fn try_zeroed(len: usize) -> Option<Self> {
        let size = len.checked_next_multiple_of(LINE)?;
        if size < SMALL {
            let slab = Slab::new(size.max(LINE), LINE)?;
            return Some(Self { start: slab.start, len, _slab: slab });
        }
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let slab = match open.0.upgrade() {
            Some(slab) if slab.size - open.1 >= size => slab,
            _ => {
                let slab = Slab::new(size.checked_next_multiple_of(SLAB)?, LARGE_PAGE)?;
                *open = (Arc::downgrade(&slab), 0);
                slab
            }
        };
        // SAFETY: open.1 + size is at most the slab's size: checked above, or `size` was rounded up to it.
        let start = unsafe { slab.start.add(open.1) };
        open.1 += size;
        Some(Self { start, len, _slab: slab })
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: the buffer owns `len` bytes of its slab, which were zeroed when it was allocated.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the buffer owns `len` initialized bytes, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Slab {
    /// `size` zeroed bytes from a multiple of `align` on; `size` is not zero.
    fn new(size: usize, align: usize) -> Option<Arc<Self>> {
        // The allocator would write zeros to all of a block of large alignment, and so take all its pages at once. From a
        // block without, whose pages are zeros of the system, the part that is aligned serves as well.
        let layout = Layout::from_size_align(size.checked_add(align)?, 1).ok()?;
        // SAFETY: the size is not zero.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        // SAFETY: less than `align`, so inside the allocation.
        let start = unsafe { allocation.add(allocation.align_offset(align)) };
        if align >= LARGE_PAGE {
            advise_large_pages(start, size);
        }
        Some(Arc::new(Self { allocation, layout, start, size }))
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) }
    }
}

/// Asks the system to back whole pages with large ones.
#[cfg(target_os = "linux")]
fn advise_large_pages(start: NonNull<u8>, size: usize) {
    use std::ffi::{c_int, c_void};
    // From the C library, which the standard library links anyway; the value is the same on every architecture of Linux.
    unsafe extern "C" {
        fn madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int;
    }
    const MADV_HUGEPAGE: c_int = 14;
    // SAFETY: pages that a slab owns; the advice changes no contents. Where the system does not follow it, the slab is as good
    // as without.
    unsafe { madvise(start.as_ptr().cast(), size, MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_large_pages(_start: NonNull<u8>, _size: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zero_aligned_and_apart() {
        let zeroed = |n| Memory::zeroed(n, || "a test".into());
        let sizes = [0, 1, 64, SMALL - 1, SMALL, SMALL + 1, 3 << 20, SLAB, SLAB + 1, SMALL];
        let mut buffers: Vec<Memory> = sizes.iter().map(|&n| zeroed(n).unwrap()).collect();
        for (i, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!(buffer.as_slice().len(), sizes[i]);
            assert!(buffer.start.as_ptr().addr().is_multiple_of(LINE));
            assert!(buffer.as_slice().iter().all(|&b| b == 0), "{i}");
            buffer.as_mut_slice().fill(i as u8 + 1);
        }
        for (i, buffer) in buffers.iter().enumerate() {
            assert!(buffer.as_slice().iter().all(|&b| b == i as u8 + 1), "{i}");
        }
        // What is freed and given out again is zero again.
        drop(buffers);
        assert!(zeroed(SLAB).unwrap().as_slice().iter().all(|&b| b == 0));
        assert!(matches!(zeroed(usize::MAX), Err(Error::OutOfMemory { .. })));
        assert!(matches!(zeroed(usize::MAX / 2), Err(Error::OutOfMemory { .. })));
    }
}
