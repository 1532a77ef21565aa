//! Several devices that run one model together, each with its part of every weight: who is which, and sums over all of them.
//!
//! Each device is a backend of its own and computes on a thread of its own. They meet in [`Collectives::all_reduce`] and
//! [`Collectives::all_gather`], which all of them call in the same order with tensors of the same rows. [`HostGroup`] is how backends meet
//! whose tensors are in host memory.

use crate::{Error, Ops, Result, Tensor};
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

/// What the devices that share a model do together, each on a thread of its own.
pub trait Collectives: Ops {
    /// Which of the devices that share a model this is.
    fn rank(&self) -> Rank {
        Rank::ALONE
    }

    /// `x = sum of every rank's x`, added in the order of ranks: all of them get the same bits.
    ///
    /// All ranks do this together, each on its own thread. Errors: `Device`, also when another rank has left.
    fn all_reduce(&self, x: &mut Tensor<Self>) -> Result<()>;

    /// `y += sum of every rank's x`; the contents of `x`, of the shape of `y`, are unspecified afterwards.
    fn all_reduce_add(&self, y: &mut Tensor<Self>, x: &mut Tensor<Self>) -> Result<()> {
        self.all_reduce(x)?;
        self.add(y, x)
    }

    /// Every rank's x side by side: `y[n, starts[rank] .. starts[rank + 1]] = x[n, ..]` of that rank. `starts` has an entry more than
    /// there are ranks, and its last is the length of a row of `y`.
    ///
    /// As for [`Collectives::all_reduce`], all ranks do this together.
    fn all_gather(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, starts: &[usize]) -> Result<()>;

    /// Lets the other ranks know that this one does not go on: what they do together with it fails instead of waiting.
    fn leave(&self) {}
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
