//! Launches of attention of many tokens of a sequence on the tensor cores.

use super::cache::{ByTypeAndHead, TENSOR_CORE_TYPES};
use super::rope;
use super::step::Step;
use crate::cuda::batch::StagedBatch;
use crate::cuda::common::Output;
use crate::cuda::driver::{BoxMap, Boxes, Cuda, DevicePtr, Driver, kernel_args, kernel_image};
use crate::{AttentionParams, DType, KvLayer, NormKind, Profile, QkvPrep, Result, RopeStyle, Tensor};

/// Sizes of heads that the kernels are compiled for; smaller ones are padded.
const HEAD_DIMS: [usize; 2] = [64, 128];

/// What a block of the kernels for a GPU is.
#[derive(Clone, Copy)]
struct Block {
    /// Tokens times query heads that share a key-value head.
    rows: usize,
    /// Positions that it looks at together.
    keys: usize,
    threads: u32,
    hopper: bool,
}

impl Block {
    fn on(driver: &dyn Driver) -> Self {
        match driver.is_hopper() {
            false => Self { rows: 64, keys: 64, threads: 128, hopper: false },
            true => Self { rows: 128, keys: 128, threads: 512, hopper: true },
        }
    }

    /// Shared memory: two stages of keys and values; on Hopper also queries of two tiles, from a multiple of 1024 bytes on.
    const fn shared_bytes(self, head_dim: usize) -> usize {
        let queries = if self.hopper { 2 * self.rows * head_dim * 2 + 1024 } else { 0 };
        2 * 2 * self.keys * head_dim * 2 + queries
    }
}

kernel_args! {
    in "prefill_attention_args.cuh";

    struct PrefillAttentionArgs {
        /// [n_tokens, n_heads, head_dim], or tiles of BF16
        y: DevicePtr as "float*",
        /// [n_tokens, (n_heads + 2 * n_kv_heads) * head_dim]
        qkv: DevicePtr as "const float*",
        /// [n_blocks, n_kv_heads, block_size, head_dim]
        k_cache: DevicePtr as "const uint8_t*",
        v_cache: DevicePtr as "const uint8_t*",
        /// [n_tokens]
        positions: DevicePtr as "const uint32_t*",
        /// [n_tokens]
        table_starts: DevicePtr as "const uint32_t*",
        block_tables: DevicePtr as "const uint32_t*",
        /// [n_seqs + 1]: first token of each sequence, and the number of tokens
        seq_starts: DevicePtr as "const uint32_t*",
        n_seqs: u32,
        n_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        block_size: u32,
        /// tokens of a block
        tile_tokens: u32,
        /// query heads of a block
        tile_heads: u32,
        /// positions that a token sees, itself among them
        window: u32,
        scale: f32,
        /// 0: none
        softcap: f32,
        /// rows of y's tiles; 0: y has floats
        y_rows: u32,
    }
}

kernel_args! {
    in "prefill_attention_hopper_args.cuh";
    include "../common/hopper.cuh";
    include "prefill_attention_args.cuh";

    /// The same on Hopper, with what its copy engine must know.
    struct PrefillAttentionHopperArgs {
        of_all: PrefillAttentionArgs,
        /// heads of positions
        n_cache_rows: u32,
        /// rows of a box, 8 to 128; 0: the cache does not come as boxes
        box_rows: u32,
        n_tiles: u32,
        /// What is left to do with queries. [head_dim], null where there is no norm
        q_weight: DevicePtr as "const float*",
        /// [head_dim] or null
        q_bias: DevicePtr as "const float*",
        /// [n_tokens, rope_dim]: cosines, then sines; null where nothing turns
        angles: DevicePtr as "const float*",
        rope_dim: u32,
        interleaved: u32,
        /// 1: the norm takes the mean out
        q_layer: u32,
        q_eps: f32,
        k_map: BoxMap as "ptx::TensorMap",
        v_map: BoxMap as "ptx::TensorMap",
    }
}

/// Rows of a box, where keys and values can come as boxes: heads as they are, and a number of rows that tiles are made of.
fn box_rows(kv: &KvLayer<Cuda>, block: Block) -> Option<usize> {
    let rows = kv.k.shape()[2].min(block.keys);
    let is_whole = rows >= 8 && block.keys.is_multiple_of(rows) && kv.k.shape()[2].is_multiple_of(rows);
    (kv.k.dtype() != DType::Q8_0 && is_whole).then_some(rows)
}

/// Kernels of prefill_attention.cu, or of prefill_attention_hopper.cu.
pub(super) enum Kernels {
    Ampere(ByTypeAndHead<PrefillAttentionArgs, { HEAD_DIMS.len() }>),
    Hopper(ByTypeAndHead<PrefillAttentionHopperArgs, { HEAD_DIMS.len() }>),
}

impl Kernels {
    pub(super) fn load(driver: &dyn Driver) -> Result<Self> {
        let block = Block::on(driver);
        let shared = |dim| block.shared_bytes(dim);
        Ok(match block.hopper {
            false => Self::Ampere(ByTypeAndHead::load(
                driver,
                kernel_image!(prefill_attention),
                HEAD_DIMS,
                shared,
            )?),
            true => Self::Hopper(ByTypeAndHead::load(
                driver,
                kernel_image!(prefill_attention_hopper),
                HEAD_DIMS,
                shared,
            )?),
        })
    }
}

/// Whether these kernels compute such a step: many tokens per sequence, over a cache that they read.
pub(super) fn supports(
    cuda: &Cuda,
    kv: &KvLayer<Cuda>,
    batch: &StagedBatch,
    params: &AttentionParams,
) -> bool {
    let dim = params.heads.head_dim;
    !cuda.exact
        && TENSOR_CORE_TYPES.contains(&kv.k.dtype())
        && dim.is_multiple_of(8)
        && dim <= HEAD_DIMS[1]
        && batch.n_tokens() > 2 * batch.n_seqs()
}

/// Keys and values on their way into the cache, then [`attention`], which on Hopper prepares the queries.
pub(super) fn store_and_attend(cuda: &Cuda, y: Output, qkv: &mut Tensor<Cuda>, step: Step<'_>) -> Result<()> {
    let Step { kv, batch, prep, params } = step;
    let prep = &prep;
    assert_eq!((params.heads, qkv.rows()), (prep.heads, batch.n_tokens()));
    let left = cuda.driver.is_hopper().then_some(prep);
    let first_head = left.map_or(0, |p| p.heads.n_heads);
    cuda.timed("store_kv", || rope::store_kv(cuda, qkv, kv, batch, prep, first_head))?;
    cuda.timed("attention", || attention(cuda, y, qkv, kv, batch, left, params))
}

/// As [`attention`](super::attention), which checks the shapes. On Hopper `prep` says what is left to do with queries; elsewhere
/// they are ready.
pub(super) fn attention(
    cuda: &Cuda,
    y: Output,
    qkv: &Tensor<Cuda>,
    kv: &KvLayer<Cuda>,
    batch: &StagedBatch,
    prep: Option<&QkvPrep<'_, Cuda>>,
    params: &AttentionParams,
) -> Result<()> {
    let h = params.heads;
    let group = h.n_heads / h.n_kv_heads;
    let block = Block::on(&*cuda.driver);
    let tile_heads = group.min(block.rows);
    let tile_tokens = block.rows / tile_heads;
    let args = PrefillAttentionArgs {
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
        y_rows: y.tile_rows() as u32,
    };
    let tiles: usize = batch.seq_lens().map(|n| n.div_ceil(tile_tokens)).sum();
    let n_tiles = tiles * h.n_kv_heads * group.div_ceil(tile_heads);
    let i = HEAD_DIMS.iter().position(|&d| h.head_dim <= d).expect("a size that can be");
    let shared = block.shared_bytes(HEAD_DIMS[i]);
    let supported = "a type of cache that tensor cores read";
    let f = match cuda.room::<Kernels>() {
        Kernels::Ampere(kernels) => {
            let f = kernels.get(kv.k.dtype(), i).expect(supported);
            // SAFETY: every token has a row in qkv and y, and its block table covers its positions; the grid has a block for each tile
            // of the staged sequences.
            return unsafe { cuda.launch_shared(f, [n_tiles, 1, 1], block.threads, shared, &args) };
        }
        Kernels::Hopper(kernels) => kernels.get(kv.k.dtype(), i).expect(supported),
    };
    let n_cache_rows = kv.k.shape()[..3].iter().product::<usize>();
    let box_rows = box_rows(kv, block).filter(|_| i32::try_from(n_cache_rows).is_ok());
    let map = |cache: &Tensor<Cuda>| match box_rows {
        None => Ok(BoxMap([0; 16])),
        Some(box_rows) => cuda.driver.box_map(Boxes {
            rows: cache.buffer().ptr(),
            n_rows: n_cache_rows,
            row_bytes: 2 * h.head_dim,
            box_rows,
            spread: false,
            box_bytes: 128,
            swizzled: true,
        }),
    };
    let q_norm = prep.and_then(|p| p.qk_norm).map(|(q, _)| q);
    let angles = prep.and_then(|p| p.angles);
    let ptr = |t: Option<&Tensor<Cuda>>| t.map_or(DevicePtr::NULL, Tensor::ptr);
    let args = PrefillAttentionHopperArgs {
        of_all: args,
        n_cache_rows: n_cache_rows as u32,
        box_rows: box_rows.unwrap_or(0) as u32,
        n_tiles: n_tiles as u32,
        q_weight: ptr(q_norm.map(|n| &n.weight)),
        q_bias: ptr(q_norm.and_then(|n| n.bias.as_ref())),
        angles: ptr(angles.map(|a| a.0)),
        rope_dim: angles.map_or(0, |a| a.0.row_len()) as u32,
        interleaved: u32::from(angles.is_some_and(|a| a.1 == RopeStyle::Interleaved)),
        q_layer: u32::from(q_norm.is_some_and(|n| n.kind == NormKind::Layer)),
        q_eps: q_norm.map_or(0.0, |n| n.eps),
        k_map: map(&kv.k)?,
        v_map: map(&kv.v)?,
    };
    let blocks = n_tiles.min(cuda.driver.n_multiprocessors() as usize);
    // SAFETY: as above, but that blocks go through the tiles; the boxes are of the cache.
    unsafe { cuda.launch_shared(f, [blocks, 1, 1], block.threads, shared, &args) }
}
