//! Launches of paged_attention.cu: attention of any step, in f32.

use super::cache::ByCacheType;
use super::prep::{ahead, sinks, window};
use super::step::AttentionInput;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, Mode, kernel_args, kernel_image};
use crate::{Result, Tensor};

/// Query heads of a block.
const MAX_ROWS: usize = 8;
/// Threads of a block.
const THREADS: u32 = 128;
/// Most splits of a token's positions that this kernel makes.
const MAX_SPLITS: usize = 64;

kernel_args! {
    in "paged_attention_args.cuh";

    struct AttentionArgs {
        /// [n_tokens, n_heads, v_dim]
        y: DevicePtr as "float*",
        /// [n_tokens, n_heads, n_splits, v_dim + 2] where n_splits > 1: output, maximum, sum
        partial: DevicePtr as "float*",
        /// [n_tokens] rows of `qkv_len`, of which the first n_heads * head_dim are queries
        qkv: DevicePtr as "const float*",
        /// [n_blocks, n_kv_heads, block_size] heads of `head_bytes`, of which values have the first v_dim elements
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
        n_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        v_dim: u32,
        head_bytes: u32,
        block_size: u32,
        n_splits: u32,
        /// positions up to its own that a token sees, including its own
        window: u32,
        /// positions after its own that a token sees
        ahead: u32,
        n_seqs: u32,
        scale: f32,
        /// 0: none
        softcap: f32,
        /// 1: scores fall with distance, by the slopes of ALiBi
        alibi: u32,
    }

    /// Most splits that can be merged.
    const MAX_MERGED: usize = 128;

    struct AttentionMergeArgs {
        /// [n_tokens, n_heads, v_dim]
        y: DevicePtr as "float*",
        /// [n_tokens, n_heads, n_splits, v_dim + 2]: output, maximum, sum
        partial: DevicePtr as "const float*",
        n_heads: u32,
        v_dim: u32,
        n_splits: u32,
    }
}

/// Splits of each token's positions: so many in the fast mode only that there are two blocks per SM. Lengths do not matter, so that a
/// captured graph serves any.
fn n_splits(cuda: &Cuda, n_blocks: usize) -> usize {
    match cuda.mode {
        Mode::Deterministic | Mode::Exact => 1,
        Mode::Fast => (2 * cuda.driver.n_multiprocessors() as usize / n_blocks.max(1)).clamp(1, MAX_SPLITS),
    }
}

/// Kernels of paged_attention.cu.
pub(super) struct Kernels {
    attention: ByCacheType<AttentionArgs>,
    attention_merge: Kernel<AttentionMergeArgs>,
}

impl Kernels {
    pub(super) fn load(driver: &dyn Driver) -> Result<Self> {
        let image = kernel_image!(paged_attention);
        Ok(Self {
            attention: ByCacheType::load(driver, image, "attention")?,
            attention_merge: image.kernel(driver, "attention_merge", 0)?,
        })
    }
}

/// `y` [n_tokens, n_heads · v_dim], after [`check_shapes`](super::check_shapes).
pub(super) fn attention(cuda: &Cuda, y: &mut Tensor<Cuda>, input: AttentionInput<'_>) -> Result<()> {
    let AttentionInput { qkv, kv, batch, params, sinks: of_heads } = input;
    let h = params.heads;
    let (n_tokens, v_dim) = (batch.n_tokens(), y.row_len() / h.n_heads);
    let dtype = kv.k.dtype();
    let kernels = cuda.room::<Kernels>();
    let f = kernels.attention.get(dtype)?;
    let chunks = (h.n_heads / h.n_kv_heads).div_ceil(MAX_ROWS);
    let n_splits = n_splits(cuda, n_tokens * h.n_kv_heads * chunks);
    let partial = match n_splits {
        1 => DevicePtr::NULL,
        _ => partial(cuda, n_tokens * h.n_heads * n_splits, v_dim)?,
    };
    let args = AttentionArgs {
        y: y.ptr(),
        partial,
        qkv: qkv.ptr(),
        k_cache: kv.k.buffer().ptr(),
        v_cache: kv.values().buffer().ptr(),
        positions: batch.positions(),
        table_starts: batch.table_starts(),
        block_tables: batch.block_tables(),
        sinks: sinks(of_heads, h),
        seq_starts: batch.seq_starts(),
        qkv_len: qkv.row_len() as u32,
        n_heads: h.n_heads as u32,
        n_kv_heads: h.n_kv_heads as u32,
        head_dim: h.head_dim as u32,
        v_dim: v_dim as u32,
        head_bytes: dtype.bytes_for(h.head_dim).expect("a cache was made of whole blocks") as u32,
        block_size: kv.k.shape()[2] as u32,
        n_splits: n_splits as u32,
        window: window(params),
        ahead: ahead(params),
        n_seqs: batch.n_seqs() as u32,
        scale: params.scale,
        softcap: params.softcap.unwrap_or(0.0),
        alibi: u32::from(params.alibi),
    };
    // SAFETY: qkv and y have a row for each token and the cache has heads of these sizes, as the caller checked; staging the batch checked
    // that block tables cover positions and name blocks of the cache. `partial` has room for the results of all splits.
    unsafe { cuda.launch(f, [n_tokens, h.n_kv_heads * chunks, n_splits], THREADS, &args)? };
    merge(cuda, y, partial, h.n_heads, n_splits)
}

/// Room for the results of so many splits of heads of tokens.
pub(super) fn partial(cuda: &Cuda, n_results: usize, v_dim: usize) -> Result<DevicePtr> {
    cuda.scratch.get(&cuda.driver, "attention in parts", size_of::<f32>() * n_results * (v_dim + 2))
}

/// Merges what a kernel has left in [`partial`] of all splits.
pub(super) fn merge(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    partial: DevicePtr,
    n_heads: usize,
    n_splits: usize,
) -> Result<()> {
    if n_splits == 1 {
        return Ok(());
    }
    assert!(n_splits <= MAX_MERGED, "{n_splits} splits");
    let (n_tokens, v_dim) = (y.rows(), y.row_len() / n_heads);
    let args = AttentionMergeArgs {
        y: y.ptr(),
        partial,
        n_heads: n_heads as u32,
        v_dim: v_dim as u32,
        n_splits: n_splits as u32,
    };
    let blocks = [n_tokens, n_heads, v_dim.div_ceil(THREADS as usize)];
    // SAFETY: `partial` has the results of all splits of each head of each token, and y a row for each token.
    unsafe { cuda.launch(cuda.room::<Kernels>().attention_merge, blocks, THREADS, &args) }
}
