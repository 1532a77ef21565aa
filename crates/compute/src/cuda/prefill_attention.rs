//! Launches of attention of many tokens of a sequence on the tensor cores.

use super::driver::{DevicePtr, Driver};
use super::{Cuda, StagedBatch};
use crate::{AttentionParams, DType, KvLayer, Result, Tensor};

/// Sizes of heads that the kernels are compiled for; smaller ones are padded.
pub(super) const HEAD_DIMS: [usize; 2] = [64, 128];

/// What a block of the kernels for a GPU is.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// Tokens times query heads that share a key-value head.
    rows: usize,
    /// Positions that it looks at together.
    keys: usize,
    threads: u32,
    pub(super) hopper: bool,
}

impl Block {
    pub(super) fn on(driver: &dyn Driver) -> Self {
        match driver.is_hopper() {
            false => Self { rows: 64, keys: 64, threads: 128, hopper: false },
            true => Self { rows: 128, keys: 128, threads: 384, hopper: true },
        }
    }

    /// Shared memory: two stages of keys and values, on Hopper from a multiple of 1024 bytes on.
    pub(super) const fn shared_bytes(self, head_dim: usize) -> usize {
        2 * 2 * self.keys * head_dim * 2 + if self.hopper { 1024 } else { 0 }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    y: DevicePtr,
    qkv: DevicePtr,
    k_cache: DevicePtr,
    v_cache: DevicePtr,
    positions: DevicePtr,
    table_starts: DevicePtr,
    block_tables: DevicePtr,
    seq_starts: DevicePtr,
    n_seqs: u32,
    n_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    block_size: u32,
    tile_tokens: u32,
    tile_heads: u32,
    window: u32,
    scale: f32,
    softcap: f32,
}

/// Element types of a cache that the kernels read.
pub(super) const ON_TENSOR_CORES: [DType; 3] = [DType::F16, DType::BF16, DType::Q8_0];

/// Whether these kernels compute such a step: many tokens per sequence, over a cache that they read.
pub(super) fn can(cuda: &Cuda, kv: &KvLayer<Cuda>, batch: &StagedBatch, params: &AttentionParams) -> bool {
    let dim = params.heads.head_dim;
    !cuda.exact
        && ON_TENSOR_CORES.contains(&kv.k.dtype())
        && dim.is_multiple_of(8)
        && dim <= HEAD_DIMS[1]
        && batch.n_tokens() > 2 * batch.n_seqs()
}

/// As [`attention`](super::attention::attention), which checks the shapes.
pub(super) fn attention(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    qkv: &Tensor<Cuda>,
    kv: &KvLayer<Cuda>,
    batch: &StagedBatch,
    params: &AttentionParams,
) -> Result<()> {
    let h = params.heads;
    let group = h.n_heads / h.n_kv_heads;
    let block = Block::on(&*cuda.driver);
    let tile_heads = group.min(block.rows);
    let tile_tokens = block.rows / tile_heads;
    let args = Args {
        y: y.ptr(),
        qkv: qkv.ptr(),
        k_cache: kv.k.buffer().ptr(),
        v_cache: kv.v.buffer().ptr(),
        positions: batch.positions(),
        table_starts: batch.table_starts(),
        block_tables: batch.block_tables(),
        seq_starts: batch.seq_starts(),
        n_seqs: batch.n_seqs() as u32,
        n_heads: h.n_heads as u32,
        n_kv_heads: h.n_kv_heads as u32,
        head_dim: h.head_dim as u32,
        block_size: kv.k.shape()[2] as u32,
        tile_tokens: tile_tokens as u32,
        tile_heads: tile_heads as u32,
        window: params.window.map_or(i32::MAX as u32, |w| w.min(i32::MAX as usize) as u32),
        scale: params.scale,
        softcap: params.softcap.unwrap_or(0.0),
    };
    let tiles = batch.seq_lens().map(|n| n.div_ceil(tile_tokens)).sum();
    let blocks = [tiles, h.n_kv_heads * group.div_ceil(tile_heads), 1];
    let i = HEAD_DIMS.iter().position(|&d| h.head_dim <= d).expect("a size that can be");
    let f = cuda.kernels.of_cache(kv.k.dtype())?.prefill_attention[i].expect("a type that can be");
    // SAFETY: every token has a row in qkv and y, and its block table covers its positions; the grid has a block for each tile of
    // the staged sequences.
    unsafe { cuda.launch_shared(f, blocks, block.threads, block.shared_bytes(HEAD_DIMS[i]), &args) }
}
