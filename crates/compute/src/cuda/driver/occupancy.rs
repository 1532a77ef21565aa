//! How many blocks of consecutive GEMVs an SM holds, by the shared memory that they ask for.

use super::api::Driver;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Static shared memory of the GEMV kernels, at most.
pub(in crate::cuda) const GEMV_STATIC_BYTES: usize = 1 << 10;
/// Shared memory that the system takes for each block.
const SYSTEM_BYTES: usize = 1 << 10;
/// What a block takes beside the dynamic shared memory it asks for.
pub(in crate::cuda) const BLOCK_BYTES: usize = GEMV_STATIC_BYTES + SYSTEM_BYTES;

/// Shared memory of an SM on which a block can have `max_block_bytes`.
pub(in crate::cuda) fn sm_shared_bytes(max_block_bytes: usize) -> usize {
    max_block_bytes + SYSTEM_BYTES
}

/// Dynamic shared memory of a block of which two do not fit on an SM with `all` bytes.
pub(in crate::cuda) fn more_than_half(all: usize) -> usize {
    all / 2 + 1 - SYSTEM_BYTES
}

/// Keeps consecutive GEMVs, which overlap by programmatic dependent launch, at one block per SM.
///
/// A GEMV has one block for each SM. A block that finds no room beside the previous kernel's block waits until that ends; the SMs whose
/// blocks end first would then get two blocks, which take twice as long as all others. So such a block asks for more than half of the
/// shared memory, and two of its kind do not fit on one SM.
#[derive(Debug)]
pub(in crate::cuda) struct SmemOccupancyGuard(AtomicUsize);

impl Default for SmemOccupancyGuard {
    fn default() -> Self {
        Self(AtomicUsize::new(Self::UNKNOWN))
    }
}

impl SmemOccupancyGuard {
    /// Other kernels were launched in between. They may leave room on some SMs only.
    const UNKNOWN: usize = usize::MAX / 2;

    /// Dynamic shared memory to ask for, for a block that needs `shared` bytes.
    pub(in crate::cuda) fn request(&self, driver: &dyn Driver, shared: usize) -> usize {
        one_block_per_sm(sm_shared_bytes(driver.max_shared_bytes()), self.0.load(Ordering::Relaxed), shared)
    }

    /// A GEMV with this much dynamic shared memory was launched.
    pub(in crate::cuda) fn set(&self, shared: usize) {
        self.0.store(shared + BLOCK_BYTES, Ordering::Relaxed);
    }

    /// Another kernel was launched.
    pub(super) fn forget(&self) {
        self.0.store(Self::UNKNOWN, Ordering::Relaxed);
    }

    /// Launches a kernel that leaves every SM the same room.
    pub(in crate::cuda) fn keep<T>(&self, launch: impl FnOnce() -> T) -> T {
        let before = self.0.load(Ordering::Relaxed);
        let launched = launch();
        self.0.store(before, Ordering::Relaxed);
        launched
    }
}

/// What a block that needs `shared` bytes asks for on an SM with `all` bytes, of which the previous kernel's block has `before`: it fits
/// beside that block, or two of its kind do not fit.
fn one_block_per_sm(all: usize, before: usize, shared: usize) -> usize {
    match shared + BLOCK_BYTES + before <= all {
        true => shared,
        false => shared.max(more_than_half(all)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_fits_beside_the_previous_one_or_is_alone_on_its_sm() {
        let all = 228 << 10;
        for (before, shared) in [
            (0, 100),
            (120 << 10, 100 << 10),
            (120 << 10, 107 << 10),
            (110 << 10, 125 << 10),
            (usize::MAX / 2, 100),
        ] {
            let asked = one_block_per_sm(all, before, shared);
            assert!(asked >= shared && asked + BLOCK_BYTES <= all, "{shared} beside {before}: {asked}");
            let fits = asked + BLOCK_BYTES + before <= all;
            assert!(fits || 2 * (asked + SYSTEM_BYTES) > all, "{shared} beside {before}: {asked}");
        }
    }
}
