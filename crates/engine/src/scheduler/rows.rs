//! What to do with each row of logits that a sequence's part of a step yields.

use crate::runner::Row;
use crate::sequence::Sequence;
use std::ops::Range;

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
