//! Launches of attention of many tokens of a sequence on the tensor cores.

use super::driver::{BoxMap, Boxes, DevicePtr, Driver};
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

/// The same on Hopper, with what its copy engine must know.
#[derive(Clone, Copy)]
#[repr(C)]
struct HopperArgs {
    of_all: Args,
    n_cache_rows: u32,
    box_rows: u32,
    maps: [BoxMap; 2],
}

/// Rows of a box, where keys and values can come as boxes: heads as they are, and a number of rows that tiles are made of.
fn box_rows(kv: &KvLayer<Cuda>, block: Block) -> Option<usize> {
    let rows = kv.k.shape()[2].min(block.keys);
    let is_whole = rows >= 8 && block.keys.is_multiple_of(rows) && kv.k.shape()[2].is_multiple_of(rows);
    (kv.k.dtype() != DType::Q8_0 && is_whole).then_some(rows)
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
    let tiles: usize = batch.seq_lens().map(|n| n.div_ceil(tile_tokens)).sum();
    let blocks = [tiles * h.n_kv_heads * group.div_ceil(tile_heads), 1, 1];
    let i = HEAD_DIMS.iter().position(|&d| h.head_dim <= d).expect("a size that can be");
    let f = cuda.kernels.of_cache(kv.k.dtype())?.prefill_attention[i].expect("a type that can be");
    let shared = block.shared_bytes(HEAD_DIMS[i]);
    if !block.hopper {
        // SAFETY: every token has a row in qkv and y, and its block table covers its positions; the grid has a block for each tile of
        // the staged sequences.
        return unsafe { cuda.launch_shared(f, blocks, block.threads, shared, &args) };
    }
    let n_cache_rows = kv.k.shape()[..3].iter().product::<usize>();
    let box_rows = box_rows(kv, block).filter(|_| i32::try_from(n_cache_rows).is_ok());
    let map = |cache: &Tensor<Cuda>| match box_rows {
        None => Ok(BoxMap([0; 16])),
        Some(box_rows) => cuda.driver.box_map(Boxes {
            rows: cache.buffer().ptr(),
            n_rows: n_cache_rows,
            row_bytes: 2 * h.head_dim,
            box_rows,
            box_bytes: 128,
            swizzled: true,
        }),
    };
    let args = HopperArgs {
        of_all: args,
        n_cache_rows: n_cache_rows as u32,
        box_rows: box_rows.unwrap_or(0) as u32,
        maps: [map(&kv.k)?, map(&kv.v)?],
    };
    // SAFETY: as above; the boxes are of the cache.
    unsafe { cuda.launch_shared(f, blocks, block.threads, shared, &args) }
}
