//! Threads that compute what constraints allow next, so that the engine's thread never does.
//!
//! There are two queues. Sequences that are new or whose last mask came late use the second, which never has all threads: however
//! long their masks take, those of others are computed.

use crate::scheduler::{MaskDone, MaskJob};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Stack of each thread; grammars recurse.
const STACK_BYTES: usize = 64 << 20;

/// What is done with a mask that is computed; `None` after a panic.
pub(crate) type Reply = Box<dyn FnOnce(Option<MaskDone>, Duration) + Send>;

/// The threads. Dropping it ends them after what they are at.
pub(crate) struct MaskPool {
    shared: Arc<Shared>,
}

struct Shared {
    n_threads: usize,
    queues: Mutex<Queues>,
    ready: Condvar,
}

#[derive(Default)]
struct Queues {
    quick: VecDeque<(MaskJob, Reply)>,
    slow: VecDeque<(MaskJob, Reply)>,
    /// Threads at a job of the second queue.
    n_slow: usize,
    closed: bool,
}

impl MaskPool {
    /// Starts the threads, two at least.
    pub(crate) fn new(n_threads: usize) -> Self {
        let n_threads = n_threads.max(2);
        let shared = Arc::new(Shared { n_threads, queues: Mutex::default(), ready: Condvar::new() });
        for thread in 0..n_threads {
            let shared = shared.clone();
            let builder = std::thread::Builder::new().name(format!("mask {thread}")).stack_size(STACK_BYTES);
            builder.spawn(move || shared.run()).expect("the system can start one more thread");
        }
        Self { shared }
    }

    /// Has a job done.
    pub(crate) fn submit(&self, job: MaskJob, slow: bool, reply: Reply) {
        let mut queues = self.shared.lock();
        let queue = if slow { &mut queues.slow } else { &mut queues.quick };
        queue.push_back((job, reply));
        drop(queues);
        self.shared.ready.notify_one();
    }
}

impl Drop for MaskPool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.ready.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        // No code that can panic runs under the lock.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while let Some((job, reply, slow)) = self.next() {
            let begin = Instant::now();
            let done = catch_unwind(AssertUnwindSafe(|| job.run())).ok();
            reply(done, begin.elapsed());
            if slow {
                self.lock().n_slow -= 1;
                self.ready.notify_one();
            }
        }
    }

    /// The next job and whether it is from the second queue; `None` at the end.
    fn next(&self) -> Option<(MaskJob, Reply, bool)> {
        let mut queues = self.lock();
        loop {
            if queues.closed {
                return None;
            }
            if let Some((job, reply)) = queues.quick.pop_front() {
                return Some((job, reply, false));
            }
            if queues.n_slow + 1 < self.n_threads
                && let Some((job, reply)) = queues.slow.pop_front()
            {
                queues.n_slow += 1;
                return Some((job, reply, true));
            }
            queues = self.ready.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
