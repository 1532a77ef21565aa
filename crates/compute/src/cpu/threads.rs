//! A pool of worker threads: one broadcast and one barrier per operation.
//!
//! The thread that calls takes part in the work. Workers that have nothing to do spin for some tens of microseconds, which
//! covers the gaps between the operations of a forward pass, and then sleep until they are woken.
//!
//! Where memory has several nodes, each worker stays on the processors of one node, and work in chunks is cut into one share per
//! node: the threads that pack a weight later read it. A worker whose share is done helps with the others'.
//!
//! Work in chunks waits only for workers that have begun. On a machine that is busy with other things, a worker without a
//! processor costs its share of the speed and not the time until the system runs it again.

use super::topology::Topology;
use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};

/// Turns of the waiting loop before a thread goes to sleep: about 50 µs.
const SPINS: u32 = 2_000;

/// Worker threads that run one job at a time, all together.
///
/// Dropping the pool ends the threads.
pub struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    /// Held while a job runs, so that several callers take turns.
    turn: Mutex<()>,
    /// Processors of each memory node; one entry where memory is uniform.
    nodes: Vec<Vec<usize>>,
}

/// What a worker calls: its number among the workers.
type Job<'a> = dyn Fn(usize) + Sync + 'a;

struct Shared {
    /// Number of the job (counted in [`JOB`]s), [`OPEN`] while workers may begin it, and how many have begun.
    gate: AtomicUsize,
    /// Workers that have finished the current job.
    left: AtomicUsize,
    /// The current job: written by the caller before it opens the gate, read by the workers that have passed it.
    job: Mutex<Option<&'static Job<'static>>>,
    /// The first panic of a worker in the current job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    /// One flag per worker (index 0 stands for the caller): it sleeps or is about to.
    asleep: Vec<AtomicBool>,
    caller: Mutex<Option<Thread>>,
}

/// Bit of `gate`: workers may begin.
const OPEN: usize = 1 << 15;
/// Bits of `gate` below [`OPEN`]: workers that have begun.
const BEGUN: usize = OPEN - 1;
/// One job in `gate`.
const JOB: usize = 1 << 16;

/// Which workers a job must have run on when it ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    ForAll,
    ForThoseThatBegan,
}

thread_local! {
    /// Set while this thread runs a job, so that a job that starts another runs it alone instead of waiting for itself.
    static IN_JOB: Cell<bool> = const { Cell::new(false) };
    /// Set when this thread was bound to a node's processors.
    static BOUND: Cell<bool> = const { Cell::new(false) };
}

impl Pool {
    /// A pool of `n_threads` workers, the calling thread among them; 0 counts as 1.
    ///
    /// Where the system refuses a thread the pool is smaller; [`Pool::n_threads`] says how many there are.
    ///
    /// On a machine with several memory nodes the workers are bound to them, also the thread that calls [`Pool::run`], when it does.
    pub fn new(n_threads: usize) -> Self {
        let nodes = Topology::read().map(|t| t.nodes).unwrap_or_default();
        Self::over_nodes(n_threads, nodes)
    }

    /// A pool on these memory nodes, each given by its processors.
    fn over_nodes(n_threads: usize, mut nodes: Vec<Vec<usize>>) -> Self {
        let n_threads = n_threads.clamp(1, BEGUN);
        nodes.truncate(n_threads);
        if nodes.is_empty() {
            nodes.push(Vec::new());
        }
        let shared = Arc::new(Shared {
            gate: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            job: Mutex::new(None),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            asleep: (0..n_threads).map(|_| AtomicBool::new(false)).collect(),
            caller: Mutex::new(None),
        });
        let mut handles = Vec::with_capacity(n_threads - 1);
        for worker in 1..n_threads {
            let shared = Arc::clone(&shared);
            let cpus =
                if nodes.len() > 1 { nodes[node_of(worker, n_threads, nodes.len())].clone() } else { vec![] };
            let builder = std::thread::Builder::new().name(format!("compute-{worker}"));
            let life = move || {
                bind(&cpus);
                work(&shared, worker);
            };
            match builder.spawn(life) {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    tracing::warn!(wanted = n_threads, got = worker, %error, "the system gives fewer threads");
                    break;
                }
            }
        }
        tracing::info!(n_threads = handles.len() + 1, n_nodes = nodes.len(), "worker pool ready");
        Self { shared, handles, turn: Mutex::new(()), nodes }
    }

    /// Workers, the calling thread among them.
    pub fn n_threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Calls `f(worker, n_workers)` on every worker at once and returns when all are done.
    ///
    /// A call from inside a job runs `f(0, 1)` on the spot. Panics, after all workers are done, if one of them panicked.
    pub fn run(&self, f: impl Fn(usize, usize) + Sync) {
        self.broadcast(Wait::ForAll, f);
    }

    fn broadcast(&self, wait_for: Wait, f: impl Fn(usize, usize) + Sync) {
        if self.handles.is_empty() || IN_JOB.get() {
            return f(0, 1);
        }
        let _turn = lock(&self.turn);
        if self.nodes.len() > 1 && !BOUND.replace(true) {
            bind(&self.nodes[0]);
        }
        let shared = &*self.shared;
        let n_workers = self.n_threads();
        let job = |worker: usize| f(worker, n_workers);
        let job: &Job<'_> = &job;
        // SAFETY: only the lifetime is changed. The reference is taken back below, when every worker that passed the gate
        // has left and nobody can pass it any more; `f` ends after that, and nothing in between unwinds.
        let job: &'static Job<'static> = unsafe { std::mem::transmute(job) };

        *lock(&shared.caller) = Some(std::thread::current());
        *lock(&shared.job) = Some(job);
        shared.left.store(0, Ordering::Relaxed);
        // Sequentially consistent with `asleep`: either the worker sees the open gate or we see that it sleeps.
        let gate = shared.gate.load(Ordering::Relaxed);
        shared.gate.store((gate | (JOB - 1)).wrapping_add(1) | OPEN, Ordering::SeqCst);
        for (flag, handle) in shared.asleep[1..].iter().zip(&self.handles) {
            if flag.swap(false, Ordering::SeqCst) {
                handle.thread().unpark();
            }
        }

        IN_JOB.set(true);
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        IN_JOB.set(false);
        let begun = match wait_for {
            Wait::ForAll => self.handles.len(),
            Wait::ForThoseThatBegan => shared.gate.fetch_and(!OPEN, Ordering::SeqCst) & BEGUN,
        };
        wait(&shared.asleep[0], || shared.left.load(Ordering::SeqCst) == begun);
        shared.gate.fetch_and(!OPEN, Ordering::SeqCst);
        *lock(&shared.job) = None;

        let theirs = lock(&shared.panic).take();
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        if let Some(panic) = theirs {
            resume_unwind(panic);
        }
    }

    /// Cuts `0..n_items` into ranges of `chunk` items (the last may be shorter) and calls `f` once for each, on whichever
    /// worker is free. One range, or one thread, runs on the calling thread without a barrier.
    pub fn for_each_chunk(&self, n_items: usize, chunk: usize, f: impl Fn(Range<usize>) + Sync) {
        let chunk = chunk.max(1);
        self.for_each_range(n_items, chunk, |_| chunk, f);
    }

    /// Calls `f` for ranges that together are `0..n_items`, on whichever worker is free: long ones first, then ever shorter ones, so
    /// that all workers end at about the same time, though their speeds differ. Of its part of what is left, a worker takes so many
    /// quarters: three where items are alike, fewer where they are not.
    pub fn for_each_share(&self, n_items: usize, quarters: usize, f: impl Fn(Range<usize>) + Sync) {
        let workers = self.n_threads().div_ceil(self.nodes.len());
        self.for_each_range(n_items, 1, |left| (quarters * left / (4 * workers)).max(1), f);
    }

    /// Calls `f` for ranges as long as `length` says for the number of items that are left in a node's share.
    fn for_each_range(
        &self,
        n_items: usize,
        least: usize,
        length: impl Fn(usize) -> usize + Sync,
        f: impl Fn(Range<usize>) + Sync,
    ) {
        if n_items <= least || self.handles.is_empty() || IN_JOB.get() {
            let mut start = 0;
            while start < n_items {
                let end = n_items.min(start + length(n_items - start));
                f(start..end);
                start = end;
            }
            return;
        }
        let (n_workers, n_nodes) = (self.n_threads(), self.nodes.len());
        // Borders of the nodes' shares, in proportion to their workers.
        let border = |node: usize| n_items * (node * n_workers).div_ceil(n_nodes) / n_workers;
        let next: Vec<AtomicUsize> = (0..n_nodes).map(|node| AtomicUsize::new(border(node))).collect();
        self.broadcast(Wait::ForThoseThatBegan, |worker, _| {
            let own = node_of(worker, n_workers, n_nodes);
            for node in (own..n_nodes).chain(0..own) {
                let end = border(node + 1);
                let after = |start: usize| (start < end).then(|| end.min(start + length(end - start)));
                while let Ok(start) = next[node].fetch_update(Ordering::Relaxed, Ordering::Relaxed, after) {
                    f(start..end.min(start + length(end - start)));
                }
            }
        });
    }
}

/// The memory node that a worker belongs to: as many workers for each, side by side.
fn node_of(worker: usize, n_workers: usize, n_nodes: usize) -> usize {
    worker * n_nodes / n_workers
}

/// Keeps the calling thread on these processors; no processors, or a system that refuses, leaves it free.
#[cfg(target_os = "linux")]
fn bind(cpus: &[usize]) {
    use std::ffi::{c_int, c_ulong};
    // From the C library, which the standard library links anyway.
    unsafe extern "C" {
        fn sched_setaffinity(pid: c_int, size: usize, mask: *const c_ulong) -> c_int;
    }
    let Some(last) = cpus.iter().max() else { return };
    let bits = c_ulong::BITS as usize;
    let mut mask = vec![0 as c_ulong; last / bits + 1];
    for cpu in cpus {
        mask[cpu / bits] |= 1 << (cpu % bits);
    }
    // SAFETY: the mask has the size that is named; 0 stands for the calling thread.
    let status = unsafe { sched_setaffinity(0, std::mem::size_of_val(&mask[..]), mask.as_ptr()) };
    if status != 0 {
        tracing::debug!(?cpus, "the system does not let a thread be bound");
    }
}

#[cfg(not(target_os = "linux"))]
fn bind(_cpus: &[usize]) {}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.gate.fetch_add(JOB, Ordering::SeqCst);
        for handle in self.handles.drain(..) {
            handle.thread().unpark();
            // Workers catch the panics of jobs, so there is nothing in the result.
            let _ = handle.join();
        }
    }
}

/// The life of one worker thread.
fn work(shared: &Shared, worker: usize) {
    let mut seen = 0;
    IN_JOB.set(true);
    loop {
        // The gate may have moved for the end of the pool and been seen as that of a job which ended without us, so it alone does not tell.
        let is_over = || shared.stop.load(Ordering::SeqCst);
        wait(&shared.asleep[worker], || is_over() || shared.gate.load(Ordering::SeqCst) / JOB != seen);
        if is_over() {
            return;
        }
        // Passes the gate if it is open; a job that has ended without us is none of ours.
        let pass = |gate: usize| (gate & OPEN != 0).then_some(gate + 1);
        let gate = match shared.gate.fetch_update(Ordering::SeqCst, Ordering::SeqCst, pass) {
            Ok(gate) => gate,
            Err(gate) => {
                seen = gate / JOB;
                continue;
            }
        };
        seen = gate / JOB;
        let job = *lock(&shared.job);
        if let Some(job) = job
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(worker)))
        {
            lock(&shared.panic).get_or_insert(panic);
        }
        shared.left.fetch_add(1, Ordering::SeqCst);
        if shared.asleep[0].swap(false, Ordering::SeqCst) {
            let caller = lock(&shared.caller).clone();
            if let Some(caller) = caller {
                caller.unpark();
            }
        }
    }
}

/// Returns when `ready` does: spins for a while, then sleeps with `asleep` set until another thread clears it and unparks.
fn wait(asleep: &AtomicBool, ready: impl Fn() -> bool) {
    for _ in 0..SPINS {
        if ready() {
            return;
        }
        std::hint::spin_loop();
    }
    loop {
        asleep.store(true, Ordering::SeqCst);
        if ready() {
            break;
        }
        std::thread::park();
    }
    asleep.store(false, Ordering::SeqCst);
}

/// The guarded data; a poisoned lock is as good as any, since nothing panics while one is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The default number of threads: one per physical core that this process may run on, on a hybrid machine per fast
/// one, within the CPU limit of a container.
pub fn default_threads() -> usize {
    match Topology::read() {
        Some(topology) => topology.default_threads(),
        None => std::thread::available_parallelism().map_or(1, |n| n.get()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_worker_runs_once_per_job() {
        let pool = Pool::new(3);
        for _ in 0..1000 {
            let seen: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
            pool.run(|worker, n| {
                assert_eq!(n, 3);
                seen[worker].fetch_add(1, Ordering::Relaxed);
            });
            assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_pool_ends_right_after_a_job() {
        for _ in 0..3000 {
            Pool::new(3).run(|_, _| {});
        }
    }

    #[test]
    fn chunks_cover_every_item_once() {
        for n_threads in [1, 2, 5] {
            let pool = Pool::new(n_threads);
            for (n_items, chunk) in [(0, 4), (1, 4), (4, 4), (1003, 7), (10, 0)] {
                let seen: Vec<AtomicUsize> = (0..n_items).map(|_| AtomicUsize::new(0)).collect();
                pool.for_each_chunk(n_items, chunk, |range| {
                    for i in range {
                        seen[i].fetch_add(1, Ordering::Relaxed);
                    }
                });
                assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1), "{n_threads} {n_items} {chunk}");
            }
        }
    }

    #[test]
    fn shares_cover_every_item_once_and_end_short() {
        for (n_threads, n_nodes) in [(1, 1), (2, 1), (5, 3)] {
            let pool = Pool::over_nodes(n_threads, vec![vec![0]; n_nodes]);
            for n_items in [0, 1, 7, 1003] {
                let seen: Vec<AtomicUsize> = (0..n_items).map(|_| AtomicUsize::new(0)).collect();
                let last = AtomicUsize::new(0);
                pool.for_each_share(n_items, 3, |range| {
                    if range.end == n_items {
                        last.store(range.len(), Ordering::Relaxed);
                    }
                    for i in range {
                        seen[i].fetch_add(1, Ordering::Relaxed);
                    }
                });
                assert!(
                    seen.iter().all(|s| s.load(Ordering::Relaxed) == 1),
                    "{n_threads} {n_nodes} {n_items}"
                );
                assert_eq!(last.into_inner(), n_items.min(1));
            }
        }
    }

    #[test]
    fn sleeping_workers_wake_up() {
        let pool = Pool::new(2);
        let count = AtomicUsize::new(0);
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(5));
            pool.run(|_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        // The caller sleeps too when a worker takes long.
        pool.run(|worker, _| {
            if worker == 1 {
                std::thread::sleep(Duration::from_millis(5));
            }
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 12);
    }

    #[test]
    fn a_panic_of_any_worker_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        for bad in 0..2 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|worker, _| assert!(worker != bad, "worker {worker} broke"));
            }));
            let message = *result.unwrap_err().downcast::<String>().unwrap();
            assert!(message.contains(&format!("worker {bad} broke")));
            let count = AtomicUsize::new(0);
            pool.run(|_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 2);
        }
    }

    #[test]
    fn a_job_inside_a_job_runs_alone() {
        let pool = Pool::new(2);
        let count = AtomicUsize::new(0);
        pool.run(|_, _| {
            pool.for_each_chunk(10, 3, |range| {
                count.fetch_add(range.len(), Ordering::Relaxed);
            });
        });
        assert_eq!(count.into_inner(), 20);
    }

    #[test]
    fn several_callers_take_turns() {
        let pool = Pool::new(2);
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(|_, _| {
                            count.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 1600);
    }

    #[test]
    fn the_default_is_at_least_one_and_no_more_than_the_system_gives() {
        let most = std::thread::available_parallelism().map_or(1, |n| n.get());
        assert!((1..=most.max(1)).contains(&default_threads()));
    }

    #[test]
    fn each_node_begins_with_its_own_share_and_helps_with_the_rest() {
        for (n_threads, n_nodes) in [(2, 2), (3, 2), (5, 3)] {
            let pool = Pool::over_nodes(n_threads, vec![vec![0]; n_nodes]);
            let seen: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
            let firsts = Mutex::new(std::collections::BTreeMap::new());
            pool.for_each_chunk(seen.len(), 3, |range| {
                let id = std::thread::current().id();
                lock(&firsts).entry(format!("{id:?}")).or_insert(range.start);
                for i in range {
                    seen[i].fetch_add(1, Ordering::Relaxed);
                    // Time for the others to begin.
                    std::thread::sleep(Duration::from_micros(20));
                }
            });
            assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1), "{n_threads} {n_nodes}");
            let firsts: Vec<usize> = lock(&firsts).values().copied().collect();
            // Whoever took part began inside some node's share, the caller in that of the first.
            let share = |first: &usize| {
                (0..n_nodes)
                    .filter(|n| 1000 * (n * n_threads).div_ceil(n_nodes) / n_threads <= *first)
                    .count()
            };
            assert!(firsts.iter().any(|first| share(first) == 1));
            if firsts.len() == n_threads {
                assert!((1..=n_nodes).all(|n| firsts.iter().any(|first| share(first) == n)), "{firsts:?}");
            }
        }
    }
}
