//! Matrices of heads that stay from token to token, and how a step's tokens go through them.

use crate::cpu::memory::Line;
use crate::cpu::parallel::Shared;
use crate::cpu::simd::LANES;
use crate::cpu::threads::Pool;
use crate::{BatchSeq, BatchState, HostBatch};
use std::cell::RefCell;
use std::ops::Range;

/// Columns of a state that are computed together.
pub(super) const COLUMNS: usize = 4 * LANES;

/// A matrix `[n_rows, n_columns]` for each head, and what becomes of it. Columns do not depend on each other.
pub(super) struct HeadStates<'a> {
    pub(super) n_heads: usize,
    pub(super) n_rows: usize,
    pub(super) n_columns: usize,
    /// `[n_tokens, n_heads, n_columns]`
    pub(super) y: Shared<'a, f32>,
    /// `[n_slots, n_heads, n_rows · n_columns]`
    pub(super) state: Shared<'a, f32>,
    pub(super) batch: &'a HostBatch,
}

/// What one step of a token computes.
pub(super) struct Columns<'a> {
    pub(super) token: usize,
    /// The token that follows it in the step.
    pub(super) next: Option<usize>,
    pub(super) is_first: bool,
    pub(super) head: usize,
    /// Of the head, at most [`COLUMNS`].
    pub(super) columns: &'a Range<usize>,
}

/// Rooms of one number for each column.
pub(super) struct Rooms {
    /// The token's result; begins as zeros.
    pub(super) y: [f32; COLUMNS],
    /// What a token's step leaves to the next one's.
    pub(super) carry: [f32; COLUMNS],
}

thread_local! {
    /// Some columns of a head's state, `[n_rows, columns]`. Each thread keeps its own, so that no step allocates.
    static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

impl HeadStates<'_> {
    /// Takes the state of each sequence and head through its tokens, some columns at a time. `step` changes these columns of the state, rows of
    /// which are padded to whole vectors, and makes the token's result of them.
    pub(super) fn walk(&self, pool: &Pool, step: impl Fn(Columns<'_>, &mut [f32], &mut Rooms) + Sync) {
        let n_blocks = self.n_columns.div_ceil(COLUMNS);
        let per_seq = self.n_heads * n_blocks;
        // Neighbours in memory go to one thread.
        let n_items = self.batch.states().len() * per_seq;
        pool.for_each_share(n_items, 2, |range| {
            for i in range {
                let (seq, head, start) = (i / per_seq, i % per_seq / n_blocks, i % n_blocks * COLUMNS);
                let columns = start..self.n_columns.min(start + COLUMNS);
                let (seq, at) = (&self.batch.seqs()[seq], &self.batch.states()[seq]);
                // SAFETY: each sequence, head and block of columns is one item.
                unsafe { self.walk_columns(seq, at, head, &columns, &step) };
            }
        });
    }

    /// Some columns of one head of one sequence.
    ///
    /// # Safety
    /// *Elements*: nobody else computes these columns of this head and sequence meanwhile. A staged batch lets no sequence write a slot
    /// that another reads or writes.
    unsafe fn walk_columns(
        &self,
        seq: &BatchSeq,
        at: &BatchState,
        head: usize,
        columns: &Range<usize>,
        step: impl Fn(Columns<'_>, &mut [f32], &mut Rooms),
    ) {
        let Self { n_heads, n_rows, n_columns, .. } = *self;
        let stride = columns.len().next_multiple_of(LANES);
        // Blocks of columns lie one after the other in a head's part of a slot.
        let len = n_rows * columns.len();
        let start =
            |slot: u32| (slot as usize * n_heads + head) * n_rows * n_columns + n_rows * columns.start;
        let (first, end) = (seq.tokens.start, seq.tokens.end);
        let mut writes = self.batch.state_writes(at);
        // Where rows need no padding, the state is computed on where the step leaves it, so that memory is read and written meanwhile.
        let in_place = writes.split_last().filter(|(last, others)| {
            let stays = last.n_tokens == end - first && others.iter().all(|w| w.slot != last.slot);
            stays && stride == columns.len()
        });
        SCRATCH.with_borrow_mut(|scratch| {
            let (held, copied) = match in_place {
                Some((last, others)) => {
                    writes = others;
                    // SAFETY: these columns of a slot that only this sequence writes (the contract); no other write is to it.
                    (unsafe { self.state.slice(start(last.slot), len) }, at.from != Some(last.slot))
                }
                None => {
                    scratch.resize(n_rows * stride / LANES, Line::ZERO);
                    (bytemuck::cast_slice_mut(scratch), true)
                }
            };
            match at.from {
                Some(slot) if copied => {
                    // SAFETY: no sequence but this one writes these columns of the slot, and that comes after (the contract); `held` is not
                    // of it.
                    unpack(held, stride, unsafe { self.state.read(start(slot), len) }, columns);
                }
                Some(_) => {}
                None => held.fill(0.0),
            }
            let mut writes = writes.iter().peekable();
            let mut rooms = Rooms { y: [0.0; COLUMNS], carry: [0.0; COLUMNS] };
            for token in seq.tokens.clone() {
                let next = (token + 1 < end).then_some(token + 1);
                rooms.y.fill(0.0);
                step(Columns { token, next, is_first: token == first, head, columns }, held, &mut rooms);
                // SAFETY: these columns of this token are this call's (the contract).
                let y = unsafe {
                    self.y.slice((token * n_heads + head) * n_columns + columns.start, columns.len())
                };
                y.copy_from_slice(&rooms.y[..columns.len()]);
                while let Some(write) = writes.next_if(|w| w.n_tokens == token + 1 - first) {
                    // SAFETY: these columns of a slot that only this sequence writes (the contract); `held` is not of it.
                    pack(unsafe { self.state.slice(start(write.slot), len) }, held, stride, columns);
                }
            }
        });
    }
}

/// Copies columns from a slot to rows of `stride` elements, padded with zeros.
fn unpack(scratch: &mut [f32], stride: usize, slot: &[f32], columns: &Range<usize>) {
    let n = columns.len();
    for (row, values) in scratch.chunks_exact_mut(stride).zip(slot.chunks_exact(n)) {
        row[..n].copy_from_slice(values);
        row[n..].fill(0.0);
    }
}

/// The way back.
fn pack(slot: &mut [f32], scratch: &[f32], stride: usize, columns: &Range<usize>) {
    let n = columns.len();
    for (row, values) in scratch.chunks_exact(stride).zip(slot.chunks_exact_mut(n)) {
        values.copy_from_slice(&row[..n]);
    }
}
