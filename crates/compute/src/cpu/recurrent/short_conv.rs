//! Causal convolutions over the last tokens, each channel by itself.

use crate::cpu::Cpu;
use crate::cpu::activation::silu;
use crate::cpu::isa::Isa;
use crate::cpu::parallel::Shared;
use crate::cpu::threads::Pool;
use crate::{BatchSeq, BatchState, ConvKind, HostBatch, MAX_CONV_WIDTH, ShortConv, Tensor};
use std::ops::Range;

/// Channels of a convolution that are computed together.
const CHANNELS: usize = 256;

/// A row of inputs for each token before the step.
type Tail = [[f32; CHANNELS]; MAX_CONV_WIDTH - 1];

pub(in crate::cpu) fn short_conv(
    pool: &Pool,
    isa: Isa,
    y: &mut Tensor<Cpu>,
    x: &Tensor<Cpu>,
    conv: ShortConv<'_, Cpu>,
    state: &mut Tensor<Cpu>,
    batch: &HostBatch,
) {
    let (n_channels, width) = (y.row_len(), conv.weight.rows());
    assert_eq!((conv.weight.row_len(), state.row_len()), (n_channels, (width - 1) * n_channels));
    assert_eq!((y.rows(), x.rows()), (batch.tokens().len(), batch.tokens().len()));
    assert!(conv.bias.is_none_or(|bias| bias.len() == n_channels));
    assert!((2..=MAX_CONV_WIDTH).contains(&width), "a convolution over {width} tokens");
    let task = ConvTask {
        isa,
        weight: conv.weight.floats(),
        bias: conv.bias.map(|bias| bias.floats()),
        kind: conv.kind,
        width,
        n_channels,
        x: x.floats(),
        x_len: x.row_len(),
        y: Shared::new(y.floats_mut()),
        state: Shared::new(state.floats_mut()),
        batch,
    };
    let n_blocks = n_channels.div_ceil(CHANNELS);
    pool.for_each_chunk(batch.states().len() * n_blocks, 1, |range| {
        for i in range {
            let start = i % n_blocks * CHANNELS;
            let channels = start..n_channels.min(start + CHANNELS);
            // SAFETY: each sequence and block of channels is one item.
            unsafe { task.run(&batch.seqs()[i / n_blocks], &batch.states()[i / n_blocks], channels) };
        }
    });
}

struct ConvTask<'a> {
    isa: Isa,
    /// `[width, n_channels]`
    weight: &'a [f32],
    /// `[n_channels]`
    bias: Option<&'a [f32]>,
    kind: ConvKind,
    width: usize,
    n_channels: usize,
    x: &'a [f32],
    x_len: usize,
    y: Shared<'a, f32>,
    state: Shared<'a, f32>,
    batch: &'a HostBatch,
}

impl ConvTask<'_> {
    /// Some channels of one sequence.
    ///
    /// # Safety
    /// *Elements*: nobody else computes these channels of this sequence meanwhile. A staged batch lets no sequence write a slot that
    /// another reads or writes.
    unsafe fn run(&self, seq: &BatchSeq, at: &BatchState, channels: Range<usize>) {
        let (n, n_before) = (channels.len(), self.width - 1);
        let slot_row =
            |slot: u32, row: usize| (slot as usize * n_before + row) * self.n_channels + channels.start;
        // Oldest first; a copy, since a write may replace what later writes still need.
        let mut tail: Tail = [[0.0; CHANNELS]; MAX_CONV_WIDTH - 1];
        if let Some(slot) = at.from {
            for (i, row) in tail[..n_before].iter_mut().enumerate() {
                // SAFETY: no sequence but this one writes these channels of the slot, and that comes after (the contract).
                row[..n].copy_from_slice(unsafe { self.state.read(slot_row(slot, i), n) });
            }
        }
        let mut product = [0.0; CHANNELS];
        for (i, t) in seq.tokens.clone().enumerate() {
            // SAFETY: these channels of this token are this call's (the contract).
            let y = unsafe { self.y.slice(t * self.n_channels + channels.start, n) };
            match self.bias {
                Some(bias) => y.copy_from_slice(&bias[channels.clone()]),
                None => y.fill(0.0),
            }
            for j in 0..self.width {
                let input = self.input(seq, &tail, i + j, &channels, &mut product);
                let weight = &self.weight[j * self.n_channels..][channels.clone()];
                y.iter_mut().zip(weight).zip(input).for_each(|((y, w), x)| *y += w * x);
            }
            match self.kind {
                ConvKind::Silu => silu(self.isa, y),
                ConvKind::Gated => {
                    let c = &self.x[t * self.x_len + self.n_channels..][channels.clone()];
                    y.iter_mut().zip(c).for_each(|(y, c)| *y *= c);
                }
            }
        }
        for write in self.batch.state_writes(at) {
            for row in 0..n_before {
                let input = self.input(seq, &tail, write.n_tokens + row, &channels, &mut product);
                // SAFETY: these channels of a slot that only this sequence writes (the contract).
                unsafe { self.state.slice(slot_row(write.slot, row), n) }.copy_from_slice(input);
            }
        }
    }

    /// Input `i` of the sequence, where 0 is the oldest that the first token of the step reads. `product`: room for it.
    fn input<'a>(
        &'a self,
        seq: &BatchSeq,
        tail: &'a Tail,
        i: usize,
        channels: &Range<usize>,
        product: &'a mut [f32; CHANNELS],
    ) -> &'a [f32] {
        let n = channels.len();
        let Some(i) = i.checked_sub(self.width - 1) else { return &tail[i][..n] };
        let row = &self.x[(seq.tokens.start + i) * self.x_len..][..self.x_len];
        match self.kind {
            ConvKind::Silu => &row[channels.clone()],
            ConvKind::Gated => {
                let (b, x) = (&row[channels.clone()], &row[2 * self.n_channels..][channels.clone()]);
                product.iter_mut().zip(b).zip(x).for_each(|((p, b), x)| *p = b * x);
                &product[..n]
            }
        }
    }
}
