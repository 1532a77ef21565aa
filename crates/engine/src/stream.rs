//! The queue of events between the engine and one reader.
//!
//! The reader may block, poll, or await without any particular runtime. The engine never waits for it: a full queue still takes what
//! is on its way and asks the engine to pause the request until half of it is read.

use crate::request::Event;
use crate::{Error, FinishReason};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The events of one request. Dropping it cancels the request.
pub struct Stream {
    number: u64,
    shared: Arc<Shared>,
    tell: Box<dyn Fn(Wish) + Send + Sync>,
}

/// What a reader wants of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// To end one choice, or all.
    Cancel(Option<u32>),
    /// To go on after a pause.
    Resume,
}

/// The engine's end.
pub(crate) struct Producer {
    shared: Arc<Shared>,
    /// Choices that have not ended.
    open: u32,
}

struct Shared {
    state: Mutex<State>,
    ready: Condvar,
    capacity: usize,
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    /// Events that the reader has taken.
    n_read: u64,
    waker: Option<Waker>,
    /// The engine was told to pause.
    full: bool,
    /// The reader is gone.
    closed: bool,
    /// No event will follow.
    done: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock, so the state is whole even if a thread died with it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue of request `number`, for `n` choices, that holds about `capacity` events. `tell` hands the engine what the reader wants.
pub(crate) fn channel(
    number: u64,
    n: u32,
    capacity: usize,
    tell: Box<dyn Fn(Wish) + Send + Sync>,
) -> (Producer, Stream) {
    let shared =
        Arc::new(Shared { state: Mutex::default(), ready: Condvar::new(), capacity: capacity.max(2) });
    (Producer { shared: shared.clone(), open: n }, Stream { number, shared, tell })
}

impl Producer {
    /// Puts an event into the queue, and returns whether that is full: no more should follow until the reader asks for it. Of a reader that
    /// is gone, only the end is noted: its wish to cancel is on its way.
    pub(crate) fn push(&mut self, event: Event) -> bool {
        match event {
            Event::Finished { .. } => self.open -= 1,
            Event::Error(_) => self.open = 0,
            _ => {}
        }
        let mut state = self.shared.lock();
        if state.closed {
            return false;
        }
        state.events.push_back(event);
        state.done = self.open == 0;
        state.full |= state.events.len() >= self.shared.capacity;
        let is_full = state.full;
        let waker = state.waker.take();
        drop(state);
        self.shared.ready.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
        is_full
    }

    /// Events that the reader has taken so far.
    pub(crate) fn n_read(&self) -> u64 {
        self.shared.lock().n_read
    }

    /// Whether all choices have ended.
    pub(crate) fn is_done(&self) -> bool {
        self.open == 0
    }
}

impl Drop for Producer {
    /// Whatever happened to the engine, the reader gets an answer.
    fn drop(&mut self) {
        if self.open > 0 {
            let message = "it stopped before the request was finished".into();
            self.push(Event::Error(Error::EngineFailed { message }));
        }
    }
}

impl Stream {
    /// The request's number, as it stands in logs.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The next event, waiting for it; `None` after the last.
    pub fn recv(&mut self) -> Option<Event> {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        loop {
            if let Some(next) = self.pop(&mut state) {
                return next;
            }
            state = shared.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next event if there is one before the deadline; `Some(None)` after the last.
    pub fn recv_deadline(&mut self, deadline: Instant) -> Option<Option<Event>> {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        loop {
            if let Some(next) = self.pop(&mut state) {
                return Some(next);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return None;
            }
            state = shared.ready.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The next event, to be called again when the task is woken; `Ready(None)` after the last.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        match self.pop(&mut state) {
            Some(next) => Poll::Ready(next),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The next event, on any async runtime; `None` after the last.
    pub async fn next_event(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Ends all choices; each delivers its last event with [`FinishReason::Cancelled`].
    pub fn cancel(&self) {
        (self.tell)(Wish::Cancel(None));
    }

    /// Ends one choice, which delivers its last event with [`FinishReason::Cancelled`].
    pub fn cancel_choice(&self, choice: u32) {
        (self.tell)(Wish::Cancel(Some(choice)));
    }

    /// Runs the request to its end and returns the tokens and reason of each choice.
    pub fn collect_tokens(mut self) -> crate::Result<Vec<(Vec<u32>, FinishReason)>> {
        let mut choices: Vec<(Vec<u32>, FinishReason)> = Vec::new();
        while let Some(event) = self.recv() {
            let (at, token, end) = match event {
                Event::Token { choice, id, .. } => (choice, Some(id), None),
                Event::Finished { choice, reason, .. } => (choice, None, Some(reason)),
                Event::Error(error) => return Err(error),
                Event::PromptToken { .. } => continue,
            };
            let at = at as usize;
            if choices.len() <= at {
                choices.resize(at + 1, (Vec::new(), FinishReason::Cancelled));
            }
            choices[at].0.extend(token);
            choices[at].1 = end.unwrap_or(choices[at].1);
        }
        Ok(choices)
    }

    /// `Some` if nothing needs waiting for.
    fn pop(&self, state: &mut State) -> Option<Option<Event>> {
        let Some(event) = state.events.pop_front() else {
            return state.done.then_some(None);
        };
        state.n_read += 1;
        if state.full && state.events.len() <= self.shared.capacity / 2 {
            state.full = false;
            (self.tell)(Wish::Resume);
        }
        Some(Some(event))
    }
}

impl Iterator for Stream {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.recv()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        let unfinished = !state.done;
        drop(state);
        if unfinished {
            self.cancel();
        }
    }
}
