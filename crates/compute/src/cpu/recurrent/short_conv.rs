//! Causal convolutions over the last tokens, each channel by itself.

use crate::cpu::isa::Isa;
use crate::cpu::parallel::Shared;
use crate::cpu::simd::{Kernel, LANES, Simd, dispatch};
use crate::cpu::threads::Pool;
use crate::cpu::{Cpu, activation};
use crate::{Activation, BatchSeq, BatchState, ConvKind, HostBatch, MAX_CONV_WIDTH, ShortConv, Tensor};
use std::cell::RefCell;
use std::ops::Range;

/// Channels of a task, where there are threads for no more: their inputs stay in the first-level cache from token to token.
const CHANNELS: usize = 1024;
/// Inputs that a task of few tokens takes: memory is read in long runs.
const INPUTS_OF_TASK: usize = 16 << 10;

thread_local! {
    /// The inputs that a token reads, `[width, channels]`: input `i` in row `i % width`. Each thread keeps its own, so that no step allocates.
    static INPUTS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

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
    let (n_tokens, n_seqs) = (batch.tokens().len(), batch.states().len());
    assert_eq!((conv.weight.row_len(), state.row_len()), (n_channels, (width - 1) * n_channels));
    assert_eq!((y.rows(), x.rows()), (n_tokens, n_tokens));
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
    let of_a_thread = n_channels.div_ceil(pool.n_threads()).next_multiple_of(LANES);
    let block = CHANNELS.max(INPUTS_OF_TASK * n_seqs / n_tokens.max(1)).min(of_a_thread);
    let n_blocks = n_channels.div_ceil(block);
    pool.for_each_chunk(n_seqs * n_blocks, 1, |range| {
        for i in range {
            let start = i % n_blocks * block;
            let channels = start..n_channels.min(start + block);
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
        let mut writes = self.batch.state_writes(at).iter().peekable();
        INPUTS.with_borrow_mut(|inputs| {
            inputs.clear();
            inputs.resize(self.width * n, 0.0);
            if let Some(slot) = at.from {
                for (i, row) in inputs.chunks_exact_mut(n).take(n_before).enumerate() {
                    // SAFETY: no sequence but this one writes these channels of the slot, and that comes after (the contract).
                    row.copy_from_slice(unsafe { self.state.read(slot_row(slot, i), n) });
                }
            }
            // Input 0 is the oldest that the first token reads.
            for (i, t) in seq.tokens.clone().enumerate() {
                let x = &self.x[t * self.x_len..][..self.x_len];
                let of = |part: usize| &x[part * self.n_channels..][channels.clone()];
                let newest = &mut inputs[(i + n_before) % self.width * n..][..n];
                // SAFETY: these channels of this token are this call's (the contract).
                let y = unsafe { self.y.slice(t * self.n_channels + channels.start, n) };
                let (factor, gate) = match self.kind {
                    ConvKind::Silu => (None, None),
                    ConvKind::Gated => (Some(of(2)), Some(of(1))),
                };
                newest.copy_from_slice(of(0));
                let token = ConvToken {
                    y,
                    inputs,
                    first: i % self.width,
                    factor,
                    weight: &self.weight[channels.start..],
                    n_channels: self.n_channels,
                    bias: self.bias.map(|bias| &bias[channels.clone()]),
                    gate,
                };
                // SAFETY: `Cpu::new` checked that the processor has `isa`; the kernel has no pointers of its own.
                unsafe { dispatch(self.isa, token) }
                while let Some(write) = writes.next_if(|w| w.n_tokens == i + 1) {
                    for row in 0..n_before {
                        let input = &inputs[(i + 1 + row) % self.width * n..][..n];
                        // SAFETY: these channels of a slot that only this sequence writes (the contract); what it was is in `inputs`.
                        unsafe { self.state.slice(slot_row(write.slot, row), n) }.copy_from_slice(input);
                    }
                }
            }
        });
    }
}

/// One token of some channels.
struct ConvToken<'a> {
    y: &'a mut [f32],
    /// `[width, channels]`; the newest is multiplied by `factor` first.
    inputs: &'a mut [f32],
    /// Row of the oldest input.
    first: usize,
    factor: Option<&'a [f32]>,
    /// `[width, n_channels]`, from the first of the channels on.
    weight: &'a [f32],
    n_channels: usize,
    bias: Option<&'a [f32]>,
    /// What the result is multiplied by, instead of SiLU.
    gate: Option<&'a [f32]>,
}

impl Kernel for ConvToken<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { y, inputs, first, factor, weight, n_channels, bias, gate } = self;
        let (n, width) = (y.len(), inputs.len() / y.len());
        let row = |j: usize| (first + j) % width * n..((first + j) % width + 1) * n;
        if let Some(factor) = factor {
            for (x, f) in inputs[row(width - 1)].iter_mut().zip(factor) {
                *x *= f;
            }
        }
        match bias {
            Some(bias) => y.copy_from_slice(bias),
            None => y.fill(0.0),
        }
        for j in 0..width {
            for ((y, w), x) in y.iter_mut().zip(&weight[j * n_channels..][..n]).zip(&inputs[row(j)]) {
                *y += w * x;
            }
        }
        match gate {
            Some(gate) => {
                for (y, g) in y.iter_mut().zip(gate) {
                    *y *= g;
                }
            }
            None => activation::apply(y, Activation::Silu),
        }
    }
}
