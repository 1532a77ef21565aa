//! One step's work as plain data: a ragged batch of sequences.
//!
//! Prefill, a chunk of a prefill and decode differ only in how many tokens a sequence brings. The scheduler decides every length
//! once and writes it here; nothing downstream derives it again.

use crate::sampling::{self, Samplers};
use crate::{Chosen, Error, Result};
use std::ops::Range;

/// The part of one sequence that a step computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSeq {
    /// Its slice of [`Batch::tokens`].
    pub tokens: Range<usize>,
    /// Position of the first of them. The sequence's cache holds `start + tokens.len()` tokens after the step.
    pub start: usize,
    /// Its slice of [`Batch::block_tables`], covering at least all positions up to the end of the step.
    pub blocks: Range<usize>,
    /// For how many of its last tokens the step yields logits: 0 for a chunk that is not the last, 1 to continue, more to verify
    /// drafts or to score a text.
    pub n_logits: usize,
}

/// One step's tokens, positions and block tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Token ids of all sequences, one after the other.
    pub tokens: Vec<u32>,
    /// Tokens that the previous step sampled and the host has not seen: `(index into tokens, row of the previous step's logits)`.
    pub deferred: Vec<(usize, usize)>,
    /// The sequences, in the order of their tokens.
    pub seqs: Vec<BatchSeq>,
    /// Numbers of cache blocks: entry `i` of a sequence's table holds its positions `i * block_size ..`.
    pub block_tables: Vec<u32>,
}

impl Batch {
    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.deferred.clear();
        self.seqs.clear();
        self.block_tables.clear();
    }

    /// Appends a sequence's part of the step.
    pub fn push(&mut self, tokens: &[u32], start: usize, blocks: &[u32], n_logits: usize) {
        let (t, b) = (self.tokens.len(), self.block_tables.len());
        self.tokens.extend_from_slice(tokens);
        self.block_tables.extend_from_slice(blocks);
        self.seqs.push(BatchSeq {
            tokens: t..self.tokens.len(),
            start,
            blocks: b..self.block_tables.len(),
            n_logits,
        });
    }

    /// Rows of logits that the step yields, over all sequences in order.
    pub fn n_logits(&self) -> usize {
        self.seqs.iter().map(|s| s.n_logits).sum()
    }
}

/// The largest batch that a set of buffers can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Tokens of all sequences together.
    pub n_tokens: usize,
    /// Sequences.
    pub n_seqs: usize,
    /// Entries of all block tables together.
    pub n_blocks: usize,
    /// Rows of logits.
    pub n_logits: usize,
}

impl BatchLimits {
    /// Errors: [`Error::BatchTooLarge`] naming the first limit that `batch` exceeds.
    pub fn check(&self, batch: &Batch) -> Result<()> {
        for (what, found, limit) in [
            ("tokens", batch.tokens.len(), self.n_tokens),
            ("sequences", batch.seqs.len(), self.n_seqs),
            ("block table entries", batch.block_tables.len(), self.n_blocks),
            ("logits", batch.n_logits(), self.n_logits),
        ] {
            if found > limit {
                return Err(Error::BatchTooLarge { what, found, limit });
            }
        }
        Ok(())
    }
}

/// A [`Batch`] with what every layer needs of it written out per token; the staged form of backends that compute on the host.
#[derive(Clone, Debug)]
pub struct HostBatch {
    limits: BatchLimits,
    batch: Batch,
    positions: Vec<u32>,
    seq_of_token: Vec<u32>,
    logit_tokens: Vec<u32>,
    chosen: Vec<Chosen>,
    samplers: Samplers,
}

impl HostBatch {
    /// Room for a batch within `limits`.
    pub fn new(limits: BatchLimits) -> Self {
        Self {
            limits,
            batch: Batch {
                tokens: Vec::with_capacity(limits.n_tokens),
                deferred: Vec::with_capacity(limits.n_seqs),
                seqs: Vec::with_capacity(limits.n_seqs),
                block_tables: Vec::with_capacity(limits.n_blocks),
            },
            positions: Vec::with_capacity(limits.n_tokens),
            seq_of_token: Vec::with_capacity(limits.n_tokens),
            logit_tokens: Vec::with_capacity(limits.n_logits),
            chosen: Vec::with_capacity(limits.n_logits),
            samplers: Samplers::default(),
        }
    }

    /// Takes over a step.
    pub fn set(&mut self, batch: &Batch) -> Result<()> {
        self.limits.check(batch)?;
        self.batch.clone_from(batch);
        self.positions.clear();
        self.seq_of_token.clear();
        self.logit_tokens.clear();
        for (i, s) in batch.seqs.iter().enumerate() {
            assert!(s.n_logits <= s.tokens.len(), "{} logits of {} tokens", s.n_logits, s.tokens.len());
            for t in s.tokens.clone() {
                self.positions.push((s.start + t - s.tokens.start) as u32);
                self.seq_of_token.push(i as u32);
            }
            self.logit_tokens.extend((s.tokens.end - s.n_logits..s.tokens.end).map(|t| t as u32));
        }
        assert_eq!(self.positions.len(), batch.tokens.len(), "the sequences cover all tokens, in order");
        Ok(())
    }

    /// Puts in the deferred tokens, which were chosen last; where none could be, token 0.
    pub fn set_deferred(&mut self) {
        for &(token, row) in &self.batch.deferred {
            self.batch.tokens[token] = self.chosen[row].token_or_zero();
        }
    }

    /// Keeps the choice from each row of logits.
    pub fn set_chosen(&mut self, chosen: impl Iterator<Item = Chosen>) {
        self.chosen.clear();
        self.chosen.extend(chosen);
    }

    /// Keeps how to choose.
    pub fn set_samplers(&mut self, samplers: &Samplers) {
        self.samplers.clone_from(samplers);
    }

    /// Chooses from rows of logits, each `vocab_size` long, as was said last.
    pub fn sample(&mut self, logits: &[f32], vocab_size: usize) {
        let previous = std::mem::take(&mut self.chosen);
        let rows = logits.chunks_exact(vocab_size).enumerate();
        self.chosen.extend(rows.map(|(i, row)| sampling::choose(row, &self.samplers, i, &previous)));
    }

    /// What was chosen last.
    pub fn chosen(&self) -> &[Chosen] {
        &self.chosen
    }

    /// Token ids, `[n_tokens]`.
    pub fn tokens(&self) -> &[u32] {
        &self.batch.tokens
    }

    /// Positions in their sequences, `[n_tokens]`.
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// The sequences.
    pub fn seqs(&self) -> &[BatchSeq] {
        &self.batch.seqs
    }

    /// Index into [`HostBatch::seqs`] of each token's sequence, `[n_tokens]`.
    pub fn seq_of_token(&self) -> &[u32] {
        &self.seq_of_token
    }

    /// Tokens that yield logits, `[n_logits]`.
    pub fn logit_tokens(&self) -> &[u32] {
        &self.logit_tokens
    }

    /// The block table of a sequence.
    pub fn block_table(&self, seq: &BatchSeq) -> &[u32] {
        &self.batch.block_tables[seq.blocks.clone()]
    }
}
