//! The last batches, numbered; whoever reads them has a place of his own and holds up nobody.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// A ring of encoded batches.
pub(super) struct Log {
    pub(super) topic: Vec<u8>,
    capacity: usize,
    batches: Mutex<VecDeque<Batch>>,
    /// The number of the next batch.
    next: watch::Sender<u64>,
}

/// A batch and its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) number: u64,
    pub(super) payload: Arc<[u8]>,
}

impl Log {
    /// Room for `capacity` batches, at least one.
    pub(super) fn new(topic: Vec<u8>, capacity: usize) -> Self {
        let next = watch::Sender::new(0);
        Self { topic, capacity: capacity.max(1), batches: Mutex::default(), next }
    }

    /// Gives a batch the next number; the oldest one makes room for it.
    pub(super) fn append(&self, payload: Vec<u8>) {
        let number = *self.next.borrow();
        {
            let mut batches = self.lock();
            if batches.len() == self.capacity {
                batches.pop_front();
            }
            batches.push_back(Batch { number, payload: payload.into() });
        }
        self.next.send_replace(number + 1);
    }

    /// For whoever waits until the number of the next batch changes.
    pub(super) fn next(&self) -> watch::Receiver<u64> {
        self.next.subscribe()
    }

    /// The first batch from `number` on that is still there.
    pub(super) fn at(&self, number: u64) -> Option<Batch> {
        let batches = self.lock();
        let first = batches.front()?.number;
        batches.get(usize::try_from(number.saturating_sub(first)).ok()?).cloned()
    }

    /// All batches from `number` on that are still there.
    pub(super) fn since(&self, number: u64) -> Vec<Batch> {
        self.lock().iter().filter(|batch| batch.number >= number).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Batch>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_batches_are_kept_by_number() {
        let log = Log::new(Vec::new(), 3);
        assert_eq!(log.at(0), None);
        (0..5).for_each(|n| log.append(vec![n]));
        let numbers =
            |batches: Vec<Batch>| batches.iter().map(|b| (b.number, b.payload[0])).collect::<Vec<_>>();
        assert_eq!(numbers(log.since(0)), [(2, 2), (3, 3), (4, 4)]);
        assert_eq!(numbers(log.since(4)), [(4, 4)]);
        assert_eq!(numbers(log.since(u64::MAX)), []);
        assert_eq!(log.at(3).map(|b| b.number), Some(3));
        assert_eq!(log.at(0).map(|b| b.number), Some(2), "those before are gone");
        assert_eq!(log.at(5), None);
        assert_eq!(*log.next().borrow(), 5);
    }
}
