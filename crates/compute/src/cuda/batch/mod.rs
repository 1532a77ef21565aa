//! A step's batch where kernels can read it: one copy to the device per step.

mod samplers;

use super::driver::{Buffer, Cuda, DevicePtr, Driver, PinnedReadback, upload};
use crate::sampling::Samplers;
use crate::{Batch, BatchLimits, CacheShape, HostBatch, Result};
use samplers::StagedSamplers;
use std::sync::Arc;

/// A staged batch. Where its arrays begin follows from the numbers of tokens, sequences and rows of logits, so that recorded graphs, which
/// are told apart by these, read each step's.
pub struct StagedBatch {
    host: HostBatch,
    /// All arrays as they lie on the device.
    words: Vec<u32>,
    device: Buffer,
    /// The token that was chosen last from each row of logits.
    chosen: Buffer,
    /// Where the host will read them, until somebody asks for that.
    readback: Option<PinnedReadback>,
    samplers: StagedSamplers,
    driver: Arc<dyn Driver>,
}

/// In place of a row of the last choices: the token is in the batch itself.
const NONE: u32 = u32::MAX;
/// Words of an address.
const ADDRESS: usize = 2;

impl StagedBatch {
    pub(in crate::cuda) fn new(
        driver: &Arc<dyn Driver>,
        limits: BatchLimits,
        cache: CacheShape,
    ) -> Result<Self> {
        let len = ADDRESS + 4 * limits.n_tokens + limits.n_logits + limits.n_seqs + 1 + limits.n_blocks;
        let device = Buffer::new(driver, 4 * len, "a batch")?;
        let chosen = Buffer::new(driver, 4 * limits.n_logits.max(1), "chosen tokens")?;
        Ok(Self {
            host: HostBatch::new(limits, cache),
            words: Vec::with_capacity(len),
            device,
            chosen,
            readback: None,
            samplers: StagedSamplers::new(driver, limits.n_logits)?,
            driver: driver.clone(),
        })
    }

    pub(in crate::cuda) fn set_samplers(&mut self, cuda: &Cuda, samplers: &Samplers) -> Result<()> {
        assert_eq!(samplers.rows.len(), self.n_logits());
        self.samplers.set(cuda, samplers)
    }

    /// How the rows of logits are sampled.
    pub(in crate::cuda) fn samplers(&self) -> &StagedSamplers {
        &self.samplers
    }

    pub(in crate::cuda) fn set(&mut self, cuda: &Cuda, batch: &Batch) -> Result<()> {
        self.host.set(batch)?;
        let readback = match self.readback.take() {
            Some(readback) => readback,
            None => self.driver.claim_readback(self.chosen.bytes())?,
        };
        let address = readback.ptr.0;
        self.readback = Some(readback);
        let (words, n) = (&mut self.words, batch.tokens.len());
        words.clear();
        words.extend([address as u32, (address >> 32) as u32]);
        words.extend(self.host.tokens());
        words.resize(words.len() + n, NONE);
        for &(token, row) in &batch.deferred {
            words[ADDRESS + n + token] = row as u32;
        }
        words.extend(self.host.positions());
        for s in self.host.seqs() {
            words.resize(words.len() + s.tokens.len(), s.blocks.start as u32);
        }
        words.extend(self.host.logit_tokens());
        words.extend(self.host.seqs().iter().map(|s| s.tokens.start as u32));
        words.push(n as u32);
        words.extend(&batch.block_tables);
        upload(cuda, &mut self.device, words)
    }

    /// Where the host reads what is chosen, once.
    pub(in crate::cuda) fn take_readback(&mut self) -> PinnedReadback {
        self.readback.take().expect("choices are fetched once after a batch was staged")
    }

    /// Tokens of the step.
    pub(in crate::cuda) fn n_tokens(&self) -> usize {
        self.host.tokens().len()
    }

    /// Whether every sequence brings one token.
    pub(in crate::cuda) fn is_decode(&self) -> bool {
        self.host.seqs().iter().all(|s| s.tokens.len() == 1)
    }

    /// Rows of logits of the step.
    pub(in crate::cuda) fn n_logits(&self) -> usize {
        self.host.logit_tokens().len()
    }

    fn array(&self, index: usize) -> DevicePtr {
        self.device.ptr().offset(4 * index)
    }

    /// Where the address lies at which the host reads what is chosen.
    pub(in crate::cuda) fn readback(&self) -> DevicePtr {
        self.array(0)
    }

    /// Token ids, [n_tokens].
    pub(in crate::cuda) fn tokens(&self) -> DevicePtr {
        self.array(ADDRESS)
    }

    /// For each token `NONE` or the row of the last choices that it comes from, [n_tokens].
    pub(in crate::cuda) fn sources(&self) -> DevicePtr {
        self.array(ADDRESS + self.n_tokens())
    }

    /// The tokens that were chosen last, [n_logits].
    pub(in crate::cuda) fn chosen(&self) -> DevicePtr {
        self.chosen.ptr()
    }

    /// Positions in their sequences, [n_tokens].
    pub(in crate::cuda) fn positions(&self) -> DevicePtr {
        self.array(ADDRESS + 2 * self.n_tokens())
    }

    /// Where each token's block table begins, [n_tokens].
    pub(in crate::cuda) fn table_starts(&self) -> DevicePtr {
        self.array(ADDRESS + 3 * self.n_tokens())
    }

    /// Tokens that yield logits, [n_logits].
    pub(in crate::cuda) fn logit_tokens(&self) -> DevicePtr {
        self.array(ADDRESS + 4 * self.n_tokens())
    }

    /// First token of each sequence and after these the number of tokens, [n_seqs + 1].
    pub(in crate::cuda) fn seq_starts(&self) -> DevicePtr {
        self.array(ADDRESS + 4 * self.n_tokens() + self.n_logits())
    }

    /// Block tables of all sequences, one after the other.
    pub(in crate::cuda) fn block_tables(&self) -> DevicePtr {
        self.array(ADDRESS + 4 * self.n_tokens() + self.n_logits() + self.n_seqs() + 1)
    }

    /// Sequences of the step.
    pub(in crate::cuda) fn n_seqs(&self) -> usize {
        self.host.seqs().len()
    }

    /// Tokens of each sequence in the step.
    pub(in crate::cuda) fn seq_lens(&self) -> impl Iterator<Item = usize> {
        self.host.seqs().iter().map(|s| s.tokens.len())
    }
}
