//! Launches of decode_attention.cu: QK norm, RoPE, the write to the cache and attention, for one token per sequence.

use super::cache::{ByTypeAndHead, TENSOR_CORE_TYPES};
use super::check_shapes;
use super::prep::{PrepArgs, sinks, window};
use super::step::{AttentionInput, Step};
use crate::cuda::batch::{HEADS_OF_BLOCK, KEYS_OF_TILE, MAX_SPLITS, Splits, StagedBatch, head_blocks};
use crate::cuda::driver::{
    Cuda, DevicePtr, Driver, Mode, kernel_args, kernel_image, more_than_half, sm_shared_bytes,
};
use crate::{AttentionParams, Heads, KvLayer, Result, Tensor};

/// With one token and more elements of queries than this, blocks without work run the code too (see decode_attention.cu). In smaller models
/// the next matmuls load most of their weights before attention ends, and an early start is worth more.
const ALL_RUN_ABOVE: usize = 2048;
/// Head dimensions that the kernels are compiled for; others are padded to the next.
const HEAD_DIMS: [usize; 3] = [64, 128, 256];

/// Most tokens of a launch, for whose splits there is scratch memory.
const MAX_TOKENS: usize = 256;
/// Threads of a block that stores a token's key and value.
const STORE_THREADS: u32 = 64;

/// Warps of a block.
const fn warps(head_dim: usize) -> usize {
    if head_dim > 128 { 4 } else { 8 }
}

/// Bytes of dynamic shared memory: tiles of keys and values for each warp, queries, the token's own key and value, a head for each warp.
fn shared_bytes(driver: &dyn Driver, head_dim: usize) -> usize {
    let row = 2 * (head_dim + 8);
    let tiles = if driver.is_hopper() { 3 } else { 2 };
    warps(head_dim) * (tiles * KEYS_OF_TILE * row + 4 * head_dim) + (HEADS_OF_BLOCK + 2) * row
}

/// The same of a block that shares its SM with none of its kind. Where there is a block for each SM, two would come to those that the kernel
/// before leaves first, on Hopper, where kernels overlap.
fn lone_bytes(driver: &dyn Driver, head_dim: usize) -> usize {
    match (driver.is_hopper(), shared_bytes(driver, head_dim)) {
        (true, shared) => shared.max(more_than_half(sm_shared_bytes(driver.max_shared_bytes()))),
        (false, shared) => shared,
    }
}

kernel_args! {
    in "decode_attention_args.cuh";
    include "../batch/splits_args.cuh";

    struct DecodeAttentionArgs {
        /// [n_tokens, n_heads, head_dim] as floats, or as tiles in the order of packed columns
        y: DevicePtr as "float*",
        /// [splits of all tokens, n_heads, head_dim + 2]: output, maximum, sum
        partial: DevicePtr as "float*",
        /// [n_tokens, groups of a token's heads]: splits that are done; zero before and after a launch
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
        /// [n_tokens, rope_dim]: cosines, then sines; null where nothing rotates
        angles: DevicePtr as "const float*",
        /// [n_tokens]
        positions: DevicePtr as "const uint32_t*",
        /// [n_splits], of which the last may be zeros; or null, and tokens have `n_splits` each
        splits: DevicePtr as "const AttentionSplit*",
        /// [n_tokens]
        table_starts: DevicePtr as "const uint32_t*",
        block_tables: DevicePtr as "const uint32_t*",
        /// [n_heads]: a score of each head that joins the sum and has no value; or null
        sinks: DevicePtr as "const float*",
        n_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        head_bytes: u32,
        rope_dim: u32,
        interleaved: u32,
        n_tokens: u32,
        block_size: u32,
        /// 1: the norms subtract the mean
        layer: u32,
        /// groups of a token's heads, a block each
        head_blocks: u32,
        n_splits: u32,
        /// of these, so many have blocks
        n_parallel: u32,
        /// 1: the kernel before has written keys and values of the step
        is_stored: u32,
        /// rows of y's tiles; 0: y is floats
        tile_rows: u32,
        /// positions that a token sees, including its own
        window: u32,
        q_eps: f32,
        k_eps: f32,
        scale: f32,
        /// 0: none
        softcap: f32,
        /// 1: blocks without work run the code too
        all_run: u32,
    }
}

/// Kernels of decode_attention.cu.
pub(super) struct Kernels {
    attention: ByHead,
    /// All splits of a token are its position's.
    deterministic: ByHead,
    store_heads: ByHead,
}

type ByHead = ByTypeAndHead<DecodeAttentionArgs, { HEAD_DIMS.len() }>;

impl Kernels {
    pub(super) fn load(driver: &dyn Driver) -> Result<Self> {
        let (image, shared) = (kernel_image!(decode_attention), |dim| lone_bytes(driver, dim));
        Ok(Self {
            attention: ByHead::load(driver, image, "decode_attention", HEAD_DIMS, shared)?,
            deterministic: ByHead::load(driver, image, "deterministic_attention", HEAD_DIMS, shared)?,
            store_heads: ByHead::load(driver, image, "store_heads", HEAD_DIMS, |_| 0)?,
        })
    }
}

/// Whether the kernel computes this step: heads of a multiple of 8 elements in a cache that the tensor cores can read, of blocks of whole
/// tiles, and one token per sequence, so that none reads what another writes. In the deterministic mode, where all steps have the same sums,
/// tokens only have to see none that come later.
pub(super) fn supports(
    cuda: &Cuda,
    kv: &KvLayer<Cuda>,
    batch: &StagedBatch,
    params: &AttentionParams,
) -> bool {
    let dim = params.heads.head_dim;
    let is_decode = match cuda.mode {
        Mode::Fast => batch.is_decode(),
        Mode::Deterministic => params.causal,
        Mode::Exact => false,
    };
    is_decode
        && !params.alibi
        && TENSOR_CORE_TYPES.contains(&kv.k.dtype())
        // The keys of a tile lie side by side.
        && kv.k.shape()[2].is_multiple_of(KEYS_OF_TILE)
        && dim.is_multiple_of(8)
        && dim <= HEAD_DIMS[HEAD_DIMS.len() - 1]
}

/// Splits of each token's positions where there is no table of them: enough blocks for all SMs. The number does not depend on lengths, so that
/// a captured graph serves any.
fn even_splits(cuda: &Cuda, heads: Heads, n_tokens: usize) -> usize {
    let n_multiprocessors = cuda.driver.n_multiprocessors() as usize;
    (n_multiprocessors / (n_tokens * head_blocks(heads)).max(1)).clamp(1, MAX_SPLITS)
}

/// How the positions of a step's tokens are shared out.
struct Sharing {
    /// The table of splits, or nothing.
    splits: DevicePtr,
    /// Of all tokens at most, or of each.
    n_splits: usize,
    /// Results of a token's head that there may be at most, of all tokens.
    n_results: usize,
    n_blocks: usize,
}

impl Sharing {
    fn new(cuda: &Cuda, batch: &StagedBatch, params: &AttentionParams) -> Self {
        let n_multiprocessors = cuda.driver.n_multiprocessors() as usize;
        let (blocks, n_tokens) = (head_blocks(params.heads), batch.n_tokens());
        match batch.splits().filter(|_| params.window.is_none()) {
            Some(Splits { table, len, n_blocks }) => {
                Self { splits: table, n_splits: len, n_results: len, n_blocks }
            }
            None => {
                let n_splits = even_splits(cuda, params.heads, n_tokens);
                Self {
                    splits: DevicePtr::NULL,
                    n_splits,
                    n_results: n_tokens * n_splits,
                    n_blocks: (n_tokens * blocks * n_splits).next_multiple_of(n_multiprocessors),
                }
            }
        }
    }

    /// In the deterministic mode a token's splits are those that it has by itself, and launches have at most so many tokens.
    fn deterministic(cuda: &Cuda, heads: Heads, n_tokens: usize) -> Self {
        let n_splits = even_splits(cuda, heads, 1);
        let n_results = n_tokens.min(MAX_TOKENS) * n_splits;
        Self { splits: DevicePtr::NULL, n_splits, n_results, n_blocks: 0 }
    }
}

/// Whether the result can be tiles.
pub(super) fn writes_tiles(cuda: &Cuda) -> bool {
    cuda.mode == Mode::Fast
}

/// Writes `y` [n_tokens, n_heads · head_dim], or its memory as tiles of `tile_rows` rows where that is not 0.
pub(super) fn attention(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    tile_rows: usize,
    qkv: &Tensor<Cuda>,
    step: Step<'_>,
) -> Result<()> {
    let (batch, params) = (step.batch, step.params);
    let (h, n_tokens) = (params.heads, batch.n_tokens());
    check_shapes(y, &AttentionInput { qkv, kv: step.kv, batch, params, sinks: step.sinks });
    let size = HEAD_DIMS.iter().position(|&dim| h.head_dim <= dim).expect("`supports` checked the head size");
    let kernels = cuda.room::<Kernels>();
    let kernel = |of: &ByHead| of.get(step.kv.k.dtype(), size).expect("`supports` checked the cache's type");
    let (threads, shared) =
        (32 * warps(HEAD_DIMS[size]) as u32, shared_bytes(&*cuda.driver, HEAD_DIMS[size]));
    let is_decode = batch.is_decode();
    if cuda.mode == Mode::Deterministic {
        let args = arguments(cuda, y, tile_rows, qkv, &step, &Sharing::deterministic(cuda, h, n_tokens))?;
        assert_eq!(tile_rows, 0, "tiles of a step whose results are floats");
        if !is_decode {
            let f = kernel(&kernels.store_heads);
            // SAFETY: as below; a block writes the head of a token.
            unsafe { cuda.launch(f, [n_tokens * h.n_kv_heads, 1, 1], STORE_THREADS, &args)? };
        }
        let f = kernel(&kernels.deterministic);
        for first in (0..n_tokens).step_by(MAX_TOKENS) {
            let n = (n_tokens - first).min(MAX_TOKENS);
            let n_parallel = even_splits(cuda, h, n);
            let n_blocks =
                (n * head_blocks(h) * n_parallel).next_multiple_of(cuda.driver.n_multiprocessors() as usize);
            let args = args.of_tokens(first, n, n_parallel);
            let launch = || {
                // SAFETY: as below. Where tokens of a sequence are in one step, all keys and values are stored before, and a block writes the
                // same bits again.
                unsafe { cuda.launch_shared(f, [n_blocks, 1, 1], threads, shared, &args) }
            };
            cuda.smem_guard.keep(launch)?;
        }
        return Ok(());
    }
    let f = kernel(&kernels.attention);
    let sharing = Sharing::new(cuda, batch, params);
    let (args, n_blocks) = (arguments(cuda, y, tile_rows, qkv, &step, &sharing)?, sharing.n_blocks);
    // The same number on each SM, some without work: see decode_attention.cu.
    let is_lone = n_blocks == cuda.driver.n_multiprocessors() as usize;
    let shared = if is_lone { lone_bytes(&*cuda.driver, HEAD_DIMS[size]) } else { shared };
    // SAFETY: qkv and y have a row for each token and the cache has heads of these sizes, as asserted above; norms and angles have the
    // sizes that PrepArgs checked. Staging the batch checked that block tables cover positions and name blocks of the cache; no two tokens of a
    // batch share a slot of it, so no two blocks write the same head. `partial` has room for all splits, `arrived` for all groups of heads.
    cuda.smem_guard.keep(|| unsafe { cuda.launch_shared(f, [n_blocks, 1, 1], threads, shared, &args) })
}

impl DecodeAttentionArgs {
    /// The same for `n` tokens from `first` on.
    fn of_tokens(self, first: usize, n: usize, n_parallel: usize) -> Self {
        let (h, n_kv) = (self.n_heads as usize, self.n_kv_heads as usize);
        let dim = self.head_dim as usize;
        let rows =
            |p: DevicePtr, len: usize| if p == DevicePtr::NULL { p } else { p.offset(4 * first * len) };
        Self {
            y: rows(self.y, h * dim),
            qkv: rows(self.qkv, (h + 2 * n_kv) * dim),
            angles: rows(self.angles, self.rope_dim as usize),
            positions: rows(self.positions, 1),
            table_starts: rows(self.table_starts, 1),
            n_tokens: n as u32,
            n_parallel: n_parallel as u32,
            ..self
        }
    }
}

/// The kernel's arguments, with scratch memory for the results of splits.
fn arguments(
    cuda: &Cuda,
    y: &Tensor<Cuda>,
    tile_rows: usize,
    qkv: &Tensor<Cuda>,
    step: &Step<'_>,
    sharing: &Sharing,
) -> Result<DecodeAttentionArgs> {
    let Step { kv, batch, prep, params, sinks: of_heads } = step;
    let (h, n_tokens) = (params.heads, batch.n_tokens());
    assert_eq!(h, prep.heads);
    let prep = PrepArgs::new(prep);
    let (blocks, n_splits) = (head_blocks(h), sharing.n_splits);
    let floats = sharing.n_results * h.n_heads * (h.head_dim + 2);
    let head_bytes = kv.k.dtype().bytes_for(h.head_dim).expect("a cache has whole blocks of its type");
    Ok(DecodeAttentionArgs {
        y: y.ptr(),
        partial: cuda.scratch.get(&cuda.driver, "attention in parts", 4 * floats)?,
        arrived: cuda.scratch.zeros(&cuda.driver, "counts of parts", 4 * n_tokens * blocks)?,
        qkv: qkv.ptr(),
        k_cache: kv.k.buffer().ptr(),
        v_cache: kv.values().buffer().ptr(),
        q_weight: prep.q.weight,
        q_bias: prep.q.bias,
        k_weight: prep.k.weight,
        k_bias: prep.k.bias,
        angles: prep.angles,
        positions: batch.positions(),
        splits: sharing.splits,
        table_starts: batch.table_starts(),
        block_tables: batch.block_tables(),
        sinks: sinks(*of_heads, h),
        n_heads: h.n_heads as u32,
        n_kv_heads: h.n_kv_heads as u32,
        head_dim: h.head_dim as u32,
        head_bytes: head_bytes as u32,
        rope_dim: prep.rope_dim,
        interleaved: prep.interleaved,
        n_tokens: n_tokens as u32,
        block_size: kv.k.shape()[2] as u32,
        layer: prep.is_layer_norm,
        head_blocks: blocks as u32,
        n_splits: n_splits as u32,
        n_parallel: n_splits as u32,
        is_stored: u32::from(!batch.is_decode()),
        tile_rows: tile_rows as u32,
        window: window(params),
        q_eps: prep.q.eps,
        k_eps: prep.k.eps,
        scale: params.scale,
        softcap: params.softcap.unwrap_or(0.0),
        all_run: u32::from(n_tokens == 1 && h.n_heads * h.head_dim > ALL_RUN_ABOVE),
    })
}
