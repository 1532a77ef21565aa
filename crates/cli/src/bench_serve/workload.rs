//! What is sent: lengths and arrival times, by a trace or by numbers, and prompts of exactly those lengths.

use super::trace::TraceRow;
use anyhow::{Result, bail, ensure};
use std::time::Duration;

/// One request to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Planned {
    /// When it is due, after the start; zero where requests wait for each other instead.
    pub(super) at: Duration,
    /// Of the prompt, in tokens.
    pub(super) prompt_tokens: usize,
    /// To generate.
    pub(super) output_tokens: usize,
}

/// The factor for lengths by which the longest request just fits `limit` tokens; 1 if it fits as it is.
pub(super) fn fitting_scale(rows: &[TraceRow], limit: usize) -> f64 {
    let longest = rows.iter().map(|r| r.prompt_tokens + r.output_tokens).max().unwrap_or(0);
    if longest <= limit { 1.0 } else { limit as f64 / longest as f64 }
}

/// The trace with lengths and times multiplied. A prompt and an answer keep at least one token.
///
/// Errors: a request does not fit `limit` tokens.
pub(super) fn scale(
    rows: &[TraceRow],
    length_scale: f64,
    time_scale: f64,
    limit: Option<usize>,
) -> Result<Vec<Planned>> {
    // Rounded down, so that what fits unrounded fits.
    let length = |n: usize| ((n as f64 * length_scale) as usize).max(1);
    let planned = rows.iter().enumerate().map(|(i, row)| {
        let (prompt_tokens, output_tokens) = (length(row.prompt_tokens), length(row.output_tokens));
        if let Some(limit) = limit.filter(|&limit| prompt_tokens.saturating_add(output_tokens) > limit) {
            bail!(
                "request {} of the trace has {prompt_tokens} + {output_tokens} tokens by --length-scale {length_scale}, \
                 but the server's context has {limit}; without --length-scale all are made to fit",
                i + 1
            );
        }
        let at = Duration::try_from_secs_f64(row.at.as_secs_f64() * time_scale)?;
        Ok(Planned { at, prompt_tokens, output_tokens })
    });
    planned.collect()
}

/// `n` equal requests.
///
/// Errors: they do not fit `limit` tokens.
pub(super) fn uniform(
    n: usize,
    prompt_tokens: usize,
    output_tokens: usize,
    limit: Option<usize>,
) -> Result<Vec<Planned>> {
    if let Some(limit) = limit {
        ensure!(
            prompt_tokens.saturating_add(output_tokens) <= limit,
            "--prompt-tokens {prompt_tokens} and --max-tokens {output_tokens} do not fit the server's context of {limit} tokens"
        );
    }
    Ok(vec![Planned { at: Duration::ZERO, prompt_tokens, output_tokens }; n])
}

/// Numbers without a pattern, the same for the same seed (SplitMix64, Steele et al. 2014).
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is not 0. The tiny bias of a remainder does not matter here.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A text of made-up words, from which a tokenizer makes many different tokens.
    pub(super) fn words(&mut self, n: usize) -> String {
        const ONSETS: [&str; 16] =
            ["b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "v", "st", "tr"];
        const NUCLEI: [&str; 8] = ["a", "e", "i", "o", "u", "ea", "ou", "y"];
        const CODAS: [&str; 8] = ["", "n", "r", "s", "t", "ll", "ng", "ck"];
        let mut text = String::new();
        for _ in 0..n {
            for _ in 0..=self.below(3) {
                text += ONSETS[self.below(ONSETS.len())];
                text += NUCLEI[self.below(NUCLEI.len())];
                text += CODAS[self.below(CODAS.len())];
            }
            text.push(' ');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<TraceRow> {
        let row = |at, prompt_tokens, output_tokens| TraceRow {
            at: Duration::from_secs(at),
            prompt_tokens,
            output_tokens,
        };
        vec![row(0, 3000, 1000), row(2, 1, 2), row(10, 500, 0)]
    }

    #[test]
    fn a_fitted_trace_fits() {
        for limit in [10, 1000, 1024, 3999] {
            let scale_by = fitting_scale(&rows(), limit);
            let planned = scale(&rows(), scale_by, 0.5, Some(limit)).expect("it fits");
            let longest = planned[0].prompt_tokens + planned[0].output_tokens;
            assert!(longest <= limit && longest + 2 >= limit, "{longest} of {limit}");
            assert!(planned.iter().all(|p| p.prompt_tokens > 0 && p.output_tokens > 0));
            assert_eq!(planned[2].at, Duration::from_secs(5));
        }
        assert_eq!(fitting_scale(&rows(), 4000), 1.0);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_both_numbers() {
        let error = scale(&rows(), 1.0, 1.0, Some(1024)).expect_err("too long").to_string();
        assert!(
            error.contains("request 1") && error.contains("3000 + 1000") && error.contains("1024"),
            "{error}"
        );
        assert!(uniform(3, 1000, 25, Some(1024)).is_err());
        assert_eq!(uniform(3, 1000, 24, Some(1024)).expect("it fits").len(), 3);
        assert!(uniform(1, usize::MAX, 1, Some(1024)).is_err());
    }

    #[test]
    fn the_same_seed_gives_the_same_words() {
        assert_eq!(Random(1).words(50), Random(1).words(50));
        assert_ne!(Random(1).words(50), Random(2).words(50));
        assert_eq!(Random(1).words(50).split(' ').filter(|w| !w.is_empty()).count(), 50);
    }
}
