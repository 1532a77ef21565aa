//! Counts what the current thread allocates, so that a test can bound it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static IN_USE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches only thread-local numbers, which are
// initialized at compile time and so need no allocation themselves.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: our caller's promises are the system allocator's demands.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn count(size: isize) {
    let in_use = IN_USE.get() + size;
    IN_USE.set(in_use);
    PEAK.set(PEAK.get().max(in_use));
}

/// Runs `f` and returns its result and how many bytes more than before this thread had allocated at most.
pub(crate) fn peak_bytes<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = IN_USE.get();
    PEAK.set(before);
    let result = f();
    (result, (PEAK.get() - before) as usize)
}

#[test]
fn allocations_are_counted() {
    let (vec, peak) = peak_bytes(|| drop(std::hint::black_box(vec![0u8; 1 << 20])));
    assert_eq!(vec, ());
    assert!(((1 << 20)..(2 << 20)).contains(&peak), "{peak}");
}
