//! Which models are loaded, who uses them, and how they come and go.
//!
//! A slot per model goes from `Unloaded` over `Loading` to `Loaded`, and over `Unloading` back. A request holds a [`Use`] of its slot;
//! only models without one are unloaded. Each loading has a thread, and one of them goes on at a time, so that memory is planned for one
//! model after the other: it unloads what was used least recently until the model has room, or waits until something is idle. A model
//! that shall go and is busy takes no further requests, or a steady stream of them would keep it for ever.

use super::{KeepAlive, LoadError, ModelEntry, ModelLimits, ModelLoader, Resident};
use crate::error::{ApiError, Result};
use realizar_engine::Error as EngineError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How often the thread that unloads idle models looks whether the server is still there.
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct Table {
    /// In the order in which they are listed; the first is the default.
    pub(super) entries: Vec<ModelEntry>,
    loader: Option<Arc<dyn ModelLoader>>,
    limits: ModelLimits,
    state: Mutex<State>,
    /// For threads that wait for a change of the state.
    changed: Condvar,
    /// For tasks that do.
    changes: watch::Sender<()>,
    /// Held while a model is loaded.
    loading: Mutex<()>,
}

struct State {
    /// One per entry.
    slots: Vec<Slot>,
    /// The server is about to stop.
    is_closed: bool,
}

struct Slot {
    stage: Stage,
    /// Requests that use the model, or wait while it is loaded.
    n_uses: usize,
    last_used: Instant,
    keep_alive: KeepAlive,
    /// It shall make room, and takes no further requests.
    is_leaving: bool,
}

enum Stage {
    Unloaded,
    Loading(watch::Receiver<Outcome>),
    Loaded(Resident),
    Unloading,
}

/// How a loading ended; `None` before.
type Outcome = Option<std::result::Result<(), LoadError>>;

/// How a model is.
#[derive(Clone)]
pub(crate) enum Status {
    Unloaded,
    Loading,
    /// With the time until it is unloaded, if it is not used; `None`: it is not.
    Loaded(Resident, Option<Duration>),
}

/// Keeps a model that a request uses.
pub(crate) struct Use {
    table: Arc<Table>,
    index: usize,
}

impl Use {
    fn new(table: &Arc<Table>, index: usize, state: &mut State) -> Self {
        state.slots[index].n_uses += 1;
        Self { table: table.clone(), index }
    }

    /// Says how long the model stays after this request.
    pub(super) fn keep_alive(&self, keep_alive: KeepAlive) {
        self.table.lock().slots[self.index].keep_alive = keep_alive;
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut state = self.table.lock();
        let slot = &mut state.slots[self.index];
        slot.n_uses -= 1;
        slot.last_used = Instant::now();
        if slot.n_uses == 0 {
            self.table.notify();
        }
    }
}

impl Slot {
    fn new(stage: Stage, keep_alive: KeepAlive) -> Self {
        Self { stage, n_uses: 0, last_used: Instant::now(), keep_alive, is_leaving: false }
    }

    fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Loaded(_)) && self.n_uses == 0
    }

    /// Until it is unloaded for want of requests.
    fn remaining(&self, now: Instant) -> Option<Duration> {
        let keep_alive = self.keep_alive.0?;
        let idle =
            if self.n_uses == 0 { now.saturating_duration_since(self.last_used) } else { Duration::ZERO };
        Some(keep_alive.saturating_sub(idle))
    }
}

impl Table {
    /// A model that stays loaded.
    pub(super) fn of_one(entry: ModelEntry, model: Resident) -> Arc<Self> {
        let slot = Slot::new(Stage::Loaded(model), KeepAlive(None));
        Arc::new(Self::new(vec![entry], None, ModelLimits::default(), vec![slot]))
    }

    /// Models that are loaded when somebody asks for them.
    ///
    /// Errors: the system gives no thread.
    pub(super) fn of_many(
        entries: Vec<ModelEntry>,
        loader: Arc<dyn ModelLoader>,
        limits: ModelLimits,
    ) -> std::io::Result<Arc<Self>> {
        let slot =
            |entry: &ModelEntry| Slot::new(Stage::Unloaded, entry.keep_alive.unwrap_or(limits.keep_alive));
        let slots = entries.iter().map(slot).collect();
        let table = Arc::new(Self::new(entries, Some(loader), limits, slots));
        let weak = Arc::downgrade(&table);
        std::thread::Builder::new().name("keep-alive".into()).spawn(move || unload_idle(&weak))?;
        Ok(table)
    }

    fn new(
        entries: Vec<ModelEntry>,
        loader: Option<Arc<dyn ModelLoader>>,
        limits: ModelLimits,
        slots: Vec<Slot>,
    ) -> Self {
        Self {
            entries,
            loader,
            limits,
            state: Mutex::new(State { slots, is_closed: false }),
            changed: Condvar::new(),
            changes: watch::Sender::new(()),
            loading: Mutex::new(()),
        }
    }

    /// Whether models come and go.
    pub(super) fn can_load(&self) -> bool {
        self.loader.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        self.changed.notify_all();
        self.changes.send_replace(());
    }

    /// The model of an entry, which is loaded if it is not.
    ///
    /// Errors: it cannot be loaded; the server is about to stop.
    pub(super) async fn acquire(self: &Arc<Self>, index: usize) -> Result<(Resident, Use)> {
        let mut waits = None;
        loop {
            let mut changes = self.changes.subscribe();
            let outcome = {
                let mut state = self.lock();
                let slot = &state.slots[index];
                let outcome = match &slot.stage {
                    // Whoever waited for the model gets it before it goes.
                    Stage::Loaded(model) if waits.is_some() || !slot.is_leaving => {
                        let model = model.clone();
                        return Ok((model, waits.unwrap_or_else(|| Use::new(self, index, &mut state))));
                    }
                    _ if state.is_closed => return Err(EngineError::ShuttingDown.into()),
                    Stage::Unloaded => Some(self.begin_loading(index, &mut state)?),
                    Stage::Loading(outcome) => Some(outcome.clone()),
                    Stage::Loaded(_) | Stage::Unloading => None,
                };
                if outcome.is_some() && waits.is_none() {
                    waits = Some(Use::new(self, index, &mut state));
                }
                outcome
            };
            match outcome {
                // The other end lives as long as the table.
                None => drop(changes.changed().await),
                Some(mut outcome) => {
                    tokio::select! {
                        done = outcome.wait_for(Option::is_some) => {
                            if let Ok(Some(Err(error))) = done.as_deref() {
                                return Err(self.failed(index, error));
                            }
                        }
                        _ = changes.changed() => {}
                    }
                }
            }
        }
    }

    fn failed(&self, index: usize, error: &LoadError) -> ApiError {
        if *error == LoadError::ShuttingDown {
            return EngineError::ShuttingDown.into();
        }
        let name = self.entries[index].names.first().map_or("", String::as_str);
        ApiError::unavailable("model_load_failed", format!("could not load the model {name}: {error}"))
    }

    /// Loads a model on a thread of its own.
    fn begin_loading(self: &Arc<Self>, index: usize, state: &mut State) -> Result<watch::Receiver<Outcome>> {
        let (done, outcome) = watch::channel(None);
        let table = self.clone();
        let load = move || table.load(index, &done);
        std::thread::Builder::new().name("load".into()).spawn(load).map_err(|error| {
            ApiError::internal(format!("the system gives no thread to load the model: {error}"))
        })?;
        state.slots[index].stage = Stage::Loading(outcome.clone());
        Ok(outcome)
    }

    /// Loads a model on the caller's thread, if it is not loaded.
    ///
    /// Errors: it cannot be loaded.
    pub(super) fn load_now(self: &Arc<Self>, index: usize) -> std::result::Result<(), LoadError> {
        let (done, outcome) = watch::channel(None);
        let mut state = self.lock();
        if matches!(state.slots[index].stage, Stage::Unloaded) {
            state.slots[index].stage = Stage::Loading(outcome.clone());
            drop(state);
            self.load(index, &done);
        }
        let outcome = outcome.borrow().clone();
        outcome.unwrap_or(Ok(()))
    }

    fn load(&self, index: usize, done: &watch::Sender<Outcome>) {
        // Until the model counts as loaded: the next one's memory is planned beside it.
        let turn = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = self.try_to_load(index);
        let mut state = self.lock();
        let entry = &self.entries[index];
        let keep_alive = entry.keep_alive.unwrap_or(self.limits.keep_alive);
        let slot = &mut state.slots[index];
        slot.is_leaving = false;
        let outcome = match loaded {
            Ok(model) => {
                (slot.stage, slot.last_used) = (Stage::Loaded(model), Instant::now());
                slot.keep_alive = keep_alive;
                Ok(())
            }
            Err(error) => {
                tracing::warn!(model = entry.names.first(), %error, "could not load a model");
                slot.stage = Stage::Unloaded;
                Err(error)
            }
        };
        done.send_replace(Some(outcome));
        drop((state, turn));
        self.notify();
    }

    fn try_to_load(&self, index: usize) -> std::result::Result<Resident, LoadError> {
        let Some(loader) = &self.loader else {
            return Err(LoadError::Failed("this server loads no models".into()));
        };
        let names = self.entries[index].names.clone();
        let name = names.first().map_or("", String::as_str);
        loop {
            let n_others = n_resident(&self.lock());
            if n_others > 0 && self.limits.max_loaded.is_some_and(|max| n_others >= max) {
                self.make_room()?;
                continue;
            }
            tracing::info!(name, n_others, "loading a model");
            match catch_unwind(AssertUnwindSafe(|| loader.load(name, n_others == 0))) {
                Ok(Ok(loaded)) => return Ok(Resident::new(names, loaded)),
                Ok(Err(LoadError::Memory(reason))) if n_others > 0 => {
                    tracing::info!(name, reason, "a model has no room yet");
                    self.make_room()?;
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(LoadError::Failed("the loader panicked; the log says where".into())),
            }
        }
    }

    /// Unloads the idle model that was used least recently, or waits until one is idle.
    ///
    /// Errors: the server is about to stop.
    fn make_room(&self) -> std::result::Result<(), LoadError> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return Err(LoadError::ShuttingDown);
            }
            if let Some(index) = least_recent(&state, Slot::is_idle) {
                state.slots.iter_mut().for_each(|slot| slot.is_leaving = false);
                self.unload(state, index);
                return Ok(());
            }
            let is_unloading = state.slots.iter().any(|slot| matches!(slot.stage, Stage::Unloading));
            match least_recent(&state, |slot| matches!(slot.stage, Stage::Loaded(_))) {
                None if !is_unloading => return Ok(()),
                Some(index) if !is_unloading && !state.slots.iter().any(|slot| slot.is_leaving) => {
                    state.slots[index].is_leaving = true;
                }
                _ => {}
            }
            let n_before = n_resident(&state);
            state = self.wait(state);
            if n_resident(&state) < n_before {
                // Something went by itself.
                return Ok(());
            }
        }
    }

    /// Ends the engine of an idle model, and waits until its memory is free.
    fn unload(&self, mut state: MutexGuard<'_, State>, index: usize) {
        let stage = std::mem::replace(&mut state.slots[index].stage, Stage::Unloading);
        drop(state);
        if let Stage::Loaded(model) = stage {
            tracing::info!(model = model.name(), "unloading a model");
            model.shutdown(Duration::ZERO);
        }
        let mut state = self.lock();
        state.slots[index].stage = Stage::Unloaded;
        drop(state);
        self.notify();
    }

    /// Unloads a model as soon as no request uses it. Nothing happens to one that is not loaded.
    pub(super) fn unload_soon(&self, index: usize) {
        let mut state = self.lock();
        if !matches!(state.slots[index].stage, Stage::Unloaded) {
            state.slots[index].keep_alive = KeepAlive::ZERO;
        }
        drop(state);
        self.notify();
    }

    /// Takes no more requests that need a model to be loaded.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.notify();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// How the model of each entry is.
    pub(super) fn statuses(&self) -> Vec<Status> {
        let now = Instant::now();
        let status = |slot: &Slot| match &slot.stage {
            Stage::Unloaded | Stage::Unloading => Status::Unloaded,
            Stage::Loading(_) => Status::Loading,
            Stage::Loaded(model) => Status::Loaded(model.clone(), slot.remaining(now)),
        };
        self.lock().slots.iter().map(status).collect()
    }

    /// Unloads a model whose time is over, or waits for a while.
    fn unload_overdue(&self) {
        let state = self.lock();
        let now = Instant::now();
        let idle = state.slots.iter().enumerate().filter(|(_, slot)| slot.is_idle());
        let next = idle.filter_map(|(i, slot)| Some((slot.remaining(now)?, i))).min();
        match next {
            Some((Duration::ZERO, index)) => self.unload(state, index),
            next => {
                let wait = next.map_or(LOOK, |(remaining, _)| remaining.min(LOOK));
                drop(self.changed.wait_timeout(state, wait));
            }
        }
    }
}

/// Models that take memory.
fn n_resident(state: &State) -> usize {
    state.slots.iter().filter(|slot| matches!(slot.stage, Stage::Loaded(_) | Stage::Unloading)).count()
}

/// Which of such models was used least recently.
fn least_recent(state: &State, is_one: impl Fn(&Slot) -> bool) -> Option<usize> {
    let slots = state.slots.iter().enumerate().filter(|(_, slot)| is_one(slot));
    slots.min_by_key(|(_, slot)| slot.last_used).map(|(index, _)| index)
}

/// Unloads models that nobody used for long enough, until the server is gone or about to stop.
fn unload_idle(table: &Weak<Table>) {
    while let Some(table) = table.upgrade().filter(|table| !table.is_closed()) {
        table.unload_overdue();
    }
}
