//! Guesses by a smaller model of the same vocabulary.
//!
//! It keeps the keys and values of the texts that it has read, as far as its cache goes, and reads of each only what is new since its
//! last guess. Where a guess was wrong, it goes back to the last position at which both texts agree.
//!
//! A model with recurrent layers cannot go back: its state is valid at one position. So each text has two slots, one with the state before
//! the last token that it was asked for, and one for the guesses behind it.

use super::{DraftWanted, Proposer};
use crate::bench::step_times;
use crate::runner::{Runner, Step};
use crate::{Result, SeqId};
use realizar_compute::StateWrite;
use std::collections::HashMap;
use std::time::Duration;

/// A second, smaller model that runs ahead.
pub struct DraftModel {
    runner: Box<dyn Runner>,
    free: Vec<u32>,
    /// Slots of recurrent state; none for a model without.
    free_slots: Vec<u32>,
    texts: HashMap<SeqId, Text>,
    step: Step,
    /// Counts calls, to tell which texts were not asked for of late.
    now: u64,
}

/// What is known of a sequence.
#[derive(Default)]
struct Text {
    /// Its tokens when it was last asked for, and guesses behind them.
    tokens: Vec<u32>,
    /// Of those, how many have their keys and values in the blocks.
    n_computed: usize,
    blocks: Vec<u32>,
    /// Of a model with recurrent layers.
    state: Option<TextState>,
    used: u64,
}

/// The recurrent state of a text.
#[derive(Clone, Copy)]
struct TextState {
    /// The slot with the state after the first `position` tokens, which were not guessed.
    kept: u32,
    position: usize,
    /// The slot with the state after all tokens that were computed, while guesses are made.
    ahead: u32,
}

/// A sequence that is being guessed.
struct Guessing<'a> {
    wanted: &'a DraftWanted<'a>,
    text: Text,
    guesses: Vec<u32>,
    /// No more guesses are to be made.
    done: bool,
}

impl DraftModel {
    /// Guesses by this runner, whose cache must be free.
    pub fn new(runner: Box<dyn Runner>) -> Self {
        let info = runner.info();
        let free = (0..info.n_blocks as u32).rev().collect();
        let free_slots = (0..info.slots.map_or(0, |s| s.n_slots) as u32).rev().collect();
        Self { runner, free, free_slots, texts: HashMap::new(), step: Step::default(), now: 0 }
    }

    /// Brings what is known of a sequence to its present tokens, with blocks for all that is wanted. What it finds no room for is
    /// done at once.
    fn begin<'a>(&mut self, wanted: &'a DraftWanted<'a>) -> Guessing<'a> {
        let info = self.runner.info();
        let mut text = self.texts.remove(&wanted.id).unwrap_or_default();
        let tokens = wanted.tokens;
        let same = text.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // The last token is read again if need be: it is what the first guess follows.
        text.n_computed = text.n_computed.min(same).min(tokens.len() - 1);
        if info.slots.is_some() {
            let kept = text.state.map_or(0, |s| s.position);
            text.n_computed = if kept <= text.n_computed { kept } else { 0 };
        }
        text.tokens.truncate(same);
        text.tokens.extend_from_slice(&tokens[same..]);
        text.used = self.now;
        let end = tokens.len() + wanted.n - 1; // the last guess is not read
        let known = tokens[text.n_computed..].iter().all(|&t| (t as usize) < info.vocab_size);
        let fits =
            known && end <= info.context_length && self.reserve(&mut text, end.div_ceil(info.block_size));
        if !fits {
            self.give_up(std::mem::take(&mut text));
        }
        Guessing { wanted, text, guesses: Vec::new(), done: !fits }
    }

    /// Gives a text `n` blocks and what slots it needs, taking those of texts that were not asked for of late.
    fn reserve(&mut self, text: &mut Text, n: usize) -> bool {
        while text.blocks.len() < n {
            match self.free.pop() {
                Some(block) => text.blocks.push(block),
                None if self.give_up_oldest() => {}
                None => return false,
            }
        }
        while self.runner.info().slots.is_some() && text.state.is_none() {
            if let [.., ahead, kept] = self.free_slots[..] {
                self.free_slots.truncate(self.free_slots.len() - 2);
                text.state = Some(TextState { kept, position: 0, ahead });
            } else if !self.give_up_oldest() {
                return false;
            }
        }
        true
    }

    /// Gives up what is known of the text that was not asked for the longest; `false` if all were asked for now.
    fn give_up_oldest(&mut self) -> bool {
        let oldest =
            self.texts.iter().filter(|(_, t)| t.used < self.now).min_by_key(|(id, t)| (t.used, **id));
        let Some(id) = oldest.map(|(id, _)| *id) else { return false };
        if let Some(text) = self.texts.remove(&id) {
            self.give_up(text);
        }
        true
    }

    fn give_up(&mut self, text: Text) {
        self.free.extend(text.blocks);
        self.free_slots.extend(text.state.iter().flat_map(|s| [s.kept, s.ahead]));
    }

    /// Computes one step: as much as fits of what the sequences have not read, and a guess for each that has then read all.
    fn step(&mut self, guessing: &mut [Guessing<'_>]) -> Result<()> {
        let info = self.runner.info();
        let limits = info.limits;
        let (mut n_tokens, mut n_seqs, mut n_entries, mut n_rows) =
            (limits.n_tokens, limits.n_seqs, limits.n_blocks, limits.n_logits);
        self.step.clear();
        let mut in_step = Vec::new();
        for (i, g) in guessing.iter_mut().enumerate().filter(|(_, g)| !g.done) {
            let (start, all) = (g.text.n_computed, g.text.tokens.len());
            let end = all.min(start + n_tokens);
            let entries = end.div_ceil(info.block_size);
            let guesses = end == all;
            if end == start || n_seqs == 0 || entries > n_entries || (guesses && n_rows == 0) {
                g.done = true;
                continue;
            }
            n_tokens -= end - start;
            n_seqs -= 1;
            n_entries -= entries;
            self.step.batch.push(
                &g.text.tokens[start..end],
                start,
                &g.text.blocks[..entries],
                usize::from(guesses),
            );
            if let Some(state) = &mut g.text.state {
                let (from, writes) = state.next(start, end, guesses, g.guesses.is_empty());
                self.step.batch.push_state(from, &writes);
            }
            if guesses {
                n_rows -= 1;
                g.wanted.chooser.push_rows(&mut self.step, &g.text.tokens, &[], None);
            }
            in_step.push((i, end, guesses));
        }
        if in_step.is_empty() {
            return Ok(());
        }
        let ticket = self.runner.launch(&self.step)?;
        let mut rows = self.runner.finish(ticket)?.rows.into_iter();
        for (i, end, guesses) in in_step {
            let g = &mut guessing[i];
            g.text.n_computed = end;
            // A text that is longer than a step gets its guesses in a later one, so that reading it delays nobody for long.
            let row = if guesses { rows.next() } else { None };
            match row {
                Some(Ok(choice)) => {
                    g.guesses.push(choice.token);
                    g.text.tokens.push(choice.token);
                    g.done = g.guesses.len() == g.wanted.n;
                }
                _ => g.done = true,
            }
        }
        Ok(())
    }
}

impl TextState {
    /// Where the state before position `start` is, and where a step that ends at `end` leaves it. `is_last`: all tokens are then read.
    /// `is_certain`: none of them is a guess.
    fn next(
        &mut self,
        start: usize,
        end: usize,
        is_last: bool,
        is_certain: bool,
    ) -> (Option<u32>, Vec<StateWrite>) {
        let from = (start > 0).then_some(if is_certain { self.kept } else { self.ahead });
        let mut writes = Vec::with_capacity(2);
        // The last token may have to be read again.
        let kept = if is_last { end - 1 } else { end };
        if is_certain && kept > start {
            writes.push(StateWrite { n_tokens: kept - start, slot: self.kept });
            self.position = kept;
        }
        if is_last {
            writes.push(StateWrite { n_tokens: end - start, slot: self.ahead });
        }
        (from, writes)
    }
}

impl Proposer for DraftModel {
    fn propose(&mut self, _: &mut dyn Runner, wanted: &[DraftWanted<'_>]) -> Result<Vec<Vec<u32>>> {
        self.now += 1;
        // Those that are asked for now keep what they have while the others look for room.
        for w in wanted {
            if let Some(text) = self.texts.get_mut(&w.id) {
                text.used = self.now;
            }
        }
        let mut guessing: Vec<Guessing<'_>> = wanted.iter().map(|w| self.begin(w)).collect();
        while guessing.iter().any(|g| !g.done) {
            self.step(&mut guessing)?;
        }
        let mut drafts = Vec::with_capacity(guessing.len());
        for g in guessing {
            drafts.push(g.guesses);
            if !g.text.blocks.is_empty() {
                self.texts.insert(g.wanted.id, g.text);
            }
        }
        Ok(drafts)
    }

    fn guess_time(&mut self, _: &mut dyn Runner) -> Result<Duration> {
        Ok(step_times(&mut *self.runner, 1)?.0)
    }
}
