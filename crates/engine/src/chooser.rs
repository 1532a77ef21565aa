//! The rows of logits that choose tokens, of generated tokens as of drafts.

use crate::SamplingParams;
use crate::runner::{Row, Step};
use crate::sampler::uniform;
use std::sync::Arc;

/// What decides which tokens a sequence gets, besides its logits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chooser<'a> {
    pub(crate) params: &'a Arc<SamplingParams>,
    pub(crate) seed: u64,
    pub(crate) choice: u32,
    pub(crate) n_prompt: usize,
}

impl Chooser<'_> {
    /// Appends the rows after `tokens` (and after the token of row `unseen` of the step before, if that comes next) and after each of
    /// the `drafts` behind them, with the history that they need.
    ///
    /// A draft's row chooses as it would if the drafts before it had been generated: by the random number of its position, and with
    /// them in its history.
    pub(crate) fn push_rows(&self, step: &mut Step, tokens: &[u32], drafts: &[u32], unseen: Option<usize>) {
        assert!(drafts.is_empty() || unseen.is_none(), "drafts follow tokens that are known");
        let n_unseen = usize::from(unseen.is_some());
        let position = tokens.len() + n_unseen;
        let window = match self.params.has_penalties() {
            true => self.params.penalty_window.unwrap_or(usize::MAX),
            false => 0,
        };
        // All rows share one copy of the history, each its own part of it.
        let (first, at) = (position.saturating_sub(window), step.history.len());
        if window > 0 {
            step.history.extend_from_slice(&tokens[first..]);
            step.history.extend_from_slice(drafts);
        }
        for position in position..=position + drafts.len() {
            let (mut prompt, mut generated) = (at..at, at..at);
            if window > 0 {
                let from = position.saturating_sub(window);
                let start = at + from - first;
                prompt = start..start + self.n_prompt.saturating_sub(from);
                generated = prompt.end..at + position - n_unseen - first;
            }
            let greedy = self.params.is_greedy();
            step.rows.push(Row {
                uniform: if greedy { 0.0 } else { uniform(self.seed, self.choice, position) },
                prompt,
                generated,
                unseen: unseen.filter(|_| window > 0),
                ..Row::choose(self.params.clone())
            });
        }
    }
}
