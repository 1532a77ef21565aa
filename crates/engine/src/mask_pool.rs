//! Threads that compute what constraints allow next, so that the engine's thread never does.
//!
//! There are two queues, each with threads of its own. Sequences that are new or whose last mask came late use the second: however long
//! their masks take, those of others are computed, and its threads leave the processors to those of the model.

use crate::background::{BusyThreads, lower_priority};
use crate::scheduler::{MaskDone, MaskJob};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Stack of each thread; grammars recurse.
const STACK_BYTES: usize = 64 << 20;

/// What is done with a mask that is computed; `None` after a panic.
pub(crate) type Reply = Box<dyn FnOnce(Option<MaskDone>, Duration) + Send>;

/// The queues, without threads yet.
pub(crate) struct MaskQueues {
    quick: Queue,
    slow: Queue,
}

/// The threads. Dropping it ends them after what they are at.
pub(crate) struct MaskPool {
    queues: Arc<MaskQueues>,
}

struct Queue {
    waiting: Mutex<Waiting>,
    ready: Condvar,
    threads: BusyThreads,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<(MaskJob, Reply)>,
    closed: bool,
}

impl MaskQueues {
    /// For so many threads each.
    pub(crate) fn new(n_threads: usize) -> Self {
        Self { quick: Queue::new(n_threads), slow: Queue::new(n_threads) }
    }

    /// How long all threads of a queue have been at one mask each, if they are.
    pub(crate) fn all_busy(&self) -> Option<Duration> {
        self.quick.threads.all_busy().max(self.slow.threads.all_busy())
    }
}

impl MaskPool {
    /// Starts the threads of the queues.
    pub(crate) fn new(queues: Arc<MaskQueues>) -> Self {
        for thread in 0..queues.quick.threads.count() {
            let its = queues.clone();
            spawn(format!("mask {thread}"), move || its.quick.run(thread));
        }
        for thread in 0..queues.slow.threads.count() {
            let its = queues.clone();
            spawn(format!("slow mask {thread}"), move || {
                lower_priority();
                its.slow.run(thread);
            });
        }
        Self { queues }
    }

    /// Has a job done.
    pub(crate) fn submit(&self, job: MaskJob, slow: bool, reply: Reply) {
        let queue = if slow { &self.queues.slow } else { &self.queues.quick };
        queue.lock().jobs.push_back((job, reply));
        queue.ready.notify_one();
    }
}

impl Drop for MaskPool {
    fn drop(&mut self) {
        for queue in [&self.queues.quick, &self.queues.slow] {
            queue.lock().closed = true;
            queue.ready.notify_all();
        }
    }
}

fn spawn(name: String, run: impl FnOnce() + Send + 'static) {
    let builder = std::thread::Builder::new().name(name).stack_size(STACK_BYTES);
    builder.spawn(run).expect("the system can start one more thread");
}

impl Queue {
    fn new(n_threads: usize) -> Self {
        Self { waiting: Mutex::default(), ready: Condvar::new(), threads: BusyThreads::new(n_threads) }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // No code that can panic runs under the lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does jobs until the pool is dropped.
    fn run(&self, thread: usize) {
        while let Some((job, reply)) = self.next() {
            let begin = Instant::now();
            let job = AssertUnwindSafe(|| job.run());
            let done = self.threads.run(thread, || catch_unwind(job).ok());
            reply(done, begin.elapsed());
        }
    }

    /// The next job; `None` at the end.
    fn next(&self) -> Option<(MaskJob, Reply)> {
        let mut waiting = self.lock();
        loop {
            if waiting.closed {
                return None;
            }
            if let Some(next) = waiting.jobs.pop_front() {
                return Some(next);
            }
            waiting = self.ready.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
