//! Guesses by a layer of the model itself, which was trained to draft tokens (multi-token prediction).
//!
//! It reads what the model made of the token before the last one, so it needs no text of its own, and its keys and values are the model's:
//! each step of the model leaves those of the tokens that it computed, and a draft writes its own behind them, where the next step of the model
//! writes again.

use super::{DraftWanted, Proposer};
use crate::Result;
use crate::bench::draft_time;
use crate::runner::{Pass, Runner, RunnerInfo, Step};
use realizar_model::DraftFrom;
use std::time::Duration;

/// The model's own drafting layer.
#[derive(Default)]
pub struct DraftLayer {
    step: Step,
}

/// A sequence that is being guessed.
struct Guessing<'a> {
    wanted: &'a DraftWanted<'a>,
    guesses: Vec<u32>,
    /// Guesses for which there is room.
    n: usize,
    /// Row of the last step, of the model or of the layer, that is before its last token.
    row: Option<u32>,
}

impl<'a> Guessing<'a> {
    fn new(info: &RunnerInfo, wanted: &'a DraftWanted<'a>) -> Self {
        let first = wanted.tokens.len() - 1;
        let end = (wanted.blocks.len() * info.block_size).min(info.context_length);
        // Without what the model made of the last token but one, guesses would be poor.
        let n = if wanted.row.is_some() { wanted.n.min(end.saturating_sub(first)) } else { 0 };
        Self { wanted, guesses: Vec::new(), n, row: wanted.row }
    }
}

impl DraftLayer {
    /// Makes a guess for each sequence that wants more and has room in the step.
    fn step(
        &mut self,
        runner: &mut dyn Runner,
        from: DraftFrom,
        guessing: &mut [Guessing<'_>],
    ) -> Result<()> {
        let info = runner.info();
        let limits = info.limits;
        let most = limits.n_seqs.min(limits.n_tokens).min(limits.n_logits);
        let mut n_entries = limits.n_blocks;
        self.step.clear();
        self.step.pass = Pass::Draft(from);
        let mut in_step = Vec::new();
        for (i, g) in guessing.iter_mut().enumerate().filter(|(_, g)| g.guesses.len() < g.n) {
            let tokens = g.wanted.tokens;
            let position = tokens.len() - 1 + g.guesses.len();
            let entries = position / info.block_size + 1;
            if in_step.len() == most || entries > n_entries {
                g.n = g.guesses.len();
                continue;
            }
            n_entries -= entries;
            let token = g.guesses.last().or(tokens.last()).copied().unwrap_or(0);
            self.step.batch.push(&[token], position, &g.wanted.blocks[..entries], 1);
            self.step.batch.previous.push(g.row);
            if info.slots.is_some() {
                // The layer attends, so that it reads and writes no slot.
                self.step.batch.push_state((position > 0).then_some(0), &[]);
            }
            // Of these rows the last is the one after all guesses.
            let at = self.step.rows.len();
            g.wanted.chooser.push_rows(&mut self.step, tokens, &g.guesses, None);
            self.step.rows.drain(at..self.step.rows.len() - 1);
            in_step.push(i);
        }
        if in_step.is_empty() {
            return Ok(());
        }
        let ticket = runner.launch(&self.step)?;
        for (row, (i, choice)) in in_step.into_iter().zip(runner.finish(ticket)?.rows).enumerate() {
            let g = &mut guessing[i];
            match choice {
                Ok(choice) => {
                    g.guesses.push(choice.token);
                    g.row = Some(row as u32);
                }
                Err(_) => g.n = g.guesses.len(),
            }
        }
        Ok(())
    }
}

impl Proposer for DraftLayer {
    fn propose(&mut self, runner: &mut dyn Runner, wanted: &[DraftWanted<'_>]) -> Result<Vec<Vec<u32>>> {
        let info = runner.info();
        let mut guessing: Vec<Guessing<'_>> = wanted.iter().map(|w| Guessing::new(&info, w)).collect();
        let mut from = DraftFrom::Model;
        while guessing.iter().any(|g| g.guesses.len() < g.n) {
            self.step(runner, from, &mut guessing)?;
            from = DraftFrom::Draft;
        }
        Ok(guessing.into_iter().map(|g| g.guesses).collect())
    }

    fn guess_time(&mut self, runner: &mut dyn Runner) -> Result<Duration> {
        draft_time(runner)
    }
}
