//! Launches of delta_chunks.cu: the gated delta rule of prompts, a chunk of tokens at a time.

use crate::cuda::batch::StagedBatch;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, Mode, kernel_args, kernel_image};
use crate::{DeltaInput, DeltaShape, HeadOrder, Result, Tensor};

kernel_args! {
    in "delta_chunks_args.cuh";

    /// Tokens of a chunk.
    const CHUNK: usize = 32;
    /// Elements of keys.
    const CHUNK_K_DIM: usize = 128;
    /// Columns of the state that a block of `delta_chunks` has.
    const CHUNK_COLUMNS: usize = 32;
    const CHUNK_THREADS: usize = 128;
    /// Shared memory of a block of `delta_chunks`.
    const CHUNK_SHARED_BYTES: usize = 72960;

    struct DeltaChunksArgs {
        /// [n_tokens, n_v_heads, v_dim]
        y: DevicePtr as "float*",
        /// [n_tokens] rows of `qkv_len`: queries and keys [n_k_heads, CHUNK_K_DIM], values [n_v_heads, v_dim]
        qkv: DevicePtr as "const float*",
        /// [n_tokens] rows of `rates_len`, which begin with b and a, [n_v_heads] each
        rates: DevicePtr as "const float*",
        /// [n_v_heads]
        decay: DevicePtr as "const float*",
        /// [n_v_heads]
        dt_bias: DevicePtr as "const float*",
        /// [n_slots, n_v_heads, v_dim, CHUNK_K_DIM]
        state: DevicePtr as "float*",
        /// [n_seqs + 1]: first token of each sequence, and the number of tokens
        seq_starts: DevicePtr as "const uint32_t*",
        /// [n_seqs, 3], see `SeqState`
        states: DevicePtr as "const uint32_t*",
        batch: DevicePtr as "const uint32_t*",
        /// [n_tokens, n_k_heads, 2, CHUNK_K_DIM]: queries and keys over their lengths, in half precision
        unit_rows: DevicePtr as "uint16_t*",
        /// [chunks, n_v_heads, 2, CHUNK, CHUNK]: the inverse times beta, and P, in half precision
        squares: DevicePtr as "uint16_t*",
        /// [chunks, n_v_heads, CHUNK]: sums of the logarithms of decays
        log_decays: DevicePtr as "float*",
        n_seqs: u32,
        n_k_heads: u32,
        n_v_heads: u32,
        v_dim: u32,
        qkv_len: u32,
        rates_len: u32,
        /// 1: value head i goes with key head i % n_k_heads; 0: those of one key head are adjacent
        tiled: u32,
        /// 1 / sqrt(CHUNK_K_DIM)
        q_scale: f32,
    }
}

/// Tokens that sequences bring on average for chunks to be faster than one token after the other.
const MIN_TOKENS: usize = 16;

/// Kernels of delta_chunks.cu.
pub(super) struct Kernels {
    factors: Kernel<DeltaChunksArgs>,
    chunks: Kernel<DeltaChunksArgs>,
}

impl Kernels {
    pub(super) fn load(driver: &dyn Driver) -> Result<Self> {
        let image = kernel_image!(delta_chunks);
        Ok(Self {
            factors: image.kernel(driver, "delta_chunk_factors", 0)?,
            chunks: image.kernel(driver, "delta_chunks", CHUNK_SHARED_BYTES)?,
        })
    }
}

/// Whether these kernels compute the step. In the fast mode only: the result of a token depends on where its chunk begins.
pub(super) fn takes(cuda: &Cuda, batch: &StagedBatch, shape: &DeltaShape) -> bool {
    cuda.mode == Mode::Fast
        && shape.k_dim == CHUNK_K_DIM
        && shape.v_dim.is_multiple_of(CHUNK_COLUMNS)
        && batch.n_tokens() >= MIN_TOKENS * batch.n_seqs()
}

/// As [`Ops::delta_rule`](crate::Ops::delta_rule), for a step that [`takes`] takes and tensors that were checked.
pub(super) fn delta_chunks(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    input: DeltaInput<'_, Cuda>,
    state: &mut Tensor<Cuda>,
    batch: &StagedBatch,
    shape: &DeltaShape,
) -> Result<()> {
    let DeltaInput { qkv, rates, rates_start, decay, dt_bias } = input;
    let &DeltaShape { n_k_heads, n_v_heads, v_dim, order, .. } = shape;
    let (n_tokens, n_seqs) = (batch.n_tokens(), batch.n_seqs());
    // Numbers of chunks; a sequence's last one may not be full.
    let n_chunks = n_tokens / CHUNK + n_seqs;
    let scratch = |purpose, bytes| cuda.scratch.get(&cuda.driver, purpose, bytes);
    let args = DeltaChunksArgs {
        y: y.ptr(),
        qkv: qkv.ptr(),
        rates: rates.ptr().offset(size_of::<f32>() * rates_start),
        decay: decay.ptr(),
        dt_bias: dt_bias.ptr(),
        state: state.ptr(),
        seq_starts: batch.seq_starts(),
        states: batch.states(),
        batch: batch.words(),
        unit_rows: scratch(
            "queries and keys over their lengths",
            n_tokens * n_k_heads * 2 * CHUNK_K_DIM * 2,
        )?,
        squares: scratch("factors of chunks", n_chunks * n_v_heads * 2 * CHUNK * CHUNK * 2)?,
        log_decays: scratch("decays of chunks", n_chunks * n_v_heads * CHUNK * 4)?,
        n_seqs: n_seqs as u32,
        n_k_heads: n_k_heads as u32,
        n_v_heads: n_v_heads as u32,
        v_dim: v_dim as u32,
        qkv_len: shape.qkv_len() as u32,
        rates_len: rates.row_len() as u32,
        tiled: u32::from(order == HeadOrder::Tiled),
        q_scale: 1.0 / (CHUNK_K_DIM as f32).sqrt(),
    };
    let kernels = cuda.room::<Kernels>();
    let n_blocks = n_seqs * n_v_heads * (v_dim / CHUNK_COLUMNS);
    // SAFETY: the caller checked the tensors, and staging the batch the slots, as for the kernel that goes token by token; the scratch memory
    // has room for all tokens and chunks. A block of the first kernel has its tokens' rows and its chunk's factors to itself, one of the
    // second its columns of a head of a sequence.
    unsafe {
        cuda.launch(kernels.factors, [n_chunks * n_k_heads, 1, 1], CHUNK_THREADS as u32, &args)?;
        cuda.launch_shared(kernels.chunks, [n_blocks, 1, 1], CHUNK_THREADS as u32, CHUNK_SHARED_BYTES, &args)
    }
}
