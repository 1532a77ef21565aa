//! One step's work as plain data: a ragged batch of sequences.
//!
//! Prefill, a chunk of a prefill and decode differ only in how many tokens a sequence brings. The scheduler decides every length
//! once and writes it here; nothing downstream derives it again.

use crate::sampling::{self, Samplers};
use crate::{Chosen, Error, Heads, Result};
use std::fmt;
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

/// Where a sequence's recurrent state comes from, and where the step leaves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchState {
    /// The slot with the state after the positions before the step; `None` if it starts at position 0, with a state of zeros.
    pub from: Option<u32>,
    /// Its slice of [`Batch::state_writes`].
    pub writes: Range<usize>,
}

/// A slot that receives the state of a sequence from within a step.
///
/// A step that writes to another slot than it reads leaves a snapshot behind, so that snapshots, forks and roll-backs move no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateWrite {
    /// After how many of the sequence's tokens in this step; at least 1.
    pub n_tokens: usize,
    /// The slot to overwrite.
    pub slot: u32,
}

/// One step's tokens, positions and block tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Token ids of all sequences, one after the other.
    pub tokens: Vec<u32>,
    /// The type of each token, such as which of two texts it belongs to; empty for a model without token types.
    pub token_types: Vec<u32>,
    /// Tokens that the previous step sampled and the host has not seen: `(index into tokens, row of the previous step's logits)`.
    pub deferred: Vec<(usize, usize)>,
    /// The sequences, in the order of their tokens.
    pub seqs: Vec<BatchSeq>,
    /// Numbers of cache blocks: entry `i` of a sequence's table holds its positions `i * block_size ..`.
    pub block_tables: Vec<u32>,
    /// One per sequence, in their order; empty for a model without recurrent layers.
    pub states: Vec<BatchState>,
    /// Writes of all sequences' states. Those of one sequence are in the order of `n_tokens`.
    pub state_writes: Vec<StateWrite>,
    /// Of each sequence, the row of the previous step that held the token before its first one; `None` where that step did not have it.
    /// Empty for a model without a drafting layer, and where no sequence has one.
    pub previous: Vec<Option<u32>>,
}

impl Batch {
    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.token_types.clear();
        self.deferred.clear();
        self.seqs.clear();
        self.block_tables.clear();
        self.states.clear();
        self.state_writes.clear();
        self.previous.clear();
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

    /// Appends where the recurrent state of the sequence pushed last comes from and goes to.
    pub fn push_state(&mut self, from: Option<u32>, writes: &[StateWrite]) {
        let first = self.state_writes.len();
        self.state_writes.extend_from_slice(writes);
        self.states.push(BatchState { from, writes: first..self.state_writes.len() });
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

/// What the batches of a model may name: the blocks, positions and slots that exist on its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheShape {
    /// Blocks of keys and values.
    pub n_blocks: usize,
    /// Tokens in a block.
    pub block_size: usize,
    /// Positions that a sequence may have.
    pub n_positions: usize,
    /// Slots of recurrent state; 0 for a model without recurrent layers.
    pub n_slots: usize,
    /// Types of tokens; 0 for a model without.
    pub n_token_types: usize,
    /// Whether the model has a layer that drafts tokens.
    pub drafts: bool,
    /// Heads of the attention layers that see all positions, as the backend has them; those of the layer with the fewest for keys and values
    /// where they differ, and none without such layers. Backends may share out work by them.
    pub heads: Heads,
}

/// Where [`Ops::select_previous`](crate::Ops::select_previous) finds the row of the token before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviousRow {
    /// Nowhere: it is a row of zeros.
    Unknown,
    /// In the step before, at this row.
    Before(u32),
    /// In the same step, at this row.
    Here(u32),
}

impl CacheShape {
    /// Checks the sequences of `batch`: that they cover its tokens in order, that their block tables cover their lengths and name real
    /// blocks, and that their positions exist.
    ///
    /// Errors: [`Error::InvalidBatch`] naming the first sequence that is wrong, and how.
    fn check_seqs(&self, batch: &Batch) -> Result<()> {
        let mut n_covered = 0;
        for (i, s) in batch.seqs.iter().enumerate() {
            let n = s.tokens.len();
            if s.tokens.start != n_covered || s.tokens.end < s.tokens.start {
                return invalid(format_args!(
                    "sequence {i} has tokens {:?} after {n_covered} tokens",
                    s.tokens
                ));
            }
            n_covered = s.tokens.end;
            if s.n_logits > n {
                return invalid(format_args!(
                    "sequence {i} wants {} rows of logits of {n} tokens",
                    s.n_logits
                ));
            }
            let end = s.start.saturating_add(n);
            if end > self.n_positions {
                return invalid(format_args!("sequence {i} ends at position {end} of {}", self.n_positions));
            }
            let Some(table) = batch.block_tables.get(s.blocks.clone()) else {
                let n_entries = batch.block_tables.len();
                return invalid(format_args!("sequence {i} has table entries {:?} of {n_entries}", s.blocks));
            };
            if table.len().saturating_mul(self.block_size) < end {
                let (n, size) = (table.len(), self.block_size);
                return invalid(format_args!("sequence {i} has {n} blocks of {size} for {end} positions"));
            }
            if let Some(block) = table.iter().find(|&&b| b as usize >= self.n_blocks) {
                return invalid(format_args!("sequence {i} names block {block} of {}", self.n_blocks));
            }
        }
        match n_covered == batch.tokens.len() {
            true => Ok(()),
            false => invalid(format_args!("{n_covered} of {} tokens have a sequence", batch.tokens.len())),
        }
    }

    /// Checks that every token has one of the types that exist.
    ///
    /// Errors: [`Error::InvalidBatch`].
    fn check_token_types(&self, batch: &Batch) -> Result<()> {
        let (n, n_types) = (batch.token_types.len(), self.n_token_types);
        let n_expected = if n_types > 0 { batch.tokens.len() } else { 0 };
        if n != n_expected {
            return invalid(format_args!("{n} token types for {n_expected} tokens with one"));
        }
        match batch.token_types.iter().position(|&t| t as usize >= n_types) {
            Some(i) => invalid(format_args!("token {i} is of type {} of {n_types}", batch.token_types[i])),
            None => Ok(()),
        }
    }

    /// Checks that every sequence names one row of the step before, or none does, and that it is one of the `n_rows` that a step can have.
    ///
    /// Errors: [`Error::InvalidBatch`].
    fn check_previous(&self, batch: &Batch, n_rows: usize) -> Result<()> {
        let (n, n_seqs) = (batch.previous.len(), batch.seqs.len());
        if n > 0 && (n != n_seqs || !self.drafts) {
            return invalid(format_args!("{n} rows of the step before for {n_seqs} sequences"));
        }
        match batch.previous.iter().flatten().find(|&&row| row as usize >= n_rows) {
            Some(row) => invalid(format_args!("row {row} of the {n_rows} that the step before can have")),
            None => Ok(()),
        }
    }

    /// Checks where states come from and go to: every sequence has one, only slots that exist are named, and no slot that one sequence
    /// writes is read or written by another. `writers`: scratch, one entry per slot.
    ///
    /// Errors: [`Error::InvalidBatch`].
    fn check_states(&self, batch: &Batch, writers: &mut Vec<u32>) -> Result<()> {
        let n_expected = if self.n_slots > 0 { batch.seqs.len() } else { 0 };
        if batch.states.len() != n_expected {
            return invalid(format_args!(
                "{} states for {n_expected} sequences with one",
                batch.states.len()
            ));
        }
        writers.clear();
        writers.resize(self.n_slots, u32::MAX);
        for (i, (s, state)) in batch.seqs.iter().zip(&batch.states).enumerate() {
            if state.from.is_none() != (s.start == 0) {
                let (start, from) = (s.start, state.from);
                return invalid(format_args!("sequence {i} starts at {start} with state {from:?}"));
            }
            let Some(writes) = batch.state_writes.get(state.writes.clone()) else {
                return invalid(format_args!("sequence {i} has state writes {:?}", state.writes));
            };
            let mut n_before = 1;
            for w in writes {
                if w.n_tokens < n_before || w.n_tokens > s.tokens.len() {
                    let (n, all) = (w.n_tokens, s.tokens.len());
                    return invalid(format_args!("sequence {i} writes its state after {n} of {all} tokens"));
                }
                n_before = w.n_tokens;
                match writers.get_mut(w.slot as usize) {
                    Some(writer) if *writer == u32::MAX => *writer = i as u32,
                    Some(_) => return invalid(format_args!("slot {} is written twice", w.slot)),
                    None => {
                        return invalid(format_args!(
                            "sequence {i} writes slot {} of {}",
                            w.slot, self.n_slots
                        ));
                    }
                }
            }
        }
        for (i, state) in batch.states.iter().enumerate() {
            let Some(from) = state.from else { continue };
            match writers.get(from as usize) {
                Some(&writer) if writer == u32::MAX || writer == i as u32 => {}
                Some(_) => {
                    return invalid(format_args!(
                        "slot {from} is read by one sequence and written by another"
                    ));
                }
                None => return invalid(format_args!("sequence {i} reads slot {from} of {}", self.n_slots)),
            }
        }
        Ok(())
    }
}

#[cold]
fn invalid(what: fmt::Arguments<'_>) -> Result<()> {
    Err(Error::InvalidBatch { what: what.to_string() })
}

/// A [`Batch`] with what every layer needs of it written out per token; the staged form of backends that compute on the host.
#[derive(Clone, Debug)]
pub struct HostBatch {
    limits: BatchLimits,
    cache: CacheShape,
    batch: Batch,
    positions: Vec<u32>,
    seq_of_token: Vec<u32>,
    logit_tokens: Vec<u32>,
    chosen: Vec<Chosen>,
    samplers: Samplers,
    /// Scratch of [`CacheShape::check_states`].
    slot_writers: Vec<u32>,
}

impl HostBatch {
    /// Room for a batch within `limits` that names what `cache` has.
    pub fn new(limits: BatchLimits, cache: CacheShape) -> Self {
        Self {
            limits,
            cache,
            batch: Batch {
                tokens: Vec::with_capacity(limits.n_tokens),
                deferred: Vec::with_capacity(limits.n_seqs),
                seqs: Vec::with_capacity(limits.n_seqs),
                block_tables: Vec::with_capacity(limits.n_blocks),
                ..Batch::default()
            },
            positions: Vec::with_capacity(limits.n_tokens),
            seq_of_token: Vec::with_capacity(limits.n_tokens),
            logit_tokens: Vec::with_capacity(limits.n_logits),
            chosen: Vec::with_capacity(limits.n_logits),
            samplers: Samplers::default(),
            slot_writers: Vec::with_capacity(cache.n_slots),
        }
    }

    /// Takes over a step, after checking all of it; the batch staged before stays after an error.
    ///
    /// Errors: [`Error::BatchTooLarge`], or [`Error::InvalidBatch`] where the batch contradicts itself or names a block, a position, a
    /// slot or a row of the step before that does not exist.
    pub fn set(&mut self, batch: &Batch) -> Result<()> {
        self.limits.check(batch)?;
        self.cache.check_seqs(batch)?;
        self.cache.check_token_types(batch)?;
        self.cache.check_states(batch, &mut self.slot_writers)?;
        self.cache.check_previous(batch, self.limits.n_tokens)?;
        let n_before = self.logit_tokens.len();
        if let Some((token, row)) =
            batch.deferred.iter().find(|(token, row)| *token >= batch.tokens.len() || *row >= n_before)
        {
            let n = batch.tokens.len();
            return invalid(format_args!(
                "token {token} of {n} is that of row {row} of the {n_before} before"
            ));
        }
        self.batch.clone_from(batch);
        self.positions.clear();
        self.seq_of_token.clear();
        self.logit_tokens.clear();
        for (i, s) in batch.seqs.iter().enumerate() {
            for t in s.tokens.clone() {
                self.positions.push((s.start + t - s.tokens.start) as u32);
                self.seq_of_token.push(i as u32);
            }
            self.logit_tokens.extend((s.tokens.end - s.n_logits..s.tokens.end).map(|t| t as u32));
        }
        Ok(())
    }

    /// Puts in the deferred tokens, which were chosen last; where none could be, token 0.
    pub fn set_deferred(&mut self) {
        for &(token, row) in &self.batch.deferred {
            self.batch.tokens[token] = self.chosen.get(row).map_or(0, |c| c.token_or_zero());
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

    /// Where the row of the token before each token is, `[n_tokens]`; empty for a model without a drafting layer.
    pub fn previous(&self) -> impl Iterator<Item = PreviousRow> {
        let seqs = self.batch.seqs.iter().enumerate().filter(|_| self.cache.drafts);
        seqs.flat_map(|(i, s)| {
            let before = self.batch.previous.get(i).copied().flatten();
            let first = before.map_or(PreviousRow::Unknown, PreviousRow::Before);
            s.tokens
                .clone()
                .map(move |t| if t == s.tokens.start { first } else { PreviousRow::Here(t as u32 - 1) })
        })
    }

    /// Whether it is of a model with a drafting layer.
    pub fn drafts(&self) -> bool {
        self.cache.drafts
    }

    /// Where each sequence's recurrent state comes from and goes to; empty for a model without recurrent layers.
    pub fn states(&self) -> &[BatchState] {
        &self.batch.states
    }

    /// Where the step writes the recurrent state of a sequence, in the order of its tokens.
    pub fn state_writes(&self, state: &BatchState) -> &[StateWrite] {
        &self.batch.state_writes[state.writes.clone()]
    }

    /// Token ids, `[n_tokens]`.
    pub fn tokens(&self) -> &[u32] {
        &self.batch.tokens
    }

    /// Types of the tokens, `[n_tokens]`; empty for a model without.
    pub fn token_types(&self) -> &[u32] {
        &self.batch.token_types
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
