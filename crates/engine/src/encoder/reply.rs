//! The rows of one request on their way back.

use crate::{Error, Result};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The rows of a request's texts, once all are there. Dropping it cancels the texts that have not begun.
pub struct Pending {
    shared: Arc<Shared>,
}

/// Where the row of one text goes. Dropping it without a row is an error for the request.
pub(super) struct Place {
    shared: Arc<Shared>,
    index: usize,
    is_done: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Default)]
struct State {
    rows: Vec<Vec<f32>>,
    /// Texts without a row.
    missing: usize,
    error: Option<Error>,
    waker: Option<Waker>,
    abandoned: bool,
}

/// Room for the rows of `n` texts.
pub(super) fn reply(n: usize) -> (Vec<Place>, Pending) {
    let state = State { rows: vec![Vec::new(); n], missing: n, ..State::default() };
    let shared = Arc::new(Shared { state: Mutex::new(state), ready: Condvar::new() });
    let place = |index| Place { shared: shared.clone(), index, is_done: false };
    ((0..n).map(place).collect(), Pending { shared })
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock, so the state is whole even if a thread died with it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let is_over = state.missing == 0 || state.error.is_some();
        if !is_over {
            return;
        }
        let waker = state.waker.take();
        drop(state);
        self.ready.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl State {
    fn outcome(&mut self) -> Option<Result<Vec<Vec<f32>>>> {
        match &self.error {
            Some(error) => Some(Err(error.clone())),
            None if self.missing == 0 => Some(Ok(std::mem::take(&mut self.rows))),
            None => None,
        }
    }
}

impl Place {
    /// Whether nobody waits for the row.
    pub(super) fn is_abandoned(&self) -> bool {
        let state = self.shared.lock();
        state.abandoned || state.error.is_some()
    }

    pub(super) fn fill(mut self, row: Vec<f32>) {
        self.is_done = true;
        self.shared.change(|state| {
            state.rows[self.index] = row;
            state.missing -= 1;
        });
    }

    pub(super) fn fail(mut self, error: &Error) {
        self.is_done = true;
        self.shared.change(|state| {
            state.error.get_or_insert_with(|| error.clone());
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_done {
            let error = Error::EngineFailed { message: "a text was given up".into() };
            self.shared.change(|state| {
                state.error.get_or_insert(error);
            });
        }
    }
}

impl Pending {
    /// Blocks until all rows are there, in the order of the texts.
    ///
    /// Errors: the first of any text.
    pub fn wait(self) -> Result<Vec<Vec<f32>>> {
        let mut state = self.shared.lock();
        loop {
            match state.outcome() {
                Some(outcome) => return outcome,
                None => state = self.shared.ready.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Future for Pending {
    type Output = Result<Vec<Vec<f32>>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.lock();
        match state.outcome() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared.lock().abandoned = true;
    }
}
