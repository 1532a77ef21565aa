//! Loops over the rows of an output, on all threads.

use super::threads::Pool;
use std::marker::PhantomData;

/// A slice that several threads write to, each to elements of its own.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: the only way to the elements is `slice`, whose contract keeps threads apart; elements may be sent.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: what makes it `Send` holds for shared references too, which is all that `slice` takes.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// `len` elements from `start` on.
    ///
    /// Panics if the slice has fewer.
    ///
    /// # Safety
    /// *Elements*: nobody else uses these elements while the result is borrowed.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "{len} elements from {start} of {}", self.len);
        // SAFETY: inside the slice (the assertion), which is borrowed for 'a, and these elements are ours alone (the contract).
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

impl<T> Shared<'_, T> {
    /// `len` elements from `start` on, to read.
    ///
    /// Panics if the slice has fewer.
    ///
    /// # Safety
    /// *Elements*: nobody writes these elements while the result is borrowed.
    pub(super) unsafe fn read(&self, start: usize, len: usize) -> &[T] {
        assert!(start <= self.len && len <= self.len - start, "{len} elements from {start} of {}", self.len);
        // SAFETY: inside the slice (the assertion), which is borrowed for 'a, and nobody writes these elements (the contract).
        unsafe { std::slice::from_raw_parts(self.start.add(start), len) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "3 elements from 2 of 4")]
    fn elements_beyond_the_slice_panic() {
        let mut numbers = [0_u8; 4];
        let shared = Shared::new(&mut numbers);
        // SAFETY: nobody else uses the elements; the call panics.
        let _ = unsafe { shared.slice(2, 3) };
    }

    #[test]
    fn rows_and_pieces_cover_every_element_once() {
        let pool = Pool::new(3);
        for n_rows in [1, 7, 5000] {
            let mut y = vec![0.0; n_rows * 5];
            rows(&pool, &mut y, 5, |row, y| y.iter_mut().for_each(|y| *y += row as f32));
            assert!(y.iter().enumerate().all(|(i, &y)| y == (i / 5) as f32));
            pieces(&pool, &mut y, |start, y| {
                y.iter_mut().enumerate().for_each(|(i, y)| *y -= (start + i) as f32)
            });
            assert!(y.iter().enumerate().all(|(i, &y)| y == (i / 5) as f32 - i as f32));
        }
    }
}
