//! Which guesses a step verifies: how many are wanted, and which of those offered are taken.
//!
//! A draft is computed like a token of the text, behind the last one that is certain, and each yields a row of logits. The rows choose
//! tokens as ever; `commit` keeps those up to and with the first that differs from the draft after it. What a step computes for the
//! wrong drafts behind lies at positions that the sequence does not count as computed, in blocks and a slot that are its own: the next
//! step overwrites it, and nothing of it gets into the prefix cache.

use super::Scheduler;
use crate::chooser::Chooser;
use crate::request::mask_contains;
use crate::runner::Step;
use crate::sequence::{SeqId, Sequence};
use crate::speculative::{DraftWanted, SpeculationCosts};

/// Guesses of how a sequence goes on.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) tokens: Vec<u32>,
    /// What the sequence's constraint allows after each of them; empty without one.
    masks: Vec<u32>,
}

impl Scheduler {
    /// Lets sequences that want it be sped up by guesses that cost this much.
    pub fn set_speculation(&mut self, costs: Option<SpeculationCosts>) {
        self.costs = costs;
    }

    /// The sequences for which guesses would pay in the next step. To be called after all commits that come before it.
    pub fn drafts_wanted(&mut self) -> Vec<DraftWanted<'_>> {
        let running = self.running.iter().filter(|t| self.costs.is_some() && self.is_ready(**t));
        let wanted = running.map(|turn| (turn.id, &self.seqs[&turn.id]));
        let wanted: Vec<(SeqId, usize)> = wanted
            .filter(|(_, seq)| seq.n_unseen == 0 && seq.decodes())
            .map(|(id, seq)| (id, self.n_drafts(seq)))
            .filter(|(_, n)| *n > 0)
            .collect();
        if self.info.drafts {
            wanted.iter().for_each(|&(id, n)| self.make_draft_room(id, n));
        }
        let drafts_wanted = wanted.into_iter().map(|(id, n)| {
            let seq = &self.seqs[&id];
            // Nothing is drafted while a step is under way.
            let last = seq.last_step.as_ref().filter(|_| self.in_flight.is_empty());
            let before = seq.tokens.len().checked_sub(2).zip(last);
            DraftWanted {
                id,
                tokens: &seq.tokens,
                chooser: seq.chooser(),
                n,
                blocks: &seq.state.blocks,
                row: before.and_then(|(at, last)| last.row_of(at, self.counters.steps)),
            }
        });
        drafts_wanted.collect()
    }

    /// Gives a sequence blocks for the keys and values of `n` drafts, which the next step writes there again, as far as none of those that
    /// run or wait could want them.
    fn make_draft_room(&mut self, id: SeqId, n: usize) {
        let block_size = self.info.block_size;
        let spare = match self.waiting.is_empty() {
            true => self
                .store
                .room_besides(self.store.to_draft())
                .map_or(0, |n| n.saturating_sub(self.running.len())),
            false => 0,
        };
        let seq = self.seqs.get_mut(&id).expect("running sequences exist");
        let end = (seq.tokens.len() - 1 + n).min(self.info.max_seq_len());
        let n_blocks = end.div_ceil(block_size).min(seq.state.blocks.len() + spare);
        self.store.grow(&mut seq.state, n_blocks);
    }

    /// Takes guesses of how sequences go on, for the next step only. What cannot be right is left out.
    pub fn offer_drafts(&mut self, drafts: impl IntoIterator<Item = (SeqId, Vec<u32>)>) {
        for (id, mut tokens) in drafts {
            let Some(seq) = self.seqs.get(&id).filter(|s| s.n_unseen == 0 && s.decodes()) else {
                continue;
            };
            let vocab_size = self.info.vocab_size;
            let ends = |t: &u32| *t as usize >= vocab_size || seq.stop_tokens.contains(t);
            tokens.truncate(tokens.iter().position(ends).unwrap_or(tokens.len()).min(self.n_drafts(seq)));
            let masks = follow_constraint(seq, &mut tokens);
            if !tokens.is_empty() {
                self.drafts.insert(id, Draft { tokens, masks });
            }
        }
    }

    /// Whether the sequence's next step depends on tokens that the host has to see before.
    pub(super) fn needs_tokens(&self, seq: &Sequence) -> bool {
        seq.constrained || seq.verifies || self.n_drafts(seq) > 0
    }

    /// How many guesses are worth their cost for a sequence that decodes.
    fn n_drafts(&self, seq: &Sequence) -> usize {
        let (Some(length), Some(costs)) = (&seq.draft_length, self.costs) else { return 0 };
        if seq.slow_mask {
            return 0;
        }
        // A step yields one token more than it has right drafts.
        let left = seq.max_tokens.saturating_sub(seq.n_generated() + 1);
        let most = self.max_drafts.min(left);
        length.choose(self.running.len().saturating_sub(1), costs, most)
    }

    /// Spends what is left of the step on drafts of the sequences that decode.
    pub(super) fn extend_by_drafts(&mut self) {
        for i in 0..self.plan.len() {
            let (id, certain) = (self.plan[i].id, self.plan[i].n_tokens);
            let seq = &self.seqs[&id];
            let Some(draft) = self.drafts.get(&id).filter(|_| certain == seq.n_remaining()) else { continue };
            let room = self.room(seq, self.store.to_draft());
            let want = (certain + draft.tokens.len().min(self.budget.tokens)).min(room);
            if want > certain {
                self.refund(i);
                let n = self.within_budget(&self.seqs[&id], want).max(certain);
                if n > certain {
                    let seq = self.seqs.get_mut(&id).expect("planned sequences exist");
                    self.store.prepare_drafts(&mut seq.state);
                }
                self.grow(i, n);
            }
        }
    }
}

impl Draft {
    /// Gives the rows from `at` on what their sequence's constraint allows, and the log-probabilities that it wants.
    pub(super) fn restrict(&self, seq: &Sequence, step: &mut Step, at: usize) {
        let n_words = seq.mask.len();
        for (i, row) in step.rows[at..].iter_mut().enumerate() {
            row.n_logprobs = seq.n_logprobs;
            if n_words > 0 {
                let from = step.masks.len();
                step.masks.extend_from_slice(match i {
                    0 => &seq.mask,
                    _ => &self.masks[(i - 1) * n_words..i * n_words],
                });
                row.mask = Some(from..step.masks.len());
            }
        }
    }
}

impl Sequence {
    pub(super) fn chooser(&self) -> Chooser<'_> {
        let (params, seed, choice) = (&self.params, self.seed, self.turn.id.choice);
        Chooser { params, seed, choice, n_prompt: self.n_prompt }
    }

    /// Takes note of a chosen token, behind which `n_accepted` of `n` drafts were right.
    pub(super) fn drafted(&mut self, n: usize, n_accepted: usize) {
        self.n_drafted += n;
        self.n_accepted += n_accepted;
        if let Some(length) = &mut self.draft_length {
            match n {
                0 => length.skip(),
                _ => length.observe(n, n_accepted),
            }
        }
    }
}

/// Shortens drafts to what the sequence's constraint allows. Returns what it allows after each of them.
fn follow_constraint(seq: &Sequence, drafts: &mut Vec<u32>) -> Vec<u32> {
    let Some(constraint) = &seq.constraint else { return Vec::new() };
    let mut constraint = constraint.fork();
    let mut masks: Vec<u32> = Vec::new();
    let mut n = 0;
    for &draft in drafts.iter() {
        let mask = if n == 0 { &seq.mask[..] } else { &masks[masks.len() - seq.mask.len()..] };
        if !mask_contains(mask, draft) {
            break;
        }
        match constraint.accept(draft).and_then(|()| constraint.allowed()) {
            Ok(allowed) => masks.extend_from_slice(allowed.words()),
            Err(_) => break,
        }
        n += 1;
    }
    drafts.truncate(n);
    masks
}
