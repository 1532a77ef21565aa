//! Several devices that run one model together, each with its part of every weight: who is which, and sums over all of them.
//!
//! Each device is a backend of its own and computes on a thread of its own. They meet in `Backend::all_reduce` and
//! `Backend::all_gather`, which all of them call in the same order with tensors of the same rows. [`HostGroup`] is how backends meet
//! whose tensors are in host memory.

use crate::{Error, Result};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock};

/// Which of the devices that share a model this one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Its number, below `count`.
    pub index: usize,
    /// How many there are.
    pub count: usize,
}

impl Rank {
    /// The only one.
    pub const ALONE: Self = Self { index: 0, count: 1 };

    /// Whether there is no other.
    pub fn is_alone(self) -> bool {
        self.count == 1
    }

    /// Whether it is the first, which does what must be done once.
    pub fn is_first(self) -> bool {
        self.index == 0
    }
}

/// Where the ranks of one process meet with tensors in host memory.
#[derive(Debug)]
pub(crate) struct HostGroup {
    /// What each rank brings.
    slots: Vec<RwLock<Vec<f32>>>,
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Meeting {
    n_arrived: usize,
    /// Counts the meetings.
    number: u64,
    /// Somebody will not come any more.
    is_over: bool,
}

impl HostGroup {
    /// For `count` ranks.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            slots: (0..count).map(|_| RwLock::default()).collect(),
            meeting: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn meeting(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all ranks are here.
    fn meet(&self) -> Result<()> {
        let mut meeting = self.meeting();
        let number = meeting.number;
        meeting.n_arrived += 1;
        if meeting.n_arrived == self.slots.len() {
            meeting.n_arrived = 0;
            meeting.number += 1;
            self.changed.notify_all();
        }
        while meeting.number == number && !meeting.is_over {
            meeting = self.changed.wait(meeting).unwrap_or_else(PoisonError::into_inner);
        }
        // Who leaves after a meeting does not undo it.
        match meeting.number == number {
            false => Ok(()),
            true => Err(left()),
        }
    }

    /// Errors: `Device` after somebody left.
    pub(crate) fn check(&self) -> Result<()> {
        if self.meeting().is_over { Err(left()) } else { Ok(()) }
    }

    /// Brings `mine` and looks at what every rank brought, one after the other: `see(rank, values)`.
    ///
    /// Errors: `Device` after somebody left.
    pub(crate) fn exchange(
        &self,
        rank: usize,
        mine: &[f32],
        mut see: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        {
            let mut slot = self.slots[rank].write().unwrap_or_else(PoisonError::into_inner);
            slot.clear();
            slot.extend_from_slice(mine);
        }
        self.meet()?;
        for (i, slot) in self.slots.iter().enumerate() {
            see(i, &slot.read().unwrap_or_else(PoisonError::into_inner));
        }
        // Nobody may bring anything new while others still look.
        self.meet()
    }

    /// Ends all meetings, those that others wait in too. Who is alone has nobody to leave.
    pub(crate) fn leave(&self) {
        self.meeting().is_over = self.slots.len() > 1;
        self.changed.notify_all();
    }
}

fn left() -> Error {
    Error::Device { device: "a rank".into(), message: "another rank has failed".into() }
}

/// Writes `part`, rows of columns `from..to`, to its place in `whole`, `n` columns wide.
pub(crate) fn place_columns(whole: &mut [f32], n: usize, part: &[f32], from: usize, to: usize) {
    for (row, part) in whole.chunks_exact_mut(n).zip(part.chunks_exact((to - from).max(1))) {
        row[from..to].copy_from_slice(part);
    }
}
