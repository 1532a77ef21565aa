//! Loops over the rows of an output, on all threads.

use super::threads::Pool;

/// A pointer that several threads may hold; whoever makes one sees to it that they write to different places.
#[derive(Clone, Copy)]
pub(super) struct Shared<T>(*mut T);

// SAFETY: the type only carries the address; every use is an unsafe block with its own reason.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(super) fn new(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr())
    }

    /// The elements from `start` on.
    ///
    /// # Safety
    /// `start + len` lies inside the slice, which is still borrowed, and nobody else uses these elements meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

/// Below this many elements the threads' barrier costs more than it saves.
const MIN_ELEMENTS: usize = 16 * 1024;

/// Calls `f(start, elements)` for all elements of `y` in pieces, each from `start` on.
pub(super) fn pieces(pool: &Pool, y: &mut [f32], f: impl Fn(usize, &mut [f32]) + Sync) {
    if y.len() < MIN_ELEMENTS {
        return f(0, y);
    }
    let n = y.len();
    let y = Shared::new(y);
    pool.for_each_chunk(n, MIN_ELEMENTS / 2, |range| {
        // SAFETY: ranges do not overlap, and each is visited once.
        f(range.start, unsafe { y.slice(range.start, range.len()) });
    });
}

/// Calls `f(row, elements of that row)` for every row of `y`.
pub(super) fn rows(pool: &Pool, y: &mut [f32], row_len: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    if row_len == 0 {
        return;
    }
    let n_rows = y.len() / row_len;
    if y.len() < MIN_ELEMENTS {
        y.chunks_exact_mut(row_len).enumerate().for_each(|(i, row)| f(i, row));
        return;
    }
    let y = Shared::new(y);
    let chunk = n_rows.div_ceil(pool.n_threads() * 4).max(1);
    pool.for_each_chunk(n_rows, chunk, |range| {
        for i in range {
            // SAFETY: rows do not overlap, and each is visited once.
            f(i, unsafe { y.slice(i * row_len, row_len) });
        }
    });
}
