//! Waiting without the interpreter's lock, and until Ctrl-C.

use pyo3::prelude::*;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a signal may wait for its handler: Python runs handlers in the main thread, while that holds the lock.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Polls until something is ready. Other threads of Python run meanwhile.
///
/// Errors: what a signal's handler raised, such as `KeyboardInterrupt`.
pub(crate) fn block_on<T: Send>(
    py: Python<'_>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T> + Send,
) -> PyResult<T> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        let polled = py.detach(|| {
            let deadline = Instant::now() + SIGNALS_EVERY;
            loop {
                let polled = poll(&mut Context::from_waker(&waker));
                let left = deadline.saturating_duration_since(Instant::now());
                if polled.is_ready() || left.is_zero() {
                    return polled;
                }
                thread::park_timeout(left);
            }
        });
        if let Poll::Ready(value) = polled {
            return Ok(value);
        }
        py.check_signals()?;
    }
}

/// Does what cannot be polled, on a thread of its own. If a signal's handler raises, the thread goes on and its result is dropped.
///
/// Errors: what a signal's handler raised; the system gives no thread.
pub(crate) fn on_a_thread<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let waiting = thread::current();
    let worker = thread::Builder::new().spawn(move || {
        let result = work();
        waiting.unpark();
        result
    })?;
    block_on(py, |_| if worker.is_finished() { Poll::Ready(()) } else { Poll::Pending })?;
    Ok(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
