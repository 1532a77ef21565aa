//! Launches of attention for sequences that bring one token each, with the norms, the rotation and the way into the cache before it.

use super::cache::{ByTypeAndHead, TENSOR_CORE_TYPES};
use super::step::Step;
use crate::cuda::batch::StagedBatch;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, kernel_args, kernel_image};
use crate::{AttentionParams, Heads, KvLayer, NormKind, Result, RopeStyle, Tensor};

/// Query heads of a block.
const HEADS: usize = 8;
/// Positions that a warp looks at together.
const KEYS: usize = 16;
/// Most parts that a token's positions are cut into.
const MAX_SPLITS: usize = 64;
/// From so many elements of queries on, blocks without work run the code too where there is one token. In smaller models the products after
/// it have most of their weights in shared memory before they start, and what counts is that they start early.
const ALL_RUN: usize = 2048;
/// Sizes of heads that the kernels are compiled for; smaller ones are padded.
const HEAD_DIMS: [usize; 3] = [64, 128, 256];

/// Warps of a block.
const fn warps(head_dim: usize) -> usize {
    if head_dim > 128 { 4 } else { 8 }
}

/// Shared memory of a block: tiles of keys and values for each warp, queries, the token's own key and value, and a head for each warp.
fn shared_bytes(driver: &dyn Driver, head_dim: usize) -> usize {
    let row = 2 * (head_dim + 8);
    let tiles = if driver.is_hopper() { 3 } else { 2 };
    warps(head_dim) * (tiles * KEYS * row + 4 * head_dim) + (HEADS + 2) * row
}

kernel_args! {
    in "decode_attention_args.cuh";

    struct DecodeAttentionArgs {
        /// [n_tokens, n_heads, head_dim], or tiles of activations in the order of packed columns
        y: DevicePtr as "float*",
        /// [n_tokens, n_heads, n_splits, head_dim + 2]: output, maximum, sum
        partial: DevicePtr as "float*",
        /// [n_tokens, blocks of a token's heads]: splits that are done; zero before and after
        arrived: DevicePtr as "uint32_t*",
        /// [n_tokens, (n_heads + 2 * n_kv_heads) * head_dim]
        qkv: DevicePtr as "const float*",
        /// [n_blocks, n_kv_heads, block_size] heads of `head_bytes`
        k_cache: DevicePtr as "uint8_t*",
        v_cache: DevicePtr as "uint8_t*",
        /// [head_dim], null where heads have no norm
        q_weight: DevicePtr as "const float*",
        /// [head_dim] or null
        q_bias: DevicePtr as "const float*",
        k_weight: DevicePtr as "const float*",
        k_bias: DevicePtr as "const float*",
        /// [n_tokens, rope_dim]: cosines, then sines; null where nothing turns
        angles: DevicePtr as "const float*",
        /// [n_tokens]
        positions: DevicePtr as "const uint32_t*",
        /// [n_tokens]
        table_starts: DevicePtr as "const uint32_t*",
        block_tables: DevicePtr as "const uint32_t*",
        n_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        head_bytes: u32,
        rope_dim: u32,
        interleaved: u32,
        n_tokens: u32,
        block_size: u32,
        /// 1: the norms take the mean out
        layer: u32,
        n_splits: u32,
        /// of tiles, which one split writes; 0: y is floats
        tile_rows: u32,
        /// positions that a token sees, itself among them
        window: u32,
        q_eps: f32,
        k_eps: f32,
        scale: f32,
        /// 0: none
        softcap: f32,
        /// whether blocks without work run the code too
        all_run: u32,
    }
}

/// Kernels of decode_attention.cu.
pub(super) struct Kernels(ByTypeAndHead<DecodeAttentionArgs, { HEAD_DIMS.len() }>);

impl Kernels {
    pub(super) fn load(driver: &dyn Driver) -> Result<Self> {
        let shared = |dim| shared_bytes(driver, dim);
        Ok(Self(ByTypeAndHead::load(driver, kernel_image!(decode_attention), HEAD_DIMS, shared)?))
    }
}

/// Whether the kernel can do this step: each token is alone in its sequence, so that none reads what another writes, and heads are
/// whole vectors in a cache that the tensor cores can read.
pub(super) fn supports(
    cuda: &Cuda,
    kv: &KvLayer<Cuda>,
    batch: &StagedBatch,
    params: &AttentionParams,
) -> bool {
    let dim = params.heads.head_dim;
    !cuda.exact
        && TENSOR_CORE_TYPES.contains(&kv.k.dtype())
        && batch.is_decode()
        && dim.is_multiple_of(8)
        && dim <= HEAD_DIMS[HEAD_DIMS.len() - 1]
}

/// Blocks for a token's heads, and parts that its positions are cut into: enough blocks to fill the device. The numbers do not depend on
/// lengths, so that a recorded graph serves any.
fn blocks_and_splits(cuda: &Cuda, heads: Heads, n_tokens: usize) -> (usize, usize) {
    let blocks = heads.n_kv_heads * (heads.n_heads / heads.n_kv_heads).div_ceil(HEADS);
    let n_multiprocessors = cuda.driver.n_multiprocessors() as usize;
    (blocks, (n_multiprocessors / (n_tokens * blocks).max(1)).clamp(1, MAX_SPLITS))
}

/// Whether the results can be tiles of activations, which only one split writes.
pub(super) fn writes_tiles(cuda: &Cuda, batch: &StagedBatch, heads: Heads) -> bool {
    blocks_and_splits(cuda, heads, batch.n_tokens()).1 == 1
}

/// `y` [n_tokens, heads], or its memory as tiles of `tile_rows` rows where that is not 0.
pub(super) fn attention(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    tile_rows: usize,
    qkv: &Tensor<Cuda>,
    step: Step<'_>,
) -> Result<()> {
    let Step { kv, batch, prep, params } = step;
    let h = params.heads;
    let n_tokens = batch.n_tokens();
    let dtype = kv.k.dtype();
    assert_eq!(h, prep.heads);
    assert_eq!((qkv.row_len(), y.row_len()), (h.qkv_len(), h.n_heads * h.head_dim));
    assert_eq!((qkv.rows(), y.rows()), (n_tokens, n_tokens));
    assert_eq!((kv.k.shape()[1], kv.k.shape()[3]), (h.n_kv_heads, h.head_dim));
    let (q_norm, k_norm) = prep.qk_norm.unzip();
    for norm in [q_norm, k_norm].into_iter().flatten() {
        assert_eq!(norm.weight.len(), h.head_dim);
    }
    if let (Some(q), Some(k)) = (q_norm, k_norm) {
        assert_eq!(q.kind, k.kind, "norms of queries and keys");
    }
    let rope_dim = prep.angles.map_or(0, |(t, _)| t.row_len());
    assert!(rope_dim <= h.head_dim, "{rope_dim} of {} elements turn", h.head_dim);
    let size = HEAD_DIMS.iter().position(|&dim| h.head_dim <= dim).expect("a size of heads that is compiled");
    let f = cuda.room::<Kernels>().0.get(dtype, size).expect("a type of cache that tensor cores read");
    let (blocks, n_splits) = blocks_and_splits(cuda, h, n_tokens);
    assert!(tile_rows == 0 || n_splits == 1, "tiles of {n_splits} splits");
    // Some without work, so that all multiprocessors have as many: see decode_attention.cu.
    let n_blocks = (n_tokens * blocks * n_splits).next_multiple_of(cuda.driver.n_multiprocessors() as usize);
    let floats = n_tokens * h.n_heads * n_splits * (h.head_dim + 2);
    let ptr = |t: Option<&Tensor<Cuda>>| t.map_or(DevicePtr::NULL, Tensor::ptr);
    let args = DecodeAttentionArgs {
        y: y.ptr(),
        partial: cuda.scratch.get(&cuda.driver, "attention in parts", 4 * floats)?,
        arrived: cuda.scratch.zeros(&cuda.driver, "counts of parts", 4 * n_tokens * blocks)?,
        qkv: qkv.ptr(),
        k_cache: kv.k.buffer().ptr(),
        v_cache: kv.v.buffer().ptr(),
        q_weight: ptr(q_norm.map(|n| &n.weight)),
        q_bias: ptr(q_norm.and_then(|n| n.bias.as_ref())),
        k_weight: ptr(k_norm.map(|n| &n.weight)),
        k_bias: ptr(k_norm.and_then(|n| n.bias.as_ref())),
        angles: ptr(prep.angles.map(|a| a.0)),
        positions: batch.positions(),
        table_starts: batch.table_starts(),
        block_tables: batch.block_tables(),
        n_heads: h.n_heads as u32,
        n_kv_heads: h.n_kv_heads as u32,
        head_dim: h.head_dim as u32,
        head_bytes: dtype.bytes_for(h.head_dim).expect("a cache was made of whole blocks") as u32,
        rope_dim: rope_dim as u32,
        interleaved: u32::from(prep.angles.is_some_and(|(_, s)| s == RopeStyle::Interleaved)),
        n_tokens: n_tokens as u32,
        block_size: kv.k.shape()[2] as u32,
        layer: u32::from(q_norm.is_some_and(|n| n.kind == NormKind::Layer)),
        n_splits: n_splits as u32,
        tile_rows: tile_rows as u32,
        window: params.window.map_or(i32::MAX as u32, |w| w.min(i32::MAX as usize) as u32),
        q_eps: q_norm.map_or(0.0, |n| n.eps),
        k_eps: k_norm.map_or(0.0, |n| n.eps),
        scale: params.scale,
        softcap: params.softcap.unwrap_or(0.0),
        all_run: u32::from(n_tokens == 1 && h.n_heads * h.head_dim > ALL_RUN),
    };
    let (threads, shared) =
        (32 * warps(HEAD_DIMS[size]) as u32, shared_bytes(&*cuda.driver, HEAD_DIMS[size]));
    // SAFETY: every token has a row in qkv and y, and its block table covers its positions, each of which the scheduler gave to one
    // token only; `partial` has room for all splits, `arrived` for all blocks of heads.
    cuda.smem_guard.keep(|| unsafe { cuda.launch_shared(f, [n_blocks, 1, 1], threads, shared, &args) })
}
