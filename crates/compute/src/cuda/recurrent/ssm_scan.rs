//! Launches of ssm_scan.cu and ssm_chunks.cu: the state-space scan of Mamba-2, a token or a chunk of tokens at a time.

use crate::cuda::batch::StagedBatch;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, Mode, kernel_args, kernel_image};
use crate::{Error, Result, SsmInput, SsmShape, Tensor};

/// Rows of a state that the kernels are compiled for; others are padded to the next.
const ROWS: [usize; 3] = [64, 128, 256];

kernel_args! {
    in "ssm_scan_args.cuh";

    const SSM_THREADS: usize = 256;
    /// Columns of a head that a block has.
    const SSM_COLUMNS: usize = 32;
    /// Of `ssm_chunks`: columns that a block has, rows of a state, and shared memory.
    const SSM_CHUNK_COLUMNS: usize = 64;
    const SSM_CHUNK_STATE_DIM: usize = 128;
    const SSM_CHUNK_SHARED_BYTES: usize = 127488;

    struct SsmScanArgs {
        /// [n_tokens, n_heads, head_dim]
        y: DevicePtr as "float*",
        /// [n_tokens] rows of `xbc_len`: x [n_heads, head_dim], B and C [n_groups, state_dim]
        xbc: DevicePtr as "const float*",
        /// [n_tokens] rows of `dt_len`, which begin with dt, [n_heads]
        dt: DevicePtr as "const float*",
        /// [n_heads]
        decay: DevicePtr as "const float*",
        /// [n_heads]
        dt_bias: DevicePtr as "const float*",
        /// [n_heads]
        skip: DevicePtr as "const float*",
        /// [n_slots, n_heads, head_dim, state_dim]
        state: DevicePtr as "float*",
        /// [n_seqs + 1]: first token of each sequence, and the number of tokens
        seq_starts: DevicePtr as "const uint32_t*",
        /// [n_seqs, 3], see `SeqState`
        states: DevicePtr as "const uint32_t*",
        batch: DevicePtr as "const uint32_t*",
        n_heads: u32,
        head_dim: u32,
        n_groups: u32,
        state_dim: u32,
        xbc_len: u32,
        dt_len: u32,
        /// blocks that share a head of a sequence
        n_slices: u32,
        dt_min: f32,
        dt_max: f32,
    }
}

/// Tokens that sequences bring on average for chunks, as for those of the delta rule.
const MIN_TOKENS: usize = 16;

/// Kernels of ssm_scan.cu, by the padded rows of a state, and of ssm_chunks.cu.
pub(super) struct Kernels {
    by_rows: [Kernel<SsmScanArgs>; ROWS.len()],
    /// Where the device has the shared memory.
    chunks: Option<Kernel<SsmScanArgs>>,
}

impl Kernels {
    pub(super) fn load(driver: &dyn Driver) -> Result<Self> {
        let [a, b, c] = ROWS.map(|n| kernel_image!(ssm_scan).kernel(driver, &format!("ssm_scan_{n}"), 0));
        let has_room = SSM_CHUNK_SHARED_BYTES <= driver.max_shared_bytes();
        let chunks =
            has_room.then(|| kernel_image!(ssm_chunks).kernel(driver, "ssm_chunks", SSM_CHUNK_SHARED_BYTES));
        Ok(Self { by_rows: [a?, b?, c?], chunks: chunks.transpose()? })
    }
}

/// Errors: `UnsupportedSize` for states of more rows than any kernel takes.
pub(in crate::cuda) fn check_ssm_scan(shape: &SsmShape) -> Result<()> {
    let (n, max) = (shape.state_dim, ROWS[ROWS.len() - 1]);
    if (1..=max).contains(&n) {
        return Ok(());
    }
    Err(Error::UnsupportedSize {
        op: "a state-space scan",
        what: format!("states of {n} elements; the largest have {max}"),
        backend: "cuda",
    })
}

/// Whether chunks are computed. In the fast mode only: the result of a token depends on where its chunk begins.
fn is_for_chunks(cuda: &Cuda, batch: &StagedBatch, shape: &SsmShape) -> bool {
    cuda.mode == Mode::Fast
        && shape.state_dim == SSM_CHUNK_STATE_DIM
        && shape.head_dim.is_multiple_of(SSM_CHUNK_COLUMNS)
        && batch.n_tokens() >= MIN_TOKENS * batch.n_seqs()
}

/// As [`Ops::ssm_scan`](crate::Ops::ssm_scan).
pub(in crate::cuda) fn ssm_scan(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    input: SsmInput<'_, Cuda>,
    state: &mut Tensor<Cuda>,
    batch: &StagedBatch,
    shape: &SsmShape,
) -> Result<()> {
    let SsmInput { xbc, dt, dt_start, decay, dt_bias, skip, dt_limits } = input;
    let &SsmShape { n_heads, head_dim, n_groups, state_dim } = shape;
    let n_tokens = batch.n_tokens();
    assert_eq!((xbc.row_len(), y.row_len()), (shape.xbc_len(), shape.inner_len()));
    assert_eq!([xbc.rows(), dt.rows(), y.rows()], [n_tokens; 3]);
    assert_eq!((state.row_len(), batch.n_states()), (shape.inner_len() * state_dim, batch.n_seqs()));
    assert_eq!([decay.len(), dt_bias.len(), skip.len()], [n_heads; 3]);
    assert!(dt_start + n_heads <= dt.row_len(), "dt {dt_start}.. of {}", dt.row_len());
    assert!(n_heads.is_multiple_of(n_groups), "{n_groups} groups of {n_heads} heads");
    check_ssm_scan(shape)?;
    let kernels = cuda.room::<Kernels>();
    let chunks = kernels.chunks.filter(|_| is_for_chunks(cuda, batch, shape));
    let (f, n_columns, shared) = match chunks {
        Some(f) => (f, SSM_CHUNK_COLUMNS, SSM_CHUNK_SHARED_BYTES),
        None => {
            let index = ROWS.iter().position(|&n| state_dim <= n).expect("checked above");
            (kernels.by_rows[index], SSM_COLUMNS, 0)
        }
    };
    let n_slices = head_dim.div_ceil(n_columns);
    let args = SsmScanArgs {
        y: y.ptr(),
        xbc: xbc.ptr(),
        dt: dt.ptr().offset(size_of::<f32>() * dt_start),
        decay: decay.ptr(),
        dt_bias: dt_bias.ptr(),
        skip: skip.ptr(),
        state: state.ptr(),
        seq_starts: batch.seq_starts(),
        states: batch.states(),
        batch: batch.words(),
        n_heads: n_heads as u32,
        head_dim: head_dim as u32,
        n_groups: n_groups as u32,
        state_dim: state_dim as u32,
        xbc_len: shape.xbc_len() as u32,
        dt_len: dt.row_len() as u32,
        n_slices: n_slices as u32,
        dt_min: dt_limits.min,
        dt_max: dt_limits.max,
    };
    let blocks = [batch.n_seqs() * n_heads * n_slices, 1, 1];
    // SAFETY: the tensors have a row for each token and slots are of these sizes, as asserted above. Staging the batch checked that it names
    // slots of the state only, and that no sequence writes a slot that another reads or writes; a block has its columns of a head and
    // sequence to itself.
    unsafe { cuda.launch_shared(f, blocks, SSM_THREADS as u32, shared, &args) }
}
