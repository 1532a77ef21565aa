//! Launches of prefill_attention.cu and, on Hopper, of prefill_attention_hopper.cu: many tokens per sequence, on the tensor cores.

use super::cache::{ByTypeAndHead, TENSOR_CORE_TYPES};
use super::prep::{PrepArgs, ahead, sinks, window};
use super::rope;
use super::step::{AttentionInput, Step};
use crate::cuda::batch::StagedBatch;
use crate::cuda::common::Output;
use crate::cuda::driver::{BoxMap, Boxes, Cuda, DevicePtr, Driver, Mode, kernel_args, kernel_image};
use crate::{AttentionParams, DType, Heads, KvLayer, Profile, QkvPrep, Result, Tensor};

/// Head dimensions that the kernels are compiled for; others are padded to the next.
pub(super) const HEAD_DIMS: [usize; 3] = [64, 128, 256];

/// The size of a block of the kernel for this GPU and size of heads.
#[derive(Clone, Copy)]
struct Block {
    /// Tokens times query heads that share a KV head.
    rows: usize,
    /// Keys of a step.
    keys: usize,
    /// Stages of queries in shared memory.
    query_stages: usize,
    threads: u32,
    /// Elements of a head that the kernel is compiled for.
    head_dim: usize,
    hopper: bool,
}

impl Block {
    /// `head_dim`: one of `HEAD_DIMS`.
    fn new(hopper: bool, head_dim: usize) -> Self {
        let (rows, keys, query_stages, threads) = match (hopper, head_dim > 128) {
            (false, false) => (64, 64, 0, 128),
            (false, true) => (64, 32, 1, 128),
            (true, false) => (128, 128, 2, 512),
            (true, true) => (128, 64, 1, 384),
        };
        Self { rows, keys, query_stages, threads, head_dim, hopper }
    }

    /// Bytes of dynamic shared memory: two stages of keys and of values, and those of queries; on Hopper aligned to 1024 bytes.
    const fn shared_bytes(self) -> usize {
        let rows = 2 * 2 * self.keys + self.query_stages * self.rows;
        rows * self.head_dim * 2 + if self.hopper { 1024 } else { 0 }
    }
}

kernel_args! {
    in "prefill_attention_args.cuh";

    struct PrefillAttentionArgs {
        /// [n_tokens, n_heads, head_dim] as floats, or as tiles
        y: DevicePtr as "float*",
        /// [n_tokens] rows of `qkv_len`, of which the first n_heads * head_dim are queries
        qkv: DevicePtr as "const float*",
        /// [n_blocks, n_kv_heads, block_size, head_dim]
        k_cache: DevicePtr as "const uint8_t*",
        v_cache: DevicePtr as "const uint8_t*",
        /// [n_tokens]
        positions: DevicePtr as "const uint32_t*",
        /// [n_tokens]
        table_starts: DevicePtr as "const uint32_t*",
        block_tables: DevicePtr as "const uint32_t*",
        /// [n_heads]: a score of each head that joins the sum and has no value; or null
        sinks: DevicePtr as "const float*",
        /// [n_seqs + 1]: first token of each sequence, and the number of tokens
        seq_starts: DevicePtr as "const uint32_t*",
        qkv_len: u32,
        n_seqs: u32,
        n_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        block_size: u32,
        /// tokens of a block
        tile_tokens: u32,
        /// query heads of a block
        tile_heads: u32,
        /// positions after its own that a token sees
        ahead: u32,
        /// all positions that a token sees
        span: u32,
        scale: f32,
        /// 0: none
        softcap: f32,
        /// rows of y's tiles; 0: y is floats
        y_rows: u32,
        /// a TileNumber
        y_number: u32,
    }
}

kernel_args! {
    in "prefill_attention_hopper_args.cuh";
    include "../common/hopper.cuh";
    include "prefill_attention_args.cuh";

    /// The same on Hopper, with TMA's descriptors of the cache and the preparation of queries.
    struct PrefillAttentionHopperArgs {
        of_all: PrefillAttentionArgs,
        /// rows of the cache, each a head of a position
        n_cache_rows: u32,
        /// rows of a TMA box, 8 to 128; 0: without TMA
        box_rows: u32,
        n_tiles: u32,
        /// of 16 bits, as the cache's, [n_tokens, n_heads, head_dim]; or null, and they are rows of qkv
        queries: DevicePtr as "const uint8_t*",
        /// [head_dim]; null where queries are prepared or have no norm
        q_weight: DevicePtr as "const float*",
        /// [head_dim] or null
        q_bias: DevicePtr as "const float*",
        /// [n_tokens, rope_dim]: cosines, then sines; null where nothing rotates
        angles: DevicePtr as "const float*",
        rope_dim: u32,
        interleaved: u32,
        /// 1: the norm subtracts the mean
        q_layer: u32,
        q_eps: f32,
        k_map: BoxMap as "ptx::TensorMap",
        v_map: BoxMap as "ptx::TensorMap",
    }
}

/// Rows of a TMA box, if TMA can load this cache: elements of 16 bits, and boxes that divide both a step and a block of the cache.
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
        let hopper = driver.is_hopper();
        let shared = |dim| Block::new(hopper, dim).shared_bytes();
        Ok(match hopper {
            false => Self::Ampere(ByTypeAndHead::load(
                driver,
                kernel_image!(prefill_attention),
                "prefill_attention",
                HEAD_DIMS,
                shared,
            )?),
            true => Self::Hopper(ByTypeAndHead::load(
                driver,
                kernel_image!(prefill_attention_hopper),
                "prefill_attention_hopper",
                HEAD_DIMS,
                shared,
            )?),
        })
    }
}

/// Whether these kernels compute this step: more than two tokens per sequence on average, heads of a multiple of 8 elements, and a cache
/// that the tensor cores can read.
pub(super) fn supports(
    cuda: &Cuda,
    kv: &KvLayer<Cuda>,
    batch: &StagedBatch,
    params: &AttentionParams,
) -> bool {
    let dim = params.heads.head_dim;
    cuda.mode == Mode::Fast
        && !params.alibi
        && TENSOR_CORE_TYPES.contains(&kv.k.dtype())
        && dim.is_multiple_of(8)
        && dim <= HEAD_DIMS[HEAD_DIMS.len() - 1]
        && batch.n_tokens() > 2 * batch.n_seqs()
}

/// What is left to do with queries before they are multiplied.
#[derive(Clone, Copy)]
pub(super) enum Queries<'a> {
    /// Nothing: they are floats.
    Prepared,
    /// Nothing: they are in 16 bits, [n_tokens, n_heads, head_dim], in the memory of `qkv`.
    Halves,
    /// On Hopper, their norm and rotation.
    Left(&'a QkvPrep<'a, Cuda>),
}

/// Prepares keys and values and writes them to the cache, unless they are `stored` ([`super::slots`]), then [`attention`]. On Hopper attention's kernel prepares the queries.
pub(super) fn store_and_attend(
    cuda: &Cuda,
    y: Output,
    qkv: &mut Tensor<Cuda>,
    step: Step<'_>,
    stored: bool,
) -> Result<()> {
    let Step { kv, batch, prep, params, sinks } = step;
    let prep = &prep;
    assert_eq!((params.heads, qkv.rows()), (prep.heads, batch.n_tokens()));
    let (queries, first_head) = match (stored, cuda.driver.is_hopper()) {
        (true, _) => (Queries::Halves, 0),
        (false, true) => (Queries::Left(prep), prep.heads.n_heads),
        (false, false) => (Queries::Prepared, 0),
    };
    if !stored {
        cuda.timed("store_kv", || rope::store_kv(cuda, qkv, kv, batch, prep, first_head))?;
    }
    let input = AttentionInput { qkv, kv, batch, params, sinks };
    cuda.timed("attention", || attention(cuda, y, input, queries))
}

/// As [`attention`](super::attention), which checks the shapes.
pub(super) fn attention(
    cuda: &Cuda,
    y: Output,
    input: AttentionInput<'_>,
    queries: Queries<'_>,
) -> Result<()> {
    let AttentionInput { kv, batch, params, .. } = input;
    let h = params.heads;
    let i = HEAD_DIMS.iter().position(|&d| h.head_dim <= d).expect("`supports` checked the head size");
    let block = Block::new(cuda.driver.is_hopper(), HEAD_DIMS[i]);
    let tiling = Tiling::new(block.rows, h);
    let args = PrefillAttentionArgs::new(y, &input, &tiling);
    let n_tiles = tiling.n_tiles(h, batch);
    let (shared, supported) = (block.shared_bytes(), "`supports` checked the cache's type");
    match cuda.room::<Kernels>() {
        Kernels::Ampere(kernels) => {
            let f = kernels.get(kv.k.dtype(), i).expect(supported);
            // SAFETY: qkv and y have a row for each token and the cache has heads of these sizes, as the callers checked; staging the batch
            // checked that block tables cover positions and name blocks of the cache. The grid has a block for each tile.
            unsafe { cuda.launch_shared(f, [n_tiles, 1, 1], block.threads, shared, &args) }
        }
        Kernels::Hopper(kernels) => {
            let f = kernels.get(kv.k.dtype(), i).expect(supported);
            let args = hopper_arguments(cuda, args, kv, block, queries, n_tiles)?;
            let n_blocks = n_tiles.min(cuda.driver.n_multiprocessors() as usize);
            // SAFETY: as above, with persistent blocks that loop over the tiles; the tensor maps describe the whole cache, whose
            // buffers outlive the launch as `kv` does.
            unsafe { cuda.launch_shared(f, [n_blocks, 1, 1], block.threads, shared, &args) }
        }
    }
}

impl PrefillAttentionArgs {
    pub(super) fn new(y: Output, input: &AttentionInput<'_>, tiling: &Tiling) -> Self {
        let AttentionInput { qkv, kv, batch, params, sinks: of_heads } = *input;
        let h = params.heads;
        Self {
            y: y.ptr(),
            qkv: qkv.ptr(),
            k_cache: kv.k.buffer().ptr(),
            v_cache: kv.values().buffer().ptr(),
            positions: batch.positions(),
            table_starts: batch.table_starts(),
            block_tables: batch.block_tables(),
            sinks: sinks(of_heads, h),
            seq_starts: batch.seq_starts(),
            qkv_len: qkv.row_len() as u32,
            n_seqs: batch.n_seqs() as u32,
            n_heads: h.n_heads as u32,
            n_kv_heads: h.n_kv_heads as u32,
            head_dim: h.head_dim as u32,
            block_size: kv.k.shape()[2] as u32,
            tile_tokens: tiling.tokens as u32,
            tile_heads: tiling.heads as u32,
            ahead: ahead(params),
            span: window(params) + ahead(params),
            scale: params.scale,
            softcap: params.softcap.unwrap_or(0.0),
            y_rows: y.tile_rows() as u32,
            y_number: y.tile_number(),
        }
    }
}

/// How rows of queries are cut into tiles, a block's work.
pub(super) struct Tiling {
    /// Tokens of a tile.
    tokens: usize,
    /// Query heads of a tile, which share a KV head.
    heads: usize,
}

impl Tiling {
    /// Of blocks of so many rows.
    pub(super) fn new(rows: usize, heads: Heads) -> Self {
        let tile_heads = (heads.n_heads / heads.n_kv_heads).min(rows);
        Self { tokens: rows / tile_heads, heads: tile_heads }
    }

    /// Tiles of a step.
    pub(super) fn n_tiles(&self, heads: Heads, batch: &StagedBatch) -> usize {
        let token_tiles: usize = batch.seq_lens().map(|n| n.div_ceil(self.tokens)).sum();
        token_tiles * heads.n_kv_heads * (heads.n_heads / heads.n_kv_heads).div_ceil(self.heads)
    }
}

/// The arguments on Hopper.
fn hopper_arguments(
    cuda: &Cuda,
    of_all: PrefillAttentionArgs,
    kv: &KvLayer<Cuda>,
    block: Block,
    queries: Queries<'_>,
    n_tiles: usize,
) -> Result<PrefillAttentionHopperArgs> {
    let n_cache_rows = kv.k.shape()[..3].iter().product::<usize>();
    let box_rows = box_rows(kv, block).filter(|_| i32::try_from(n_cache_rows).is_ok());
    let map = |cache: &Tensor<Cuda>| match box_rows {
        None => Ok(BoxMap([0; 16])),
        Some(box_rows) => cuda.driver.box_map(Boxes {
            rows: cache.buffer().ptr(),
            n_rows: n_cache_rows,
            row_bytes: 2 * kv.k.shape()[3],
            box_rows,
            spread: false,
            box_bytes: 128,
            swizzled: true,
        }),
    };
    let (queries, prep) = match queries {
        Queries::Prepared => (DevicePtr::NULL, PrepArgs::NONE),
        Queries::Halves => (of_all.qkv, PrepArgs::NONE),
        Queries::Left(prep) => (DevicePtr::NULL, PrepArgs::new(prep)),
    };
    Ok(PrefillAttentionHopperArgs {
        of_all,
        n_cache_rows: n_cache_rows as u32,
        box_rows: box_rows.unwrap_or(0) as u32,
        n_tiles: n_tiles as u32,
        queries,
        q_weight: prep.q.weight,
        q_bias: prep.q.bias,
        angles: prep.angles,
        rope_dim: prep.rope_dim,
        interleaved: prep.interleaved,
        q_layer: prep.is_layer_norm,
        q_eps: prep.q.eps,
        k_map: map(&kv.k)?,
        v_map: map(kv.values())?,
    })
}
