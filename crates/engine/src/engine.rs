//! The thread that owns a runner and its scheduler, and the handle to talk to it.

use crate::cache_events::CacheEvent;
use crate::mask_pool::{MaskPool, MaskQueues};
use crate::pulse::{Pulse, Stuck, StuckPart};
use crate::request::{Event, FinishReason, Request};
use crate::runner::{Runner, RunnerInfo, Step, Ticket};
use crate::scheduler::{MaskDone, Scheduler};
use crate::sequence::SeqId;
use crate::speculative::{self, DraftLayer, Proposer, SpeculationCosts};
use crate::stats::Stats;
use crate::stream::{Producer, Stream, Wish, channel};
use crate::{EngineConfig, Error, Result, SavedCache};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel as inbox};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Where sequences without constraints could run, a step waits for masks for this share of what recent steps took, or for the least wait: so
/// that they notice little of it.
const MASK_SHARE: u32 = 8;
const LEAST_MASK_WAIT: Duration = Duration::from_micros(50);
/// Of how many steps the mean of their times is, about.
const RECENT_STEPS: u32 = 8;

/// How often a shutdown looks whether the engine is stuck.
const STUCK_EVERY: Duration = Duration::from_millis(100);

/// The engine's thread; see [`Engine::start`].
pub struct Engine {
    runner: Box<dyn Runner>,
    scheduler: Scheduler,
    overlap: bool,
    stall_timeout: Duration,
    mask_patience: Duration,
    /// Started for the first request with a constraint.
    masks: Option<MaskPool>,
    /// Sequences whose masks the next step waits for.
    awaited: HashSet<SeqId>,
    /// What a sequence's last mask took; [`Duration::MAX`] where a step has waited for it in vain.
    mask_times: HashMap<SeqId, Duration>,
    /// What recent steps took, in the mean.
    step_time: Duration,
    shared: Arc<Shared>,
    inbox: Receiver<Command>,
    requests: HashMap<u64, Active>,
    n_paused: usize,
    /// What the device said when it was found to be lost.
    lost: Option<String>,
    /// When to give up on requests that still run; set by a shutdown.
    drain_until: Option<Instant>,
    saved_cache: Option<SavedCache>,
    proposer: Option<Box<dyn Proposer>>,
    step: Step,
    events: Vec<(SeqId, Event)>,
    /// Whoever wants to know what is in the prefix cache.
    cache_sink: Option<CacheSink>,
    /// How many waiting sequences were published last.
    counted_waiting: u64,
    last_finish: Duration,
}

/// A handle to an engine. Cloned freely; the engine stops when the last one and all streams are gone.
#[derive(Clone)]
pub struct Client {
    inbox: Sender<Command>,
    shared: Arc<Shared>,
    config: Arc<EngineConfig>,
}

/// Whether an engine takes requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Ready,
    /// It finishes what it has and takes no more.
    Draining,
    /// It has stopped as asked.
    Stopped,
    /// It has died.
    Failed {
        /// Its last words.
        message: String,
    },
}

/// What the engine's thread is told.
pub(crate) enum Command {
    Submit(Box<Submission>),
    Wish { number: u64, wish: Wish },
    Mask { id: SeqId, done: Option<MaskDone>, taken: Duration },
    Shutdown { deadline: Instant },
    RecordCache { sink: CacheSink },
}

/// Takes what changed in the prefix cache in a step.
type CacheSink = Box<dyn FnMut(Vec<CacheEvent>) + Send>;

pub(crate) struct Submission {
    number: u64,
    request: Request,
    arrival: Duration,
    seed: u64,
    producer: Producer,
    /// For the masks of its constraint, if it has one.
    inbox: Option<Sender<Command>>,
}

struct Shared {
    info: RunnerInfo,
    stats: Stats,
    health: Mutex<Health>,
    health_changed: Condvar,
    start: Instant,
    pulse: Pulse,
    mask_queues: Arc<MaskQueues>,
    next_number: AtomicU64,
    /// Sequences that wait, those that the thread has not yet received included.
    queued: AtomicU64,
    /// Between two finished requests of late, on average.
    finish_interval_us: AtomicU64,
    /// The system's entropy, for requests without a seed.
    entropy: RandomState,
}

/// A request that has not ended.
struct Active {
    producer: Producer,
    arrival: Duration,
    paused: Option<Pause>,
    inbox: Option<Sender<Command>>,
    /// Per choice: when its last token came.
    last_tokens: Vec<Option<Duration>>,
}

/// A reader that is behind.
#[derive(Clone, Copy)]
struct Pause {
    /// When it was last seen to read, or fell behind.
    since: Duration,
    n_read: u64,
}

/// A step that the device computes.
struct InFlight {
    ticket: Ticket,
    scheduled: Duration,
    n_tokens: usize,
}

impl Engine {
    /// Puts a runner on a thread of its own.
    pub fn start(runner: Box<dyn Runner>, config: EngineConfig) -> Client {
        Self::start_with(runner, None, None, config)
    }

    /// Puts a runner on a thread of its own, together with somebody who guesses how texts go on, if anybody, so that steps can yield
    /// more than one token; see [`crate::speculative`]. A model with a layer that drafts is its own proposer where there is no other.
    ///
    /// Errors: the device failed while it was measured what guesses cost.
    pub fn start_speculating(
        mut runner: Box<dyn Runner>,
        proposer: Option<Box<dyn Proposer>>,
        config: EngineConfig,
    ) -> Result<Client> {
        let was_asked_for = proposer.is_some();
        let own = || runner.info().drafts.then(|| Box::<DraftLayer>::default() as Box<dyn Proposer>);
        let Some(mut proposer) = proposer.or_else(own) else { return Ok(Self::start(runner, config)) };
        let costs = match config.speculation_costs {
            Some(costs) => costs,
            None => speculative::measure_costs(&mut *runner, &mut *proposer)?.1,
        };
        tracing::info!(row = costs.row, guess = costs.guess, "speculation, in steps of one token");
        if was_asked_for && costs.row + costs.guess >= 1.0 {
            tracing::warn!(
                row = costs.row,
                guess = costs.guess,
                "guesses cost more steps than they can save, so none are made"
            );
        }
        Ok(Self::start_with(runner, Some(proposer), Some(costs), config))
    }

    fn start_with(
        mut runner: Box<dyn Runner>,
        proposer: Option<Box<dyn Proposer>>,
        costs: Option<SpeculationCosts>,
        config: EngineConfig,
    ) -> Client {
        let info = runner.info();
        let shared = Arc::new(Shared {
            info,
            stats: Stats::default(),
            health: Mutex::new(Health::Ready),
            health_changed: Condvar::new(),
            start: Instant::now(),
            pulse: Pulse::new(config.longest_step),
            mask_queues: Arc::new(MaskQueues::new(mask_threads())),
            next_number: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            finish_interval_us: AtomicU64::new(0),
            entropy: RandomState::new(),
        });
        let (sender, receiver) = inbox();
        let mut scheduler = Scheduler::new(&config, info);
        scheduler.set_speculation(costs);
        let saved_cache = config.saved_cache.clone().filter(|_| config.prefix_cache);
        if let Some(saved) = &saved_cache {
            saved.load(&mut *runner, scheduler.store_mut());
        }
        let engine = Engine {
            runner,
            proposer,
            scheduler,
            overlap: config.overlap.unwrap_or(info.asynchronous),
            stall_timeout: config.stall_timeout,
            mask_patience: config.mask_patience,
            masks: None,
            awaited: HashSet::new(),
            mask_times: HashMap::new(),
            step_time: Duration::ZERO,
            shared: shared.clone(),
            inbox: receiver,
            requests: HashMap::new(),
            n_paused: 0,
            lost: None,
            drain_until: None,
            saved_cache,
            step: Step::default(),
            events: Vec::new(),
            cache_sink: None,
            counted_waiting: 0,
            last_finish: Duration::ZERO,
        };
        tracing::info!(?config, ?info, overlap = engine.overlap, "engine starts");
        std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || engine.main())
            .expect("the system can start one more thread");
        Client { inbox: sender, shared, config: Arc::new(config) }
    }

    fn main(mut self) {
        let run = AssertUnwindSafe(|| {
            self.run();
            self.save_cache();
        });
        match catch_unwind(run) {
            Ok(()) => match self.lost.take() {
                None => {
                    self.answer_all(&Error::ShuttingDown);
                    // Whoever waits for the end may then end the process, and the device must have been given back by then.
                    let shared = self.shared.clone();
                    drop(self);
                    shared.set_health(Health::Stopped);
                }
                Some(message) => self.fail(message),
            },
            Err(panic) => self.fail(panic_message(panic.as_ref())),
        }
    }

    /// Keeps the prefix cache for the next process, if that is wanted and the device is still there.
    fn save_cache(&mut self) {
        if let (Some(saved), None) = (&self.saved_cache, &self.lost) {
            // Nobody waits for a step meanwhile.
            self.shared.pulse.idle();
            saved.save(&mut *self.runner, self.scheduler.store_mut());
        }
    }

    /// Ends because nothing can be computed any more.
    fn fail(&mut self, message: String) {
        tracing::error!(message, "engine failed");
        self.shared.set_health(Health::Failed { message: message.clone() });
        self.answer_all(&Error::EngineFailed { message });
    }

    /// Answers whoever still waits.
    fn answer_all(&mut self, error: &Error) {
        for active in self.requests.values_mut() {
            active.producer.push(Event::Error(error.clone()));
            self.shared.stats.finished_error.add(1);
        }
        self.requests.clear();
        while let Ok(command) = self.inbox.try_recv() {
            if let Command::Submit(mut submission) = command {
                submission.producer.push(Event::Error(error.clone()));
                self.shared.stats.finished_error.add(1);
            }
        }
        let stats = &self.shared.stats;
        [&stats.running, &stats.waiting, &stats.paused].iter().for_each(|gauge| gauge.set(0));
    }

    /// Steps until nobody can ask for more.
    fn run(&mut self) {
        let mut in_flight: Option<InFlight> = None;
        let mut idle = true;
        while self.take_commands(idle) {
            if !self.overlap || self.scheduler.needs_commit() {
                in_flight.take().into_iter().for_each(|t| self.finish(t));
            }
            self.await_masks();
            let scheduled = self.shared.now();
            let (launched, worked) = self.launch();
            let finished = in_flight.take();
            idle = !worked && finished.is_none();
            finished.into_iter().for_each(|t| self.finish(t));
            let n_tokens = self.step.batch.tokens.len();
            in_flight = launched.map(|ticket| InFlight { ticket, scheduled, n_tokens });
            self.end_stalled();
            self.publish();
            if self.lost.is_some() || self.drained() && in_flight.is_none() {
                break;
            }
        }
        // Whoever is left is told by the caller; the device finishes what it has begun.
        in_flight.into_iter().for_each(|t| drop(self.runner.finish(t.ticket)));
    }

    /// Takes what is in the inbox, waiting for something if the engine is idle. Returns false when nothing more can come, or the
    /// time to drain is over.
    fn take_commands(&mut self, idle: bool) -> bool {
        if self.drain_until.is_some_and(|t| Instant::now() >= t) {
            return false;
        }
        if idle {
            let deadline = self.next_deadline();
            self.shared.pulse.idle();
            let received = match deadline {
                None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(left) => self.inbox.recv_timeout(left),
            };
            self.shared.pulse.host();
            match received {
                Ok(command) => self.take(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        loop {
            match self.inbox.try_recv() {
                Ok(command) => self.take(command),
                Err(TryRecvError::Empty) => return true,
                // With work left, its streams are gone, so its cancellations have come before this.
                Err(TryRecvError::Disconnected) => return !self.requests.is_empty(),
            }
        }
    }

    /// How long an idle engine may sleep.
    fn next_deadline(&self) -> Option<Duration> {
        let drain = self.drain_until.map(|t| t.saturating_duration_since(Instant::now()));
        let paused = self.requests.values().filter(|_| self.n_paused > 0).filter_map(|a| a.paused);
        let since = paused.map(|pause| pause.since).min();
        let stall = since.map(|t| (t + self.stall_timeout).saturating_sub(self.shared.now()));
        drain.into_iter().chain(stall).min()
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => self.submit(*submission),
            Command::Wish { number, wish: Wish::Cancel(choice) } => {
                let n = self.requests.get(&number).map_or(0, |a| a.last_tokens.len() as u32);
                let now = self.shared.now();
                for c in choice.map_or(0..n, |c| c..c + 1) {
                    let id = SeqId { request: number, choice: c };
                    let event = self.scheduler.cancel(id, now);
                    self.events.extend(event.map(|e| (id, e)));
                }
                self.deliver();
            }
            Command::Wish { number, wish: Wish::Resume } => self.set_paused(number, false),
            Command::Mask { id, done, taken } => self.take_mask(id, done, taken),
            Command::Shutdown { deadline } => {
                self.drain_until = Some(self.drain_until.map_or(deadline, |d| d.min(deadline)));
            }
            Command::RecordCache { sink } => {
                self.scheduler.record_cache();
                self.cache_sink = Some(sink);
            }
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { number, request, arrival, seed, producer, inbox } = submission;
        let n = request.n;
        self.shared.stats.requests.add(1);
        let last_tokens = vec![None; n as usize];
        self.requests.insert(number, Active { producer, arrival, paused: None, inbox, last_tokens });
        tracing::debug!(number, n_prompt = request.prompt.len(), max_tokens = request.max_tokens, "request");
        if let Err(error) = self.scheduler.add(number, request, arrival, seed, &mut self.events) {
            self.events.push((SeqId { request: number, choice: 0 }, Event::Error(error)));
        }
        self.count_waiting(u64::from(n));
        self.deliver();
    }

    /// Publishes how many sequences wait, of which `n_received` came from the inbox just now. The queue changes at once, so that nobody
    /// finds a sequence in it twice.
    fn count_waiting(&mut self, n_received: u64) {
        let n_waiting = self.scheduler.n_waiting() as u64;
        let change = n_waiting.wrapping_sub(self.counted_waiting).wrapping_sub(n_received);
        self.shared.queued.fetch_add(change, Relaxed);
        self.shared.stats.waiting.set(n_waiting);
        self.counted_waiting = n_waiting;
    }

    /// Has guesses made for the next step.
    fn propose(&mut self) {
        let Some(proposer) = &mut self.proposer else { return };
        let wanted = self.scheduler.drafts_wanted();
        if wanted.is_empty() {
            return;
        }
        self.shared.pulse.device(0);
        let proposed = proposer.propose(&mut *self.runner, &wanted);
        self.shared.pulse.host();
        match proposed {
            Ok(drafts) => {
                let ids: Vec<SeqId> = wanted.iter().map(|w| w.id).collect();
                self.scheduler.offer_drafts(ids.into_iter().zip(drafts));
            }
            Err(error) => {
                // Guesses are a help, not a need: nobody's request fails with them.
                tracing::error!(%error, "speculation is off: no guesses can be made");
                self.proposer = None;
                self.scheduler.set_speculation(None);
            }
        }
    }

    /// Begins the next step. Returns its ticket, and whether there was a step to compute.
    fn launch(&mut self) -> (Option<Ticket>, bool) {
        self.propose();
        if !self.scheduler.schedule(self.shared.now(), &mut self.step) {
            return (None, false);
        }
        self.shared.pulse.device(self.step.batch.tokens.len());
        let copies = match self.step.copies.is_empty() {
            true => Ok(()),
            false => self.runner.copy_blocks(&self.step.copies),
        };
        let launched = copies.and_then(|()| self.runner.launch(&self.step));
        self.shared.pulse.host();
        match launched {
            Ok(ticket) => (Some(ticket), true),
            Err(error) => {
                self.step_failed(&error);
                self.scheduler.fail_newest(&error, &mut self.events);
                self.deliver();
                (None, true)
            }
        }
    }

    /// Waits for the oldest step in flight and delivers what it brings.
    fn finish(&mut self, step: InFlight) {
        let InFlight { ticket, scheduled, n_tokens } = step;
        self.shared.pulse.device(n_tokens);
        let finished = self.runner.finish(ticket);
        self.shared.pulse.host();
        match finished {
            Ok(sampled) => {
                let now = self.shared.now();
                let taken = now.saturating_sub(scheduled);
                self.step_time = (self.step_time * (RECENT_STEPS - 1) + taken) / RECENT_STEPS;
                self.shared.stats.step_time.record(taken);
                self.scheduler.commit(sampled, now, &mut self.events);
            }
            Err(error) => {
                self.step_failed(&error);
                self.scheduler.fail_oldest(&error, &mut self.events);
            }
        }
        self.deliver();
        self.request_masks();
    }

    /// Has the masks computed that the last commit asked for.
    fn request_masks(&mut self) {
        for job in self.scheduler.take_mask_jobs() {
            let id = job.id();
            let Some(inbox) = self.requests.get(&id.request).and_then(|active| active.inbox.clone()) else {
                continue;
            };
            // A new sequence is waited for, but it has not shown yet that it leaves threads to others.
            let last = self.mask_times.get(&id).copied();
            if last.is_none_or(|taken| taken <= self.mask_wait()) {
                self.awaited.insert(id);
            }
            let masks = self.masks.get_or_insert_with(|| MaskPool::new(self.shared.mask_queues.clone()));
            let reply = Box::new(move |done, taken| {
                // An engine that has ended needs no masks.
                let _ = inbox.send(Command::Mask { id, done, taken });
            });
            masks.submit(job, last.is_none_or(|taken| taken > self.mask_patience), reply);
        }
    }

    /// How long the next step waits for masks.
    fn mask_wait(&self) -> Duration {
        match self.scheduler.has_unconstrained() {
            true => (self.step_time / MASK_SHARE).max(LEAST_MASK_WAIT).min(self.mask_patience),
            false => self.mask_patience,
        }
    }

    /// Waits for masks that come soon.
    fn await_masks(&mut self) {
        if self.awaited.is_empty() {
            return;
        }
        let end = Instant::now() + self.mask_wait();
        while !self.awaited.is_empty() {
            match self.inbox.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(command) => self.take(command),
                Err(_) => break,
            }
        }
        self.mask_times.extend(self.awaited.drain().map(|id| (id, Duration::MAX)));
    }

    fn take_mask(&mut self, id: SeqId, done: Option<MaskDone>, taken: Duration) {
        self.awaited.remove(&id);
        let slow = taken > self.mask_patience;
        if self.requests.contains_key(&id.request) {
            self.mask_times.insert(id, taken);
        }
        match done {
            Some(done) => self.events.extend(self.scheduler.take_mask(done, slow)),
            None => {
                let message = "its computation failed".to_owned();
                self.events.push((id, Event::Error(Error::Constraint { message })));
            }
        }
        self.deliver();
    }

    /// Notes a failure and finds out whether the device is still there. After some failures, such as a lack of memory, it is.
    fn step_failed(&mut self, error: &Error) {
        tracing::error!(%error, "step failed");
        self.shared.stats.failed_steps.add(1);
        if let Err(lost) = self.runner.recover() {
            self.lost = Some(lost.to_string());
        }
    }

    /// Sends the collected events to their streams. What they are counted in is published first: whoever has an answer finds it
    /// in the statistics.
    fn deliver(&mut self) {
        self.publish();
        let now = self.shared.now();
        let mut events = std::mem::take(&mut self.events);
        for (id, event) in events.drain(..) {
            // Events of choices that ended with their request's error have no receiver.
            let Some(active) = self.requests.get_mut(&id.request) else { continue };
            active.count(&self.shared, id, &event, now);
            let is_full = active.producer.push(event);
            if active.producer.is_done() {
                self.remove(id.request, now);
            } else if is_full {
                self.set_paused(id.request, true);
            }
        }
        self.events = events;
    }

    /// Ends what is left of a request.
    fn remove(&mut self, number: u64, now: Duration) {
        self.set_paused(number, false);
        let Some(active) = self.requests.remove(&number) else { return };
        for choice in 0..active.last_tokens.len() as u32 {
            let id = SeqId { request: number, choice };
            // Whoever is left has nobody to tell.
            self.scheduler.cancel(id, now);
            self.awaited.remove(&id);
            self.mask_times.remove(&id);
        }
        let interval = now.saturating_sub(self.last_finish).as_micros() as u64;
        self.last_finish = now;
        let average = self.shared.finish_interval_us.load(Relaxed);
        self.shared.finish_interval_us.store((average * 7 + interval.min(60_000_000)) / 8, Relaxed);
    }

    fn set_paused(&mut self, number: u64, paused: bool) {
        let Some(active) = self.requests.get_mut(&number) else { return };
        if active.paused.is_some() == paused {
            return;
        }
        active.paused = paused.then(|| Pause { since: self.shared.now(), n_read: active.producer.n_read() });
        self.n_paused = if paused { self.n_paused + 1 } else { self.n_paused - 1 };
        for choice in 0..active.last_tokens.len() as u32 {
            self.scheduler.set_paused(SeqId { request: number, choice }, paused);
        }
    }

    /// Gives up on requests whose reader has taken nothing for too long; one that reads slowly has time again.
    fn end_stalled(&mut self) {
        if self.n_paused == 0 {
            return;
        }
        let now = self.shared.now();
        for (&number, active) in &mut self.requests {
            let Some(pause) = &mut active.paused else { continue };
            let n_read = active.producer.n_read();
            if n_read != pause.n_read {
                *pause = Pause { since: now, n_read };
            }
            let stalled = now.saturating_sub(pause.since);
            if stalled >= self.stall_timeout {
                let error = Error::SlowReader { stalled };
                self.events.push((SeqId { request: number, choice: 0 }, Event::Error(error)));
            }
        }
        self.deliver();
    }

    fn drained(&self) -> bool {
        self.drain_until.is_some() && self.requests.is_empty()
    }

    /// Publishes the scheduler's books and what changed in the prefix cache.
    fn publish(&mut self) {
        self.count_waiting(0);
        let (stats, counters) = (&self.shared.stats, self.scheduler.counters());
        let (in_use, idle, free) = self.scheduler.blocks();
        let (slots_in_use, slots_idle, slots_free) = self.scheduler.slots();
        for (value, n) in [
            (&stats.steps, counters.steps),
            (&stats.computed_tokens, counters.computed_tokens),
            (&stats.preemptions, counters.preemptions),
            (&stats.cache_hit_tokens, counters.cache_hit_tokens),
            (&stats.cache_miss_tokens, counters.cache_miss_tokens),
            (&stats.cache_evictions, counters.evictions),
            (&stats.snapshot_evictions, counters.snapshot_evictions),
            (&stats.drafted_tokens, counters.drafted_tokens),
            (&stats.accepted_tokens, counters.accepted_tokens),
            (&stats.running, self.scheduler.n_running() as u64),
            (&stats.paused, self.n_paused as u64),
            (&stats.blocks_in_use, in_use as u64),
            (&stats.blocks_cached, idle as u64),
            (&stats.blocks_free, free as u64),
            (&stats.slots_in_use, slots_in_use as u64),
            (&stats.slots_cached, slots_idle as u64),
            (&stats.slots_free, slots_free as u64),
        ] {
            value.set(n);
        }
        if let Some(sink) = &mut self.cache_sink {
            let events = self.scheduler.take_cache_events();
            if !events.is_empty() {
                sink(events);
            }
        }
    }
}

impl Active {
    fn count(&mut self, shared: &Shared, id: SeqId, event: &Event, now: Duration) {
        let stats = &shared.stats;
        match event {
            Event::PromptToken { .. } => {}
            Event::Token { .. } => {
                stats.generated_tokens.add(1);
                match self.last_tokens[id.choice as usize].replace(now) {
                    Some(last) => stats.inter_token_time.record(now.saturating_sub(last)),
                    None => stats.first_token_time.record(now.saturating_sub(self.arrival)),
                }
            }
            Event::Finished { reason, usage, timings, .. } => {
                match reason {
                    FinishReason::Stop { .. } => stats.finished_stop.add(1),
                    FinishReason::Length => stats.finished_length.add(1),
                    FinishReason::Cancelled => stats.finished_cancelled.add(1),
                }
                stats.prompt_tokens.add(usage.prompt_tokens as u64);
                stats.queue_time.record(timings.queue);
                stats.total_time.record(now.saturating_sub(self.arrival));
                tracing::debug!(
                    request = id.request,
                    choice = id.choice,
                    ?reason,
                    ?usage,
                    ?timings,
                    "finished"
                );
            }
            Event::Error(error) => {
                stats.finished_error.add(1);
                tracing::warn!(request = id.request, %error, "request failed");
            }
        }
    }
}

impl Shared {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_health(&self, health: Health) {
        *self.health() = health;
        self.health_changed.notify_all();
    }
}

impl Client {
    /// Hands a request to the engine. Whatever can be checked without the device is checked before this returns.
    ///
    /// Errors: what [`Request::validate`] finds; [`Error::Overloaded`] if too many wait; [`Error::ShuttingDown`] or
    /// [`Error::EngineFailed`].
    pub fn submit(&self, request: Request) -> Result<Stream> {
        request.validate(&self.shared.info)?;
        self.check_health()?;
        let n = u64::from(request.n);
        let max_queue = self.config.max_queue as u64;
        let room = |queued: u64| queued.checked_add(n).filter(|&queued| queued <= max_queue);
        if let Err(queued) = self.shared.queued.fetch_update(Relaxed, Relaxed, room) {
            self.shared.stats.overloaded.add(1);
            return Err(Error::Overloaded { queued: queued as usize, retry_after: self.retry_after(queued) });
        }
        let number = self.shared.next_number.fetch_add(1, Relaxed);
        let inbox = self.inbox.clone();
        // Without an engine there is nothing to cancel or resume, and its end was delivered as an event.
        let tell = move |wish| drop(inbox.send(Command::Wish { number, wish }));
        let (producer, stream) = channel(number, request.n, self.config.stream_capacity, Box::new(tell));
        let arrival = self.shared.now();
        let seed = self.shared.entropy.hash_one(number);
        let inbox = request.constraint.is_some().then(|| self.inbox.clone());
        let submission = Submission { number, request, arrival, seed, producer, inbox };
        // An engine that has just ended drops the submission, and its producer then answers the stream.
        match self.inbox.send(Command::Submit(Box::new(submission))) {
            Ok(()) => Ok(stream),
            Err(_) => Err(self.check_health().err().unwrap_or(Error::ShuttingDown)),
        }
    }

    /// Takes no more requests, lets the others finish for up to `timeout`, ends the rest with an error and waits for the engine to
    /// stop and to give its device back. After that time an engine that is [stuck](Self::stuck), whose step may never return, is not waited
    /// for. A second call with a shorter time shortens the first.
    pub fn shutdown(&self, timeout: Duration) {
        let mut health = self.shared.health();
        if *health == Health::Ready {
            *health = Health::Draining;
        }
        drop(health);
        let deadline = Instant::now() + timeout;
        if self.inbox.send(Command::Shutdown { deadline }).is_err() {
            return;
        }
        let mut health = self.shared.health();
        while *health == Health::Draining {
            if Instant::now() >= deadline && self.stuck().is_some() {
                return;
            }
            let changed = self.shared.health_changed.wait_timeout(health, STUCK_EVERY);
            health = changed.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Calls `sink` on the engine's thread after each step that changed the prefix cache, first with all that is there. It must not wait
    /// for anything. A second call replaces the first one's sink.
    pub fn record_cache(&self, sink: impl FnMut(Vec<CacheEvent>) + Send + 'static) {
        // The cache of an engine that has ended does not change.
        let _ = self.inbox.send(Command::RecordCache { sink: Box::new(sink) });
    }

    /// Whether the engine takes requests.
    pub fn health(&self) -> Health {
        self.shared.health().clone()
    }

    /// Whether the engine's thread, or those that compute masks, have been at one thing for longer than that can take.
    pub fn stuck(&self) -> Option<Stuck> {
        let at_masks = || self.shared.mask_queues.all_busy().filter(|busy| *busy > self.config.longest_mask);
        self.shared.pulse.stuck().or_else(|| Some(Stuck { part: StuckPart::Masks, since: at_masks()? }))
    }

    /// Counters, gauges and histograms.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// Sizes of the runner.
    pub fn info(&self) -> RunnerInfo {
        self.shared.info
    }

    /// The options the engine was started with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    fn check_health(&self) -> Result<()> {
        match &*self.shared.health() {
            Health::Ready => Ok(()),
            Health::Draining | Health::Stopped => Err(Error::ShuttingDown),
            Health::Failed { message } => Err(Error::EngineFailed { message: message.clone() }),
        }
    }

    /// When the queue is likely to have moved by a place, at the rate at which requests finished of late.
    fn retry_after(&self, queued: u64) -> Duration {
        let interval = Duration::from_micros(self.shared.finish_interval_us.load(Relaxed));
        (interval * queued.min(1 << 16) as u32 / 2).clamp(Duration::from_secs(1), Duration::from_secs(60))
    }
}

/// For each queue of masks: the cores belong to the model, of whose steps masks take a small part.
fn mask_threads() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get() / 8).clamp(2, 8)
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message").into()
}
