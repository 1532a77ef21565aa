//! Launches of wide_attention.cu: heads of more than 256 elements, and latent attention, on the tensor cores, in any step.

use super::cache::{ByTypeAndHead, TENSOR_CORE_TYPES};
use super::paged_attention::{self, MAX_MERGED};
use super::prefill_attention::{HEAD_DIMS, PrefillAttentionArgs, Tiling};
use super::step::AttentionInput;
use crate::cuda::common::Output;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, Mode, kernel_args, kernel_image};
use crate::{AttentionParams, DType, KvLayer, Result, Tensor};

/// Head dimensions that kernels are compiled for: of keys beside values, and of keys that hold the values, whose outputs have
/// [`MAX_V_DIM`] elements at most.
const WIDE: usize = 512;
const LATENT: usize = 576;
const MAX_V_DIM: usize = 512;
const THREADS: u32 = 256;

kernel_args! {
    in "wide_attention_args.cuh";
    include "prefill_attention_args.cuh";

    struct WideAttentionArgs {
        /// y: [n_tokens, n_heads, v_dim] as floats
        of_all: PrefillAttentionArgs,
        /// [n_tokens, n_heads, n_splits, v_dim + 2] where n_splits > 1: output, maximum, sum
        partial: DevicePtr as "float*",
        v_dim: u32,
        n_splits: u32,
    }
}

/// The size of a block.
#[derive(Clone, Copy)]
struct Block {
    /// Tokens times query heads that share a KV head.
    rows: usize,
    /// Keys of a step.
    keys: usize,
}

impl Block {
    const fn new(hopper: bool) -> Self {
        match hopper {
            true => Self { rows: 64, keys: 64 },
            false => Self { rows: 32, keys: 16 },
        }
    }

    /// Bytes of dynamic shared memory: queries, two tiles of keys or values, and weights.
    const fn shared_bytes(self, head_dim: usize) -> usize {
        2 * ((self.rows + 2 * self.keys) * head_dim + self.rows * self.keys)
    }
}

/// Kernels of wide_attention.cu for this GPU, of head dimensions [`WIDE`] and [`LATENT`].
pub(super) struct Kernels(ByTypeAndHead<WideAttentionArgs, 2>);

impl Kernels {
    pub(super) fn load(driver: &dyn Driver) -> Result<Self> {
        let block = Block::new(driver.is_hopper());
        let (image, name) = (kernel_image!(wide_attention), format!("wide_attention_{}", block.rows));
        Ok(Self(ByTypeAndHead::load(driver, image, &name, [WIDE, LATENT], |dim| block.shared_bytes(dim))?))
    }

    fn get(&self, kv: &KvLayer<Cuda>) -> Kernel<WideAttentionArgs> {
        self.0.get(kv.k.dtype(), usize::from(kv.v.is_none())).expect("`supports` checked the cache's type")
    }
}

/// Whether these kernels compute this step, with outputs of `v_dim` elements: heads too wide for the others, or keys that hold the values,
/// of a multiple of 8 elements, and a cache that the tensor cores can read.
pub(super) fn supports(cuda: &Cuda, kv: &KvLayer<Cuda>, params: &AttentionParams, v_dim: usize) -> bool {
    let dim = params.heads.head_dim;
    let fits = match kv.v {
        Some(_) => (HEAD_DIMS[HEAD_DIMS.len() - 1] + 1..=WIDE).contains(&dim) && v_dim == dim,
        None => dim <= LATENT && v_dim <= MAX_V_DIM,
    };
    let whole = if kv.k.dtype() == DType::Q8_0 { 32 } else { 8 };
    cuda.mode == Mode::Fast
        && !params.alibi
        && TENSOR_CORE_TYPES.contains(&kv.k.dtype())
        && fits
        && dim.is_multiple_of(whole)
        && v_dim.is_multiple_of(8)
}

/// As [`attention`](super::attention), which checks the shapes.
pub(super) fn attention(cuda: &Cuda, y: &mut Tensor<Cuda>, input: AttentionInput<'_>) -> Result<()> {
    let AttentionInput { kv, batch, params, .. } = input;
    let h = params.heads;
    let v_dim = y.row_len() / h.n_heads;
    let block = Block::new(cuda.driver.is_hopper());
    let tiling = Tiling::new(block.rows, h);
    let n_tiles = tiling.n_tiles(h, batch);
    if n_tiles == 0 {
        return Ok(());
    }
    // As many blocks as SMs. Lengths do not matter, so that a captured graph serves any.
    let n_sms = cuda.driver.n_multiprocessors() as usize;
    let n_splits = (n_sms / n_tiles).clamp(1, MAX_MERGED);
    let partial = match n_splits {
        1 => DevicePtr::NULL,
        // As much as any step needs, so that later ones allocate nothing.
        _ => paged_attention::partial(cuda, n_sms * block.rows, v_dim)?,
    };
    let args = WideAttentionArgs {
        of_all: PrefillAttentionArgs::new(Output::Floats(y.ptr()), &input, &tiling),
        partial,
        v_dim: v_dim as u32,
        n_splits: n_splits as u32,
    };
    let (f, shared) =
        (cuda.room::<Kernels>().get(kv), block.shared_bytes(if kv.v.is_none() { LATENT } else { WIDE }));
    // SAFETY: qkv and y have a row for each token and the cache has heads of these sizes, as the callers checked; staging the batch
    // checked that block tables cover positions and name blocks of the cache. `partial` has room for the rows of all splits of all tiles. The
    // grid has a block for each split of each tile.
    unsafe { cuda.launch_shared(f, [n_tiles, n_splits, 1], THREADS, shared, &args)? };
    paged_attention::merge(cuda, y, partial, h.n_heads, n_splits)
}
