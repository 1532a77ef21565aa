//! What pools of threads for long work beside the model have in common: a low priority, and a record of since when each is busy.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How much nicer than other threads: with as many that want a processor it gets about a tenth of the time.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Lets the calling thread take little of a processor that others want, too, such as those that compute the model.
///
/// On Linux only, whose threads have priorities of their own; elsewhere nothing happens.
pub fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "the system does not lower a thread's priority");
    }
}

/// Since when each thread of a pool has been at one piece of work.
#[derive(Debug)]
pub struct BusyThreads {
    since: Vec<Mutex<Option<Instant>>>,
}

impl BusyThreads {
    /// Idle threads.
    pub fn new(n_threads: usize) -> Self {
        Self { since: (0..n_threads).map(|_| Mutex::default()).collect() }
    }

    /// Threads of the pool.
    pub fn count(&self) -> usize {
        self.since.len()
    }

    /// Runs a piece of work of a thread; it counts as busy until that returns or panics.
    pub fn run<T>(&self, thread: usize, work: impl FnOnce() -> T) -> T {
        struct Reset<'a>(&'a BusyThreads, usize);
        impl Drop for Reset<'_> {
            fn drop(&mut self) {
                self.0.set(self.1, None);
            }
        }
        self.set(thread, Some(Instant::now()));
        let _reset = Reset(self, thread);
        work()
    }

    /// How long all threads have been at one piece of work each, if they are.
    pub fn all_busy(&self) -> Option<Duration> {
        let now = Instant::now();
        let since = self.since.iter().map(|since| *since.lock().unwrap_or_else(PoisonError::into_inner));
        let newest = since.collect::<Option<Vec<_>>>()?.into_iter().max()?;
        Some(now.saturating_duration_since(newest))
    }

    fn set(&self, thread: usize, since: Option<Instant>) {
        *self.since[thread].lock().unwrap_or_else(PoisonError::into_inner) = since;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_busy_while_all_of_its_threads_are() {
        let threads = BusyThreads::new(2);
        assert_eq!(threads.all_busy(), None);
        threads.run(0, || {
            assert_eq!(threads.all_busy(), None);
            threads.run(1, || assert!(threads.all_busy().is_some()));
            assert_eq!(threads.all_busy(), None);
        });
        let panics = std::panic::AssertUnwindSafe(|| threads.run(0, || panic!("at its work")));
        assert!(std::panic::catch_unwind(panics).is_err());
        threads.run(1, || assert_eq!(threads.all_busy(), None, "the other has ended"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_lowers_its_own_priority_only() {
        let own = || rustix::process::getpriority_process(None).unwrap();
        let before = own();
        let lowered = std::thread::spawn(move || {
            lower_priority();
            own()
        });
        assert_eq!(lowered.join().unwrap(), before.max(NICENESS));
        assert_eq!(own(), before);
    }
}
