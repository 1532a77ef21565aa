//! A step's batch where kernels can read it: one copy to the device per step.

mod samplers;
mod splits;

pub(in crate::cuda) use splits::{HEADS_OF_BLOCK, KEYS_OF_TILE, MAX_SPLITS, head_blocks};

use super::driver::{Buffer, Cuda, DevicePtr, Driver, Mode, PinnedReadback, upload};
use crate::sampling::Samplers;
use crate::{Batch, BatchLimits, CacheShape, HostBatch, PreviousRow, Result};
use samplers::StagedSamplers;
use splits::{Seen, Splitter};
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
    splitter: Splitter,
    /// Words before the other arrays: the table of splits, of steps that have one.
    n_split_words: usize,
    driver: Arc<dyn Driver>,
}

/// A table of splits.
pub(in crate::cuda) struct Splits {
    /// [len], of which the last may be zeros.
    pub(in crate::cuda) table: DevicePtr,
    pub(in crate::cuda) len: usize,
    /// Blocks that share them.
    pub(in crate::cuda) n_blocks: usize,
}

/// In place of a row of the last choices: the token is in the batch itself.
const NONE: u32 = u32::MAX;
/// Marks a row of the same step among those of the step before.
const HERE: u32 = 1 << 31;
/// Words of an address.
const ADDRESS: usize = 2;
/// Words for where a sequence's state comes from and goes to.
const STATE: usize = 3;
/// Words of a write of a state: tokens before it, and the slot.
const WRITE: usize = 2;

impl StagedBatch {
    pub(in crate::cuda) fn new(
        driver: &Arc<dyn Driver>,
        limits: BatchLimits,
        cache: CacheShape,
    ) -> Result<Self> {
        // A step writes no slot twice.
        let states = if cache.n_slots > 0 { STATE * limits.n_seqs + WRITE * cache.n_slots } else { 0 };
        let per_token = 4 + usize::from(cache.n_token_types > 0) + usize::from(cache.drafts);
        let splitter = Splitter::new(driver.n_multiprocessors() as usize, cache.heads, limits.n_seqs);
        let len = splitter.n_words(limits.n_seqs)
            + ADDRESS
            + per_token * limits.n_tokens
            + limits.n_logits
            + limits.n_seqs
            + 1
            + states
            + limits.n_blocks;
        let device = Buffer::new(driver, 4 * len, "a batch")?;
        let chosen = Buffer::new(driver, 4 * limits.n_logits.max(1), "chosen tokens")?;
        // More only where sequences share the blocks of long histories.
        let n_history = cache.block_size * limits.n_blocks.min(cache.n_blocks);
        Ok(Self {
            host: HostBatch::new(limits, cache),
            words: Vec::with_capacity(len),
            device,
            chosen,
            readback: None,
            samplers: StagedSamplers::new(driver, limits.n_logits, n_history)?,
            splitter,
            n_split_words: 0,
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
        if cuda.mode == Mode::Fast && self.host.seqs().iter().all(|s| s.tokens.len() == 1) {
            let seen = self.host.seqs().iter().zip(self.host.positions()).map(|(seq, position)| Seen {
                n_positions: *position as usize + 1,
                table_start: seq.blocks.start,
            });
            self.splitter.push(words, seen);
        }
        self.n_split_words = words.len();
        words.extend([address as u32, (address >> 32) as u32]);
        words.extend(self.host.tokens());
        words.resize(words.len() + n, NONE);
        for &(token, row) in &batch.deferred {
            words[self.n_split_words + ADDRESS + n + token] = row as u32;
        }
        words.extend(self.host.positions());
        for s in self.host.seqs() {
            words.resize(words.len() + s.tokens.len(), s.blocks.start as u32);
        }
        words.extend(self.host.logit_tokens());
        words.extend(self.host.seqs().iter().map(|s| s.tokens.start as u32));
        words.push(n as u32);
        words.extend(self.host.token_types());
        words.extend(self.host.previous().map(|previous| match previous {
            PreviousRow::Unknown => NONE,
            PreviousRow::Before(row) => row,
            PreviousRow::Here(row) => HERE | row,
        }));
        let states = self.host.states();
        let first_write = words.len() - self.n_split_words + STATE * states.len() + batch.block_tables.len();
        for state in states {
            let word = |write: usize| (first_write + WRITE * write) as u32;
            words.extend([state.from.unwrap_or(NONE), word(state.writes.start), word(state.writes.end)]);
        }
        words.extend(&batch.block_tables);
        words.extend(batch.state_writes.iter().flat_map(|w| [w.n_tokens as u32, w.slot]));
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

    /// How decode attention shares out positions: of steps of one token per sequence in the fast mode, of a model with attention over all
    /// positions.
    pub(in crate::cuda) fn splits(&self) -> Option<Splits> {
        let n_tokens = self.n_tokens();
        (self.n_split_words > 0).then(|| Splits {
            table: self.device.ptr(),
            len: self.splitter.capacity(n_tokens),
            n_blocks: self.splitter.n_blocks(n_tokens),
        })
    }

    fn array(&self, index: usize) -> DevicePtr {
        self.device.ptr().offset(4 * (self.n_split_words + index))
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

    /// Types of the tokens, [n_token_types].
    pub(in crate::cuda) fn token_types(&self) -> DevicePtr {
        self.array(ADDRESS + 4 * self.n_tokens() + self.n_logits() + self.n_seqs() + 1)
    }

    /// Tokens with a type: all, or none of a model without token types.
    pub(in crate::cuda) fn n_token_types(&self) -> usize {
        self.host.token_types().len()
    }

    /// Where recurrent states come from and go to, [n_states, 3]: the slot or `NONE`, and which of [`StagedBatch::words`] tell what is
    /// written, the first and that after the last. A write is two words, tokens of the sequence in the step and the slot that is written
    /// after them.
    pub(in crate::cuda) fn states(&self) -> DevicePtr {
        self.previous().offset(size_of::<u32>() * self.n_previous())
    }

    /// Where the row of the token before each is: a row of the step before, [`HERE`] and a row of this one, or [`NONE`]; [n_previous].
    pub(in crate::cuda) fn previous(&self) -> DevicePtr {
        self.token_types().offset(size_of::<u32>() * self.n_token_types())
    }

    /// Tokens of which that is known: all, or none of a model without a drafting layer.
    pub(in crate::cuda) fn n_previous(&self) -> usize {
        if self.host.drafts() { self.n_tokens() } else { 0 }
    }

    /// All arrays.
    pub(in crate::cuda) fn words(&self) -> DevicePtr {
        self.array(0)
    }

    /// Block tables of all sequences, one after the other.
    pub(in crate::cuda) fn block_tables(&self) -> DevicePtr {
        self.states().offset(size_of::<u32>() * STATE * self.n_states())
    }

    /// Sequences with recurrent state: all, or none without recurrent layers.
    pub(in crate::cuda) fn n_states(&self) -> usize {
        self.host.states().len()
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
