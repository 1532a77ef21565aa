//! How fast memory is read: an upper bound for the speed of decoding.

use super::isa::Isa;
use super::memory::Memory;
use super::parallel::Shared;
use super::simd::{Kernel, LINE, Simd, dispatch};
use super::threads::Pool;
use crate::Result;
use std::hint::black_box;
use std::time::Instant;

/// Beyond any cache, and read within a few milliseconds: the speed of a shared machine's memory may change the next moment.
const BYTES: usize = 256 << 20;

/// Bytes that one thread reads at a time: as many as a share of a matmul has.
const CHUNK: usize = 1 << 20;

/// A buffer to read, in pages as weights have.
pub struct ReadTest {
    isa: Isa,
    memory: Memory,
}

impl ReadTest {
    /// Writes the buffer.
    ///
    /// Errors: `OutOfMemory`.
    pub fn new(pool: &Pool) -> Result<Self> {
        let mut memory = Memory::zeroed(BYTES, || "a buffer to read".into())?;
        // Pages that were never written are all mapped to one page of zeros. The first write places a page near the thread's memory node.
        let bytes = Shared::new(memory.as_mut_slice());
        pool.for_each_chunk(BYTES, CHUNK, |range| {
            // SAFETY: ranges do not overlap, and each is visited once.
            unsafe { bytes.slice(range.start, range.len()) }.fill(1);
        });
        Ok(Self { isa: Isa::best(), memory })
    }

    /// Bytes per second of reading the buffer once, as a matmul reads weights: all threads, line after line.
    pub fn bytes_per_second(&self, pool: &Pool) -> f64 {
        // Wakes the threads.
        pool.run(|_, _| ());
        let start = Instant::now();
        pool.for_each_chunk(BYTES, CHUNK, |range| {
            // SAFETY: `Isa::best` is an instruction set of this processor; a range starts and ends at lines, since `CHUNK` and `BYTES` do.
            unsafe { dispatch(self.isa, Read(&self.memory.as_slice()[range])) }
        });
        BYTES as f64 / start.elapsed().as_secs_f64()
    }
}

/// A number of lines that are only read.
struct Read<'a>(&'a [u8]);

impl Kernel for Read<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the loads are of whole lines of the slice, which starts at one (`Memory` is aligned to lines).
        unsafe {
            let mut seen = [S::splat_i32(0); 4];
            for lines in self.0.as_chunks::<{ 4 * LINE }>().0 {
                for (i, seen) in seen.iter_mut().enumerate() {
                    *seen = S::or(*seen, S::load_in_order(lines.as_ptr().add(i * LINE)));
                }
            }
            black_box(seen);
        }
    }
}
