//! A step's batch where kernels can read it: one copy to the device per step.

use super::buffer::Buffer;
use super::driver::{DevicePtr, Driver};
use super::sample::StagedSamplers;
use crate::sampling::Samplers;
use crate::{Batch, BatchLimits, HostBatch, Result};
use std::sync::Arc;

/// A staged batch. Its arrays keep their places, so that recorded graphs read each step's.
pub struct StagedBatch {
    host: HostBatch,
    limits: BatchLimits,
    /// All arrays as they lie on the device.
    words: Vec<u32>,
    device: Buffer,
    /// The token that was chosen last from each row of logits.
    chosen: Buffer,
    samplers: StagedSamplers,
    driver: Arc<dyn Driver>,
}

/// In place of a row of the last choices: the token is in the batch itself.
const NONE: u32 = u32::MAX;

impl StagedBatch {
    pub(super) fn new(driver: &Arc<dyn Driver>, limits: BatchLimits) -> Result<Self> {
        let len = 4 * limits.n_tokens + limits.n_logits + limits.n_seqs + 1 + limits.n_blocks;
        let device = Buffer::new(driver, 4 * len.max(1), "a batch")?;
        let chosen = Buffer::new(driver, 4 * limits.n_logits.max(1), "chosen tokens")?;
        Ok(Self {
            host: HostBatch::new(limits),
            limits,
            words: vec![0; len],
            device,
            chosen,
            samplers: StagedSamplers::new(driver, limits.n_logits)?,
            driver: driver.clone(),
        })
    }

    pub(super) fn set_samplers(&mut self, samplers: &Samplers) -> Result<()> {
        assert_eq!(samplers.rows.len(), self.n_logits());
        self.samplers.set(&self.driver, samplers)
    }

    /// How the rows of logits are sampled.
    pub(super) fn samplers(&self) -> &StagedSamplers {
        &self.samplers
    }

    pub(super) fn set(&mut self, batch: &Batch) -> Result<()> {
        self.host.set(batch)?;
        let BatchLimits { n_tokens, n_logits, n_seqs, .. } = self.limits;
        let (tokens, rest) = self.words.split_at_mut(n_tokens);
        let (sources, rest) = rest.split_at_mut(n_tokens);
        let (positions, rest) = rest.split_at_mut(n_tokens);
        let (table_starts, rest) = rest.split_at_mut(n_tokens);
        let (logit_tokens, rest) = rest.split_at_mut(n_logits);
        let (seq_starts, tables) = rest.split_at_mut(n_seqs + 1);
        fn put(to: &mut [u32], from: &[u32]) {
            to[..from.len()].copy_from_slice(from);
        }
        put(tokens, self.host.tokens());
        sources.fill(NONE);
        for &(token, row) in &batch.deferred {
            assert!(row < n_logits, "the choice of row {row} of {n_logits}");
            sources[token] = row as u32;
        }
        put(positions, self.host.positions());
        put(logit_tokens, self.host.logit_tokens());
        put(tables, &batch.block_tables);
        for (i, s) in self.host.seqs().iter().enumerate() {
            seq_starts[i] = s.tokens.start as u32;
            seq_starts[i + 1] = s.tokens.end as u32;
            table_starts[s.tokens.clone()].fill(s.blocks.start as u32);
        }
        let used = 4 * n_tokens + n_logits + n_seqs + 1 + batch.block_tables.len();
        self.device.write(0, bytemuck::cast_slice(&self.words[..used]))
    }

    /// Tokens of the step.
    pub(super) fn n_tokens(&self) -> usize {
        self.host.tokens().len()
    }

    /// Whether every sequence brings one token.
    pub(super) fn is_decode(&self) -> bool {
        self.host.seqs().iter().all(|s| s.tokens.len() == 1)
    }

    /// Rows of logits of the step.
    pub(super) fn n_logits(&self) -> usize {
        self.host.logit_tokens().len()
    }

    fn array(&self, index: usize) -> DevicePtr {
        self.device.ptr().offset(4 * index)
    }

    /// Token ids, [n_tokens].
    pub(super) fn tokens(&self) -> DevicePtr {
        self.array(0)
    }

    /// For each token `NONE` or the row of the last choices that it comes from, [n_tokens].
    pub(super) fn sources(&self) -> DevicePtr {
        self.array(self.limits.n_tokens)
    }

    /// The tokens that were chosen last, [n_logits].
    pub(super) fn chosen(&self) -> DevicePtr {
        self.chosen.ptr()
    }

    /// Positions in their sequences, [n_tokens].
    pub(super) fn positions(&self) -> DevicePtr {
        self.array(2 * self.limits.n_tokens)
    }

    /// Where each token's block table begins, [n_tokens].
    pub(super) fn table_starts(&self) -> DevicePtr {
        self.array(3 * self.limits.n_tokens)
    }

    /// Tokens that yield logits, [n_logits].
    pub(super) fn logit_tokens(&self) -> DevicePtr {
        self.array(4 * self.limits.n_tokens)
    }

    /// Block tables of all sequences, one after the other.
    pub(super) fn block_tables(&self) -> DevicePtr {
        self.array(4 * self.limits.n_tokens + self.limits.n_logits + self.limits.n_seqs + 1)
    }

    /// First token of each sequence and after these the number of tokens, [n_seqs + 1].
    pub(super) fn seq_starts(&self) -> DevicePtr {
        self.array(4 * self.limits.n_tokens + self.limits.n_logits)
    }

    /// Sequences of the step.
    pub(super) fn n_seqs(&self) -> usize {
        self.host.seqs().len()
    }

    /// Tokens of each sequence in the step.
    pub(super) fn seq_lens(&self) -> impl Iterator<Item = usize> {
        self.host.seqs().iter().map(|s| s.tokens.len())
    }
}
