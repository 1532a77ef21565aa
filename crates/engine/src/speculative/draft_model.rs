//! Guesses by a smaller model of the same vocabulary.
//!
//! It keeps the keys and values of the texts that it has read, as far as its cache goes, and reads of each only what is new since its
//! last guess. Where a guess was wrong, it goes back to the last position at which both texts agree.

use super::{DraftWanted, Proposer};
use crate::bench::step_times;
use crate::runner::{Runner, Step};
use crate::{Result, SeqId};
use std::collections::HashMap;
use std::time::Duration;

/// A second, smaller model that runs ahead.
pub struct DraftModel {
    runner: Box<dyn Runner>,
    free: Vec<u32>,
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
    used: u64,
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
        let free = (0..runner.info().n_blocks as u32).rev().collect();
        Self { runner, free, texts: HashMap::new(), step: Step::default(), now: 0 }
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
        text.tokens.truncate(same);
        text.tokens.extend_from_slice(&tokens[same..]);
        text.used = self.now;
        let end = tokens.len() + wanted.n - 1; // the last guess is not read
        let known = tokens[text.n_computed..].iter().all(|&t| (t as usize) < info.vocab_size);
        let fits =
            known && end <= info.context_length && self.reserve(&mut text, end.div_ceil(info.block_size));
        if !fits {
            text.n_computed = 0;
            self.free.append(&mut text.blocks);
        }
        Guessing { wanted, text, guesses: Vec::new(), done: !fits }
    }

    /// Gives a text `n` blocks, taking those of texts that were not asked for of late.
    fn reserve(&mut self, text: &mut Text, n: usize) -> bool {
        while text.blocks.len() < n {
            if self.free.is_empty() {
                let oldest =
                    self.texts.iter().filter(|(_, t)| t.used < self.now).min_by_key(|(id, t)| (t.used, **id));
                let Some(id) = oldest.map(|(id, _)| *id) else { break };
                self.free.extend(self.texts.remove(&id).map_or_else(Vec::new, |t| t.blocks));
                continue;
            }
            text.blocks.extend(self.free.pop());
        }
        text.blocks.len() >= n
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

impl Proposer for DraftModel {
    fn propose(&mut self, wanted: &[DraftWanted<'_>]) -> Result<Vec<Vec<u32>>> {
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

    fn guess_time(&mut self) -> Result<Duration> {
        Ok(step_times(&mut *self.runner, 1)?.0)
    }
}
