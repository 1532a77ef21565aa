//! Launches of rope.cu: angles of RoPE, and the preparation of queries, keys and values before attention.

use super::cache::ByCacheType;
use super::prep::PrepArgs;
use crate::cuda::batch::StagedBatch;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, kernel_args, kernel_image};
use crate::{KvLayer, QkvPrep, Result, Tensor};

kernel_args! {
    in "rope_args.cuh";

    struct AnglesArgs {
        /// [n_tokens, 2 * n]: cosines, then sines
        y: DevicePtr as "float*",
        /// [n]
        f: DevicePtr as "const float*",
        /// [n_tokens]
        positions: DevicePtr as "const uint32_t*",
        n: u32,
        scale: f32,
    }

    struct StoreArgs {
        /// [n_tokens, (n_heads + 2 * n_kv_heads) * head_dim]
        qkv: DevicePtr as "float*",
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
        /// [n_tokens]: first entry of a token's block table
        table_starts: DevicePtr as "const uint32_t*",
        block_tables: DevicePtr as "const uint32_t*",
        n_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        head_bytes: u32,
        /// heads before it are left alone
        first_head: u32,
        rope_dim: u32,
        interleaved: u32,
        block_size: u32,
        /// 1: the norms subtract the mean
        layer: u32,
        q_eps: f32,
        k_eps: f32,
    }
}

/// Writes the cosines, then the sines, of each token's angles, times `scale`: `y` [n_tokens, 2 · n], frequencies `f` [n].
pub(in crate::cuda) fn angles(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    f: &Tensor<Cuda>,
    batch: &StagedBatch,
    scale: f32,
) -> Result<()> {
    assert_eq!((y.row_len(), y.rows()), (2 * f.len(), batch.n_tokens()));
    let args = AnglesArgs { y: y.ptr(), f: f.ptr(), positions: batch.positions(), n: f.len() as u32, scale };
    // SAFETY: y has 2 · n elements for each token of the batch, as asserted above, and f has n.
    unsafe { cuda.launch(cuda.room::<Kernels>().rope_angles, [y.rows(), 1, 1], 128, &args) }
}

/// Kernels of rope.cu.
pub(super) struct Kernels {
    rope_angles: Kernel<AnglesArgs>,
    store_kv: ByCacheType<StoreArgs>,
}

impl Kernels {
    pub(super) fn load(driver: &dyn Driver) -> Result<Self> {
        let image = kernel_image!(rope);
        Ok(Self {
            rope_angles: image.kernel(driver, "rope_angles", 0)?,
            store_kv: ByCacheType::load(driver, image, "store_kv")?,
        })
    }
}

/// Prepares the heads of `qkv` from `first_head` on (queries, then keys, then values): QK norm, RoPE, and keys and values into the cache.
pub(in crate::cuda) fn store_kv(
    cuda: &Cuda,
    qkv: &mut Tensor<Cuda>,
    kv: &mut KvLayer<Cuda>,
    batch: &StagedBatch,
    prep: &QkvPrep<'_, Cuda>,
    first_head: usize,
) -> Result<()> {
    let h = prep.heads;
    let dtype = kv.k.dtype();
    assert_eq!((qkv.row_len(), qkv.rows()), (h.qkv_len(), batch.n_tokens()));
    // Queries alone write nothing.
    assert!(
        [0, kv.k.shape()[1]].contains(&h.n_kv_heads) && kv.k.shape()[3] == h.head_dim,
        "{h:?} for {:?}",
        kv.k
    );
    let prep = PrepArgs::new(prep);
    let args = StoreArgs {
        qkv: qkv.ptr(),
        k_cache: kv.k.buffer().ptr(),
        v_cache: kv.values().buffer().ptr(),
        q_weight: prep.q.weight,
        q_bias: prep.q.bias,
        k_weight: prep.k.weight,
        k_bias: prep.k.bias,
        angles: prep.angles,
        positions: batch.positions(),
        table_starts: batch.table_starts(),
        block_tables: batch.block_tables(),
        n_heads: h.n_heads as u32,
        n_kv_heads: h.n_kv_heads as u32,
        head_dim: h.head_dim as u32,
        head_bytes: dtype.bytes_for(h.head_dim).expect("a cache was made of whole blocks") as u32,
        first_head: first_head as u32,
        rope_dim: prep.rope_dim,
        interleaved: prep.interleaved,
        block_size: kv.k.shape()[2] as u32,
        layer: prep.is_layer_norm,
        q_eps: prep.q.eps,
        k_eps: prep.k.eps,
    };
    let f = cuda.room::<Kernels>().store_kv.get(dtype)?;
    let n_heads = h.n_heads + 2 * h.n_kv_heads - first_head;
    // SAFETY: qkv has a row for each token, and the cache heads of these sizes, as asserted above; norms and angles have the sizes that
    // PrepArgs checked. Staging the batch checked that block tables cover positions and name blocks of the cache; no two tokens of a
    // batch share a slot of it, so no two warps write the same head.
    unsafe { cuda.launch(f, [qkv.rows(), n_heads.div_ceil(4), 1], 128, &args) }
}
