//! A chunk of text that is computed by itself, for measurements.

use crate::{Error, Result, RunnerInfo, Step};
use std::ops::Range;

/// The tokens of a chunk, in the first blocks of a runner's cache.
pub(crate) struct Chunk {
    pub(crate) tokens: Vec<u32>,
    blocks: Vec<u32>,
    info: RunnerInfo,
}

impl Chunk {
    /// `bos` replaces the first token.
    ///
    /// Errors: `PromptTooLong` for more tokens than the runner can hold.
    pub(crate) fn new(info: RunnerInfo, tokens: &[u32], bos: Option<u32>) -> Result<Self> {
        let limit = info.max_seq_len();
        if tokens.len() > limit {
            return Err(Error::PromptTooLong {
                n_prompt: tokens.len(),
                limit,
                context_length: info.context_length,
                cache_tokens: info.cache_tokens(),
            });
        }
        let mut tokens = tokens.to_vec();
        if let (Some(bos), Some(first)) = (bos, tokens.first_mut()) {
            *first = bos;
        }
        let blocks = (0..tokens.len().div_ceil(info.block_size) as u32).collect();
        Ok(Self { tokens, blocks, info })
    }

    /// Makes `step` compute some tokens, with logits of the last `n_logits`. Its rows are left to the caller.
    pub(crate) fn fill(&self, step: &mut Step, tokens: Range<usize>, n_logits: usize) {
        step.clear();
        let blocks = &self.blocks[..tokens.end.div_ceil(self.info.block_size)];
        step.batch.push(&self.tokens[tokens.clone()], tokens.start, blocks, n_logits);
        self.info.push_state_in_place(&mut step.batch, 0);
    }
}
