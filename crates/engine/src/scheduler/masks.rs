//! What a sequence's constraint allows next, computed outside of the scheduler.
//!
//! After a token, the constraint leaves its sequence as a [`MaskJob`] and comes back as a [`MaskDone`]. In between the sequence keeps
//! what it has and is in no step; whoever runs the scheduler decides where jobs run and whether others wait for them.

use super::Scheduler;
use crate::Error;
use crate::request::{Constraint, Event};
use crate::sequence::SeqId;

/// A constraint that has to take in tokens and say what may follow.
pub struct MaskJob {
    id: SeqId,
    constraint: Box<dyn Constraint>,
    tokens: Vec<u32>,
}

/// A constraint that has done so.
pub struct MaskDone {
    id: SeqId,
    constraint: Box<dyn Constraint>,
    /// Bits of tokens, or why the constraint cannot go on.
    mask: std::result::Result<Vec<u32>, String>,
}

impl MaskJob {
    /// Whose constraint it is.
    pub fn id(&self) -> SeqId {
        self.id
    }

    /// Does the work.
    pub fn run(mut self) -> MaskDone {
        let accepted = self.tokens.iter().try_for_each(|&token| self.constraint.accept(token));
        let mask = accepted.and_then(|()| Ok(self.constraint.allowed()?.words().to_vec()));
        MaskDone { id: self.id, constraint: self.constraint, mask }
    }
}

impl MaskDone {
    /// Whose constraint it is.
    pub fn id(&self) -> SeqId {
        self.id
    }
}

impl Scheduler {
    /// The jobs that commits have brought; each comes back by [`Scheduler::take_mask`].
    pub fn take_mask_jobs(&mut self) -> Vec<MaskJob> {
        std::mem::take(&mut self.mask_jobs)
    }

    /// Lets a sequence go on whose job is done. `slow`: the job took so long that guesses, each of which needs a mask, do not pay.
    /// Returns the sequence's last event if its constraint has failed.
    pub fn take_mask(&mut self, done: MaskDone, slow: bool) -> Option<(SeqId, Event)> {
        // A sequence that ended meanwhile has no use for it.
        let seq = self.seqs.get_mut(&done.id)?;
        let mask = match done.mask {
            Ok(mask) if mask.len() == seq.mask.len() => mask,
            Ok(mask) => return self.fail_mask(done.id, format!("its mask has {} words", mask.len())),
            Err(message) => return self.fail_mask(done.id, message),
        };
        seq.mask = mask;
        seq.constraint = Some(done.constraint);
        seq.slow_mask = slow;
        None
    }

    fn fail_mask(&mut self, id: SeqId, message: String) -> Option<(SeqId, Event)> {
        self.remove(id).map(|_| (id, Event::Error(Error::Constraint { message })))
    }

    /// Sends the constraint of a sequence away with the tokens that it has to take in.
    pub(super) fn request_mask(&mut self, id: SeqId, tokens: Vec<u32>) {
        let Some(seq) = self.seqs.get_mut(&id).filter(|_| !tokens.is_empty()) else { return };
        if let Some(constraint) = seq.constraint.take() {
            self.mask_jobs.push(MaskJob { id, constraint, tokens });
        }
    }
}
