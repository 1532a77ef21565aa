//! Guesses by looking the last tokens up in the text itself: what followed them before may follow again.
//!
//! Costs next to nothing, and is right where a text repeats a part of its prompt or of itself: summaries, corrections, code, quotes,
//! structured data. (Known as prompt lookup: Saxena 2023.)

use super::{DraftWanted, Proposer};
use crate::{Result, Runner};
use std::time::Duration;

/// Looks up the last tokens in the text before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ngram {
    /// Tokens that must occur before for a guess. Default 2.
    pub min: usize,
    /// Tokens that are enough: the latest place where so many occur is taken at once. Default 5.
    pub max: usize,
}

impl Default for Ngram {
    fn default() -> Self {
        Self { min: 2, max: 5 }
    }
}

impl Proposer for Ngram {
    fn propose(&mut self, _: &mut dyn Runner, wanted: &[DraftWanted<'_>]) -> Result<Vec<Vec<u32>>> {
        Ok(wanted.iter().map(|w| self.guess(w.tokens, w.n)).collect())
    }

    fn guess_time(&mut self, _: &mut dyn Runner) -> Result<Duration> {
        Ok(Duration::ZERO)
    }
}

impl Ngram {
    /// What followed the place most like the end of `tokens`: where most of the last tokens occur, the latest of equals.
    fn guess(&self, tokens: &[u32], n: usize) -> Vec<u32> {
        let (mut best, mut best_len) = (0, self.min.max(1) - 1);
        for end in (1..tokens.len()).rev() {
            let same = |(a, b): &(&u32, &u32)| a == b;
            let suffix = tokens.iter().rev().take(self.max);
            let len = tokens[..end].iter().rev().zip(suffix).take_while(same).count();
            if len > best_len {
                (best, best_len) = (end, len);
                if len >= self.max {
                    break;
                }
            }
        }
        match best {
            0 => Vec::new(),
            // Where the text repeats itself, the guess runs into its own end and goes on from its beginning.
            end => (0..n).map(|i| tokens[end + i % (tokens.len() - end)]).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(tokens: &[u32], n: usize) -> Vec<u32> {
        Ngram::default().guess(tokens, n)
    }

    #[test]
    fn what_followed_the_last_tokens_is_guessed() {
        assert_eq!(guess(&[1, 2, 3, 4, 5, 1, 2], 3), [3, 4, 5]);
        assert_eq!(guess(&[1, 2, 3, 9, 1, 2, 4, 9, 1, 2], 1), [4], "the latest of equal places");
        assert_eq!(guess(&[7, 1, 2, 3, 9, 8, 1, 2, 4, 9, 7, 1, 2], 1), [3], "but more tokens in common win");
        assert_eq!(guess(&[1, 2, 3, 4, 2], 3), [0u32; 0], "one token in common is not enough");
        assert_eq!(guess(&[1], 3), [0u32; 0]);
        assert_eq!(guess(&[], 3), [0u32; 0]);
    }

    #[test]
    fn a_repetition_goes_on() {
        assert_eq!(guess(&[5, 1, 2, 3, 1, 2, 3, 1, 2, 3], 7), [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(guess(&[4, 4, 4], 4), [4, 4, 4, 4]);
    }
}
