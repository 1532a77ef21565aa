//! Launches of attention.

use super::cache::ByCacheType;
use crate::cuda::batch::StagedBatch;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, kernel_args, kernel_image};
use crate::{AttentionParams, KvLayer, Result, Tensor};

/// Query heads of a block.
const MAX_ROWS: usize = 8;
/// Most parts that a token's positions are cut into.
const MAX_SPLITS: usize = 64;

kernel_args! {
    in "paged_attention_args.cuh";

    struct AttentionArgs {
        /// [n_tokens, n_heads, head_dim]
        y: DevicePtr as "float*",
        /// [n_tokens, n_heads, n_splits, head_dim + 2] where n_splits > 1: output, maximum, sum
        partial: DevicePtr as "float*",
        /// [n_tokens, (n_heads + 2 * n_kv_heads) * head_dim]
        qkv: DevicePtr as "const float*",
        /// [n_blocks, n_kv_heads, block_size] heads of `head_bytes`
        k_cache: DevicePtr as "const uint8_t*",
        v_cache: DevicePtr as "const uint8_t*",
        /// [n_tokens]
        positions: DevicePtr as "const uint32_t*",
        /// [n_tokens]
        table_starts: DevicePtr as "const uint32_t*",
        block_tables: DevicePtr as "const uint32_t*",
        n_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        head_bytes: u32,
        block_size: u32,
        n_splits: u32,
        /// positions that a token sees, itself among them
        window: u32,
        scale: f32,
        /// 0: none
        softcap: f32,
    }
}

/// Kernels of paged_attention.cu.
pub(super) struct Kernels {
    attention: ByCacheType<AttentionArgs>,
    attention_merge: Kernel<AttentionArgs>,
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

/// # Panics
/// If the shapes contradict each other.
pub(super) fn check_shapes(
    y: &Tensor<Cuda>,
    qkv: &Tensor<Cuda>,
    kv: &KvLayer<Cuda>,
    batch: &StagedBatch,
    params: &AttentionParams,
) {
    let (h, n_tokens) = (params.heads, batch.n_tokens());
    assert_eq!((qkv.row_len(), y.row_len()), (h.qkv_len(), h.n_heads * h.head_dim));
    assert_eq!((qkv.rows(), y.rows()), (n_tokens, n_tokens));
    assert_eq!((kv.k.shape()[1], kv.k.shape()[3]), (h.n_kv_heads, h.head_dim));
}

/// `y` [n_tokens, heads]; shapes as [`check_shapes`] wants them.
pub(super) fn attention(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    qkv: &Tensor<Cuda>,
    kv: &KvLayer<Cuda>,
    batch: &StagedBatch,
    params: &AttentionParams,
) -> Result<()> {
    let h = params.heads;
    let n_tokens = batch.n_tokens();
    let dtype = kv.k.dtype();
    let kernels = cuda.room::<Kernels>();
    let f = kernels.attention.get(dtype)?;
    let chunks = (h.n_heads / h.n_kv_heads).div_ceil(MAX_ROWS);
    // Enough blocks to fill the device twice. The number does not depend on lengths, so that a recorded graph serves any.
    let n_splits = match cuda.exact {
        true => 1,
        false => (2 * cuda.driver.n_multiprocessors() as usize / (n_tokens * h.n_kv_heads * chunks).max(1))
            .clamp(1, MAX_SPLITS),
    };
    let partial = match n_splits {
        1 => DevicePtr::NULL,
        _ => {
            let floats = n_tokens * h.n_heads * n_splits * (h.head_dim + 2);
            cuda.scratch.get(&cuda.driver, "attention in parts", 4 * floats)?
        }
    };
    let args = AttentionArgs {
        y: y.ptr(),
        partial,
        qkv: qkv.ptr(),
        k_cache: kv.k.buffer().ptr(),
        v_cache: kv.v.buffer().ptr(),
        positions: batch.positions(),
        table_starts: batch.table_starts(),
        block_tables: batch.block_tables(),
        n_heads: h.n_heads as u32,
        n_kv_heads: h.n_kv_heads as u32,
        head_dim: h.head_dim as u32,
        head_bytes: dtype.bytes_for(h.head_dim).expect("a cache was made of whole blocks") as u32,
        block_size: kv.k.shape()[2] as u32,
        n_splits: n_splits as u32,
        window: params.window.map_or(i32::MAX as u32, |w| w.min(i32::MAX as usize) as u32),
        scale: params.scale,
        softcap: params.softcap.unwrap_or(0.0),
    };
    // SAFETY: every token has a row in qkv and y, and its block table covers its positions; `partial` has room for all splits.
    unsafe {
        cuda.launch(f, [n_tokens, h.n_kv_heads * chunks, n_splits], 128, &args)?;
        if n_splits > 1 {
            cuda.launch(kernels.attention_merge, [n_tokens, h.n_heads, 1], 128, &args)?;
        }
    }
    Ok(())
}
