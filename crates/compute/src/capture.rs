//! Recorded steps: what a device does again and again, without the host's work for each operation.

use crate::Device;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which recorded sequence of operations is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GraphKey {
    /// Who owns all the memory that the operations use; a number that nobody else has.
    pub owner: u64,
    /// Tokens of the step.
    pub n_tokens: usize,
    /// Rows of logits of the step.
    pub n_logits: usize,
    /// What becomes of the logits.
    pub choosing: Choosing,
    /// Tells apart steps whose tokens belong to sequences in other ways; 0 where each is a sequence's one token.
    pub shape: u64,
}

/// How a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Choosing {
    /// With logits.
    Nothing,
    /// With [`Ops::argmax`](crate::Ops::argmax).
    Argmax,
    /// With [`Ops::sample`](crate::Ops::sample).
    Sampled,
}

impl GraphKey {
    /// A number for [`GraphKey::owner`].
    pub fn new_owner() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

/// Records operations and replays them.
pub trait Capture: Device {
    /// Does what `f` does, which for one key is always the same operations on the same tensors; only what those hold differs. A
    /// backend may record the operations and replay them, without calling `f` again.
    ///
    /// Nothing that the operations use may be freed before [`Capture::forget`].
    fn captured<E: From<crate::Error>>(
        &self,
        _key: GraphKey,
        mut f: impl FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        f()
    }

    /// Drops what was recorded under an owner's keys.
    fn forget(&self, _owner: u64) {}
}
