//! What to do with each row of logits that a sequence's part of a step yields.

use crate::SamplingParams;
use crate::runner::{Row, Step};
use crate::sampler::uniform;
use crate::sequence::Sequence;
use std::ops::Range;
use std::sync::Arc;

/// What the next `n_tokens` of a sequence yield: the positions to score, and how many tokens are chosen: one if all is computed
/// that it has, and one more for each draft behind that.
pub(super) fn rows_of(seq: &Sequence, n_tokens: usize) -> (Range<usize>, usize) {
    let (start, end) = (seq.n_launched, seq.n_launched + n_tokens);
    let last = end.min(seq.n_prompt - 1);
    let first = start.max(seq.n_scored).min(last);
    let chooses = n_tokens > 0 && seq.max_tokens > 0;
    (first..last, if chooses { (end + 1).saturating_sub(seq.n_wanted()) } else { 0 })
}

/// The row that scores the token after `position`.
pub(super) fn score_row(seq: &Sequence, position: usize) -> Row {
    let params = seq.params.clone();
    Row { n_logprobs: seq.prompt_logprobs, ..Row::score(seq.tokens[position + 1], params) }
}

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
