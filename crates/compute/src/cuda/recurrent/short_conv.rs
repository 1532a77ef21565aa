//! Launches of short_conv.cu: a causal convolution over the last tokens, each channel by itself.

use crate::cuda::batch::StagedBatch;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, kernel_args, kernel_image};
use crate::{ConvKind, MAX_CONV_WIDTH, Result, ShortConv, Tensor};

/// Channels of a block.
const CHANNELS: usize = 128;
/// Tokens of a tile, at least [`MAX_CONV_WIDTH`] - 1. Steps of one token per sequence have tiles of one.
const TILE_TOKENS: usize = 8;
/// Convolutions that there are kernels for, in tokens.
const WIDTHS: [usize; 7] = [2, 3, 4, 5, 6, 7, MAX_CONV_WIDTH];

kernel_args! {
    in "short_conv_args.cuh";

    struct ShortConvArgs {
        /// [n_tokens, n_channels]
        y: DevicePtr as "float*",
        /// [n_tokens] rows of `x_len`: inputs, or b, c and x where gated
        x: DevicePtr as "const float*",
        /// [width, n_channels]
        weight: DevicePtr as "const float*",
        /// [n_channels] or null
        bias: DevicePtr as "const float*",
        /// [n_slots, width - 1, n_channels], oldest first
        state: DevicePtr as "float*",
        /// [n_seqs + 1]: first token of each sequence, and the number of tokens
        seq_starts: DevicePtr as "const uint32_t*",
        /// [n_seqs, 3], see `SeqState`
        states: DevicePtr as "const uint32_t*",
        batch: DevicePtr as "const uint32_t*",
        n_tokens: u32,
        n_seqs: u32,
        n_channels: u32,
        x_len: u32,
        tile_tokens: u32,
        /// 1: y is c times the convolution of b times x; 0: its SiLU
        gated: u32,
    }
}

/// Kernels of short_conv.cu, by width.
pub(super) struct Kernels([Kernel<ShortConvArgs>; WIDTHS.len()]);

impl Kernels {
    pub(super) fn load(driver: &dyn Driver) -> Result<Self> {
        let [a, b, c, d, e, f, g] =
            WIDTHS.map(|width| kernel_image!(short_conv).kernel(driver, &format!("short_conv_{width}"), 0));
        Ok(Self([a?, b?, c?, d?, e?, f?, g?]))
    }
}

/// As [`Ops::short_conv`](crate::Ops::short_conv).
pub(in crate::cuda) fn short_conv(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    x: &Tensor<Cuda>,
    conv: ShortConv<'_, Cuda>,
    state: &mut Tensor<Cuda>,
    batch: &StagedBatch,
) -> Result<()> {
    let (n_channels, width, n_tokens) = (y.row_len(), conv.weight.rows(), batch.n_tokens());
    let n_parts = if conv.kind == ConvKind::Gated { 3 } else { 1 };
    assert_eq!((conv.weight.row_len(), state.row_len()), (n_channels, (width - 1) * n_channels));
    assert_eq!((y.rows(), x.rows(), batch.n_states()), (n_tokens, n_tokens, batch.n_seqs()));
    assert!(x.row_len() >= n_parts * n_channels, "{n_channels} channels in rows of {}", x.row_len());
    assert!(conv.bias.is_none_or(|bias| bias.len() == n_channels));
    let kernel = WIDTHS.iter().position(|&w| w == width);
    let kernel = kernel.unwrap_or_else(|| panic!("a convolution over {width} tokens"));
    let tile_tokens = if batch.is_decode() { 1 } else { TILE_TOKENS };
    let args = ShortConvArgs {
        y: y.ptr(),
        x: x.ptr(),
        weight: conv.weight.ptr(),
        bias: conv.bias.map_or(DevicePtr::NULL, Tensor::ptr),
        state: state.ptr(),
        seq_starts: batch.seq_starts(),
        states: batch.states(),
        batch: batch.words(),
        n_tokens: n_tokens as u32,
        n_seqs: batch.n_seqs() as u32,
        n_channels: n_channels as u32,
        x_len: x.row_len() as u32,
        tile_tokens: tile_tokens as u32,
        gated: u32::from(conv.kind == ConvKind::Gated),
    };
    let blocks = [n_channels.div_ceil(CHANNELS), n_tokens.div_ceil(tile_tokens), 1];
    // SAFETY: x and y have a row for each token, and slots and weights have these sizes, as asserted above. Staging the batch checked that it
    // names slots of the state only, and that no sequence writes a slot that another reads or writes.
    unsafe { cuda.launch(cuda.room::<Kernels>().0[kernel], blocks, CHANNELS as u32, &args) }
}
