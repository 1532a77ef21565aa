//! Perplexity of a text, windowed as llama.cpp's `llama-perplexity` does it, so that figures compare.
//!
//! The text is cut into chunks of `n_ctx` tokens that know nothing of each other; where the model wants a beginning-of-sequence token it
//! replaces each chunk's first. The second half of a chunk is scored: every token there has at least `n_ctx / 2` tokens before it.

use crate::chunk::Chunk;
use crate::{Result, Row, Runner, SamplingParams, Step};
use std::sync::Arc;

/// Sum over the scored tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Tokens scored.
    pub n_tokens: usize,
    /// Sum of their negative log-likelihoods, in nats.
    pub nll: f64,
    /// Sum of the squares, for the error of the mean.
    pub nll_squared: f64,
}

impl Score {
    /// `exp` of the mean negative log-likelihood.
    pub fn perplexity(&self) -> f64 {
        (self.nll / self.n_tokens as f64).exp()
    }

    /// Standard error of [`Score::perplexity`].
    pub fn standard_error(&self) -> f64 {
        let n = self.n_tokens as f64;
        let mean = self.nll / n;
        let variance = (self.nll_squared / n - mean * mean).max(0.0);
        (variance / (n - 1.0).max(1.0)).sqrt() * self.perplexity()
    }

    fn add(&mut self, nll: f64) {
        self.n_tokens += 1;
        self.nll += nll;
        self.nll_squared += nll * nll;
    }
}

/// Number of chunks in a text of `n_tokens`.
pub fn n_chunks(n_tokens: usize, n_ctx: usize) -> usize {
    n_tokens / n_ctx.max(1)
}

/// Scores one chunk of `n_ctx` tokens on a runner whose cache holds at least as many, and adds it to `score`.
///
/// `bos` replaces the chunk's first token. Steps are as large as the runner's limits on tokens and rows of logits allow.
pub fn score_chunk(
    runner: &mut dyn Runner,
    chunk: &[u32],
    bos: Option<u32>,
    score: &mut Score,
) -> Result<()> {
    let info = runner.info();
    let chunk = Chunk::new(info, chunk, bos)?;
    let tokens = &chunk.tokens;
    // Row `i` predicts token `i + 1`; the last token predicts nothing that is known.
    let scored = tokens.len() / 2..tokens.len().saturating_sub(1);
    let params = Arc::new(SamplingParams::greedy());
    let mut step = Step::default();
    let mut start = 0;
    while start < scored.end {
        // Rows of logits are few compared with tokens, so a step ends at whichever limit comes first.
        let mut end = tokens.len().min(start + info.limits.n_tokens);
        let first_row = scored.start.clamp(start, end);
        end = end.min(first_row + info.limits.n_logits).min(scored.end);
        chunk.fill(&mut step, start..end, end - first_row.min(end));
        step.rows.extend((first_row..end).map(|i| Row::score(tokens[i + 1], params.clone())));
        let ticket = runner.launch(&step)?;
        for row in runner.finish(ticket)?.rows {
            let logprob = row?.logprob.expect("a scoring row asks for its log-probability");
            score.add(-f64::from(logprob));
        }
        start = end;
    }
    Ok(())
}
