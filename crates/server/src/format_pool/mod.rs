//! Threads that compile formats and do nothing else, with a bounded queue before them and a cache of what they made.
//!
//! Their stacks are large, since the compiler recurses along its input, and they share nothing with the threads that answer requests and
//! leave the processors to those of the model: formats that take long delay other new formats only. A request waits for its format
//! without holding a thread.

mod cache;

use cache::{Cache, Outcome};
use realizar_engine::background::{BusyThreads, lower_priority};
use realizar_structured::{COMPILER_STACK_BYTES, Compiled, Deadline, GrammarError};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Formats that wait for a thread.
const MAX_QUEUE: usize = 32;
/// Compiled formats that are kept, in bytes.
const CACHE_BYTES: usize = 64 << 20;

/// Why there is no compiled format.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The format is wrong, or beyond a bound.
    Format(GrammarError),
    /// Too many formats wait to be compiled.
    Busy,
}

/// What is asked of the pool's threads.
struct Job {
    key: String,
    work: Box<dyn FnOnce(Deadline) -> Result<Compiled, GrammarError> + Send>,
    started: oneshot::Sender<()>,
    reply: oneshot::Sender<Outcome>,
}

struct Shared {
    limit: Duration,
    queue: Mutex<Queue>,
    ready: Condvar,
    cache: Mutex<Cache>,
    threads: BusyThreads,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

/// The threads, the queue and the cache. Dropping it ends the threads.
pub(crate) struct FormatPool {
    shared: Arc<Shared>,
}

impl FormatPool {
    /// Starts `n_threads` threads. `limit`: how long one format may take.
    ///
    /// Errors: the system gives no threads.
    pub(crate) fn new(n_threads: usize, limit: Duration) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            limit,
            queue: Mutex::default(),
            ready: Condvar::new(),
            cache: Mutex::new(Cache::new(CACHE_BYTES)),
            threads: BusyThreads::new(n_threads),
        });
        let pool = Self { shared: shared.clone() };
        for thread in 0..n_threads {
            let shared = shared.clone();
            let builder = std::thread::Builder::new().name(format!("format {thread}"));
            builder.stack_size(COMPILER_STACK_BYTES).spawn(move || shared.run(thread))?;
        }
        Ok(pool)
    }

    /// What `work` compiles, or compiled before under the same `key`.
    ///
    /// Errors: what `work` says; [`GrammarError::TooSlow`] when the time is over, whether or not the thread is done;
    /// [`Refused::Busy`] if it did not begin within that time.
    pub(crate) async fn compile(
        &self,
        key: String,
        work: impl FnOnce(Deadline) -> Result<Compiled, GrammarError> + Send + 'static,
    ) -> Result<Arc<Mutex<Compiled>>, Refused> {
        let shared = &self.shared;
        if let Some(outcome) = lock(&shared.cache).get(&key) {
            return outcome.map_err(Refused::Format);
        }
        let ((started, starts), (reply, done)) = (oneshot::channel(), oneshot::channel());
        {
            let mut queue = lock(&shared.queue);
            // Whoever went away needs no answer.
            queue.jobs.retain(|job| !job.reply.is_closed());
            if queue.jobs.len() >= MAX_QUEUE {
                return Err(Refused::Busy);
            }
            queue.jobs.push_back(Job { key: key.clone(), work: Box::new(work), started, reply });
        }
        shared.ready.notify_one();
        if !matches!(tokio::time::timeout(shared.limit, starts).await, Ok(Ok(()))) {
            return Err(Refused::Busy);
        }
        let outcome = match tokio::time::timeout(shared.limit, done).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => return Err(Refused::Busy),
            Err(_) => {
                let refusal: Outcome = Err(GrammarError::TooSlow { limit: shared.limit });
                lock(&shared.cache).insert(&key, refusal.clone(), 0);
                refusal
            }
        };
        outcome.map_err(Refused::Format)
    }

    /// How long all threads have been at one format each, if they are.
    pub(crate) fn busy(&self) -> Option<Duration> {
        self.shared.threads.all_busy()
    }
}

impl Drop for FormatPool {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.ready.notify_all();
    }
}

impl Shared {
    fn run(&self, thread: usize) {
        lower_priority();
        while let Some(job) = self.next() {
            if job.started.send(()).is_err() {
                continue;
            }
            let outcome = self.threads.run(thread, || self.compile(&job.key, job.work));
            // Nobody waits any more where the time was over.
            let _ = job.reply.send(outcome);
        }
    }

    fn compile(
        &self,
        key: &str,
        work: Box<dyn FnOnce(Deadline) -> Result<Compiled, GrammarError> + Send>,
    ) -> Outcome {
        let deadline = Deadline::after(self.limit);
        let compiled = catch_unwind(AssertUnwindSafe(|| work(deadline))).unwrap_or_else(|_| {
            tracing::error!(n_bytes = key.len(), "the compiler of a format panicked");
            Err(GrammarError::Grammar { reason: "the compiler failed at it".to_owned() })
        });
        let n_bytes = compiled.as_ref().map_or(0, Compiled::n_bytes);
        let outcome = compiled.map(|compiled| Arc::new(Mutex::new(compiled)));
        lock(&self.cache).insert(key, outcome.clone(), n_bytes);
        outcome
    }

    /// The next job; `None` at the end.
    fn next(&self) -> Option<Job> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.closed {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            queue = self.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// No code that can panic runs under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
