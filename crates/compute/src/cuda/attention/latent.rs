//! Launches of latent.cu: what precedes latent attention.

use super::cache::ByCacheType;
use crate::cuda::batch::StagedBatch;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, kernel_args, kernel_image};
use crate::{Error, KvLayer, LatentPrep, LatentShape, NormKind, Result, RopeStyle, Tensor};

/// Largest vector and key together that attention takes.
const MAX_KEY_DIM: usize = 576;
/// Largest vector, of which attention sums.
const MAX_KV_RANK: usize = 512;

kernel_args! {
    in "latent_args.cuh";

    struct LatentArgs {
        /// [n_tokens, n_heads, kv_rank + rope_dim]; the ends of heads are written
        queries: DevicePtr as "float*",
        /// [n_tokens, n_heads, nope_dim + rope_dim]
        q: DevicePtr as "const float*",
        /// [n_tokens, kv_rank + rope_dim]
        latent: DevicePtr as "const float*",
        /// [n_blocks, block_size] keys of `key_bytes`
        cache: DevicePtr as "uint8_t*",
        /// [kv_rank]
        weight: DevicePtr as "const float*",
        /// [kv_rank] or null
        bias: DevicePtr as "const float*",
        /// [n_tokens, rope_dim]: cosines, then sines
        angles: DevicePtr as "const float*",
        /// [n_tokens]
        positions: DevicePtr as "const uint32_t*",
        /// [n_tokens]: first entry of a token's block table
        table_starts: DevicePtr as "const uint32_t*",
        block_tables: DevicePtr as "const uint32_t*",
        n_heads: u32,
        kv_rank: u32,
        nope_dim: u32,
        rope_dim: u32,
        interleaved: u32,
        key_bytes: u32,
        block_size: u32,
        /// 1: the norm subtracts the mean
        layer: u32,
        eps: f32,
    }
}

/// Kernels of latent.cu.
pub(super) struct Kernels(ByCacheType<LatentArgs>);

impl Kernels {
    pub(super) fn load(driver: &dyn Driver) -> Result<Self> {
        Ok(Self(ByCacheType::load(driver, kernel_image!(latent), "store_latent")?))
    }
}

/// Errors: `UnsupportedSize` for vectors or keys larger than the kernels take, or queries whose heads do not lie at multiples of 16 bytes.
pub(in crate::cuda) fn check_latent(shape: &LatentShape) -> Result<()> {
    let &LatentShape { kv_rank, rope_dim, nope_dim, .. } = shape;
    let what = match () {
        () if kv_rank > MAX_KV_RANK || shape.key_dim() > MAX_KEY_DIM => format!(
            "a vector of {kv_rank} elements with a key of {rope_dim}; the largest have {MAX_KV_RANK} and together {MAX_KEY_DIM}"
        ),
        // Rows of so many elements are read 16 bytes at a time.
        () if nope_dim.is_multiple_of(8) && !rope_dim.is_multiple_of(4) => {
            format!("queries of {nope_dim} and {rope_dim} elements")
        }
        () => return Ok(()),
    };
    Err(Error::UnsupportedSize { op: "latent attention", what, backend: "cuda" })
}

/// As [`Ops::store_latent`](crate::Ops::store_latent).
pub(in crate::cuda) fn store_latent(
    cuda: &Cuda,
    queries: &mut Tensor<Cuda>,
    q: &Tensor<Cuda>,
    latent: &Tensor<Cuda>,
    kv: &mut KvLayer<Cuda>,
    batch: &StagedBatch,
    prep: LatentPrep<'_, Cuda>,
) -> Result<()> {
    let LatentPrep { shape, norm, angles: (angles, style) } = prep;
    let (n_heads, key_dim, n_tokens) = (shape.n_heads, shape.key_dim(), batch.n_tokens());
    let dtype = kv.k.dtype();
    check_latent(&shape)?;
    assert_eq!((q.row_len(), latent.row_len()), (n_heads * shape.q_dim(), key_dim));
    assert_eq!((queries.row_len(), angles.row_len()), (n_heads * key_dim, shape.rope_dim));
    assert_eq!((queries.rows(), q.rows(), latent.rows()), (n_tokens, n_tokens, n_tokens));
    assert_eq!((kv.k.shape()[1], kv.k.shape()[3], norm.weight.len()), (1, key_dim, shape.kv_rank));
    let args = LatentArgs {
        queries: queries.ptr(),
        q: q.ptr(),
        latent: latent.ptr(),
        cache: kv.k.buffer().ptr(),
        weight: norm.weight.ptr(),
        bias: norm.bias.as_ref().map_or(DevicePtr::NULL, Tensor::ptr),
        angles: angles.ptr(),
        positions: batch.positions(),
        table_starts: batch.table_starts(),
        block_tables: batch.block_tables(),
        n_heads: n_heads as u32,
        kv_rank: shape.kv_rank as u32,
        nope_dim: shape.nope_dim as u32,
        rope_dim: shape.rope_dim as u32,
        interleaved: u32::from(style == RopeStyle::Interleaved),
        key_bytes: dtype.bytes_for(key_dim).expect("a cache was made of whole blocks") as u32,
        block_size: kv.k.shape()[2] as u32,
        layer: u32::from(norm.kind == NormKind::Layer),
        eps: norm.eps,
    };
    let f = cuda.room::<Kernels>().0.get(dtype)?;
    // SAFETY: all rows are there for each token, and the cache has keys of this size, as asserted above. Staging the batch checked that
    // block tables cover positions and name blocks of the cache; no two tokens of a batch share a slot of it.
    unsafe { cuda.launch(f, [n_tokens, 1 + n_heads.div_ceil(4), 1], 128, &args) }
}
