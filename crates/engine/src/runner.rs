//! The seam to a model on a device: a [`Step`] goes in, a choice per row of logits comes out.
//!
//! The scheduler fills a `Step` completely, including the random number of each row, so that a runner may choose tokens wherever
//! its logits are: on the host with [`crate::sampler::Sampler`], or on the device, sending 4 bytes per token back.

use crate::{Result, SampleError, SamplingParams};
use realizar_compute::{Batch, BatchLimits, CacheShape, DType, Heads, OpTime, StateWrite};
use realizar_model::{CacheUnit, DraftFrom};
use std::ops::Range;
use std::sync::Arc;

/// Computes steps. A step may be launched before the one before was finished; steps take effect in the order of their launches.
pub trait Runner: Send {
    /// Sizes that never change.
    fn info(&self) -> RunnerInfo;

    /// Copies whole cache blocks, in effect before any step launched later. No block is both read and written by one call.
    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<()>;

    /// Begins a step; `step` may be changed as soon as this returns. Tokens listed in `step.batch.deferred` are those chosen by the
    /// step launched just before. After an error the step has no ticket and its sequences are abandoned.
    fn launch(&mut self, step: &Step) -> Result<Ticket>;

    /// Waits for a step, the oldest one not finished. After an error its sequences are abandoned; a later step that is already
    /// launched is still finished.
    fn finish(&mut self, ticket: Ticket) -> Result<Sampled>;

    /// After a step failed: waits for what is under way, and says whether steps can be computed again.
    ///
    /// Errors: the device is lost, with what it says; no step will ever succeed.
    fn recover(&mut self) -> Result<()> {
        Ok(())
    }

    /// What the bytes of cached blocks and slots mean; `None` if they cannot be read and written.
    fn cache_format(&mut self) -> Option<CacheFormat> {
        None
    }

    /// Reads a block or a slot back, after all steps that were launched. `out` has as many bytes as [`Runner::cache_format`] says.
    fn read_cache(&mut self, _unit: CacheUnit, _out: &mut [u8]) -> Result<()> {
        panic!("a runner without a cache format has no bytes to read")
    }

    /// Writes a block or a slot, as [`Runner::read_cache`] read it.
    fn write_cache(&mut self, _unit: CacheUnit, _bytes: &[u8]) -> Result<()> {
        panic!("a runner without a cache format takes no bytes")
    }

    /// Starts to record the time of each part of a step, or stops.
    fn profile(&mut self, _on: bool) {}

    /// What was recorded since this was last called; nothing by a runner that cannot tell.
    fn take_profile(&mut self) -> Vec<OpTime> {
        Vec::new()
    }
}

/// What the bytes of cached blocks and slots mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFormat {
    /// The device that computed them, as far as they depend on it.
    pub device: String,
    /// Element type of keys and values.
    pub dtype: DType,
    /// Bytes of a block in all layers.
    pub block_bytes: usize,
    /// Bytes of a slot in all layers; 0 without recurrent layers.
    pub slot_bytes: usize,
}

/// A launched step.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// What the engine must know about a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerInfo {
    /// Tokens that the model has; the length of a row of logits.
    pub vocab_size: usize,
    /// Blocks of the cache.
    pub n_blocks: usize,
    /// Tokens in a block.
    pub block_size: usize,
    /// Longest sequence that the model can read, in tokens.
    pub context_length: usize,
    /// Largest step.
    pub limits: BatchLimits,
    /// What recurrent layers need; `None` for a model without.
    pub slots: Option<SlotSizes>,
    /// Whether `launch` returns while the device computes, so that the host's work of two steps can overlap.
    pub asynchronous: bool,
    /// Whether the model has a layer that drafts tokens.
    pub drafts: bool,
}

/// The recurrent state of sequences: slots of a fixed size, each with the state of one sequence at one position, in all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSizes {
    /// Slots; at least 2, since a sequence may read one and write another.
    pub n_slots: usize,
    /// Bytes of a slot.
    pub slot_bytes: usize,
    /// Bytes of a cache block, to weigh both kinds against each other.
    pub block_bytes: usize,
    /// Bytes that blocks and slots may take together. Less than all of them where the device can use its memory for either.
    pub budget_bytes: usize,
}

impl RunnerInfo {
    /// Tokens that all blocks hold together.
    pub fn cache_tokens(&self) -> usize {
        self.n_blocks * self.block_size
    }

    /// Longest sequence: what both the model and the cache can hold, in tokens.
    pub fn max_seq_len(&self) -> usize {
        // Besides its blocks a sequence needs one slot to read and one to write.
        let blocks_in = |s: SlotSizes| s.budget_bytes.saturating_sub(2 * s.slot_bytes) / s.block_bytes.max(1);
        let n_blocks = self.slots.map_or(self.n_blocks, |s| blocks_in(s).min(self.n_blocks));
        self.context_length.min(n_blocks * self.block_size)
    }

    /// Appends to a batch that the sequence pushed last keeps its recurrent state in one slot, if the model has recurrent layers.
    pub(crate) fn push_state_in_place(&self, batch: &mut Batch, slot: u32) {
        if self.slots.is_some()
            && let Some(seq) = batch.seqs.last()
        {
            let write = StateWrite { n_tokens: seq.tokens.len(), slot };
            batch.push_state((seq.start > 0).then_some(slot), &[write]);
        }
    }

    /// What the batches of steps may name.
    pub fn cache_shape(&self) -> CacheShape {
        CacheShape {
            n_blocks: self.n_blocks,
            block_size: self.block_size,
            n_positions: self.context_length,
            n_slots: self.slots.map_or(0, |s| s.n_slots),
            n_token_types: 0,
            drafts: self.drafts,
            heads: Heads::default(),
        }
    }
}

/// A cache block to copy over another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block to overwrite.
    pub to: u32,
    /// The block to read.
    pub from: u32,
}

/// What of the model a step runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pass {
    /// The model.
    #[default]
    Model,
    /// The layer that only drafts tokens, on one token of each sequence. It changes nothing that later steps of the model depend on.
    Draft(DraftFrom),
}

/// One step's work: what to compute and what to do with each row of logits.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// What runs.
    pub pass: Pass,
    /// Tokens, positions and block tables.
    pub batch: Batch,
    /// Blocks to copy before the step; the engine passes them to [`Runner::copy_blocks`].
    pub copies: Vec<BlockCopy>,
    /// What to do with each row of logits, in the order of the batch's sequences.
    pub rows: Vec<Row>,
    /// Tokens that penalties look at; rows hold ranges of it.
    pub history: Vec<u32>,
    /// Bits of allowed tokens, `vocab_size` rounded up to words; rows hold ranges of it.
    pub masks: Vec<u32>,
}

/// What to do with one row of logits.
#[derive(Clone, Debug)]
pub struct Row {
    /// `Some`: the token is given and only its log-probability is wanted. `None`: choose one.
    pub given: Option<u32>,
    /// How to choose.
    pub params: Arc<SamplingParams>,
    /// The random number to choose with, uniform in 0..1. A function of the seed and the position, so that a sequence gets the same
    /// tokens whatever shares its steps, and again when it is recomputed.
    pub uniform: f64,
    /// Range of [`Step::history`]: the prompt's tokens that count for penalties.
    pub prompt: Range<usize>,
    /// Range of [`Step::history`]: the generated tokens that count for penalties.
    pub generated: Range<usize>,
    /// Row of the step before whose token comes after `generated` and was not known when this step was made.
    pub unseen: Option<usize>,
    /// Range of [`Step::masks`]: tokens that are allowed; `None` allows all.
    pub mask: Option<Range<usize>>,
    /// Log-probabilities wanted: of the token and of this many of the likeliest.
    pub n_logprobs: Option<usize>,
}

impl Row {
    /// Chooses a token, with no history to penalize.
    pub fn choose(params: Arc<SamplingParams>) -> Self {
        Self {
            given: None,
            params,
            uniform: 0.0,
            prompt: 0..0,
            generated: 0..0,
            unseen: None,
            mask: None,
            n_logprobs: None,
        }
    }

    /// Reports the log-probability of a given token.
    pub fn score(token: u32, params: Arc<SamplingParams>) -> Self {
        Self { given: Some(token), n_logprobs: Some(0), ..Self::choose(params) }
    }
}

impl Step {
    /// Empties the step and keeps its memory.
    pub fn clear(&mut self) {
        self.pass = Pass::Model;
        self.batch.clear();
        self.copies.clear();
        self.rows.clear();
        self.history.clear();
        self.masks.clear();
    }
}

/// The token of one row of logits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Chosen or given.
    pub token: u32,
    /// Natural logarithm of its probability under the model, before any sampling step; if asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens, likeliest first, ties by the lower id; if asked for.
    pub top_logprobs: Vec<(u32, f32)>,
    /// Logarithm of the sum of the exponentials of all logits, which is a logit less its log-probability; if asked for.
    pub log_sum_exp: Option<f32>,
}

/// The outcome of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    /// One per row of logits, in order.
    pub rows: Vec<std::result::Result<Choice, SampleError>>,
}

/// Sizes of a [`ModelRunner`](crate::model_runner::ModelRunner)'s buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerSizes {
    /// Blocks of the cache.
    pub n_blocks: usize,
    /// Tokens in a block.
    pub block_size: usize,
    /// Slots of recurrent state; `None` for a model without recurrent layers.
    pub slots: Option<SlotSizes>,
    /// Element type of the cache.
    pub kv_type: DType,
    /// Longest sequence, in tokens.
    pub context_length: usize,
    /// Tokens of a step.
    pub step_tokens: usize,
    /// Sequences of a step.
    pub max_seqs: usize,
    /// Rows of logits of a step.
    pub max_logits: usize,
}
