//! Launches of delta_rule.cu: the gated delta rule, and with one token per sequence the norm and the gate after it.

use super::delta_chunks;
use crate::cuda::batch::StagedBatch;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, Mode, kernel_args, kernel_image};
use crate::{DeltaInput, DeltaShape, Error, HeadOrder, Norm, NormKind, Result, Tensor};

/// Elements of keys that the kernels are compiled for; others are padded to the next.
const K_DIMS: [usize; 3] = [64, 128, 256];
/// Columns of the state that a warp has.
const WARP_COLUMNS: usize = 4;
/// Warps of a block.
const WARPS: usize = 8;
/// Those of `delta_token` where there are fewer heads than SMs, at most.
const MAX_WARPS: usize = 16;

kernel_args! {
    in "delta_rule_args.cuh";

    /// Columns of a head that `delta_token` takes.
    const MAX_V_DIM: usize = 256;

    struct DeltaRuleArgs {
        /// [n_tokens, n_v_heads, v_dim]
        y: DevicePtr as "float*",
        /// [n_tokens] rows of `qkv_len`: queries and keys [n_k_heads, k_dim], values [n_v_heads, v_dim]
        qkv: DevicePtr as "const float*",
        /// [n_tokens] rows of `rates_len`, which begin with b and a, [n_v_heads] each
        rates: DevicePtr as "const float*",
        /// [n_v_heads]
        decay: DevicePtr as "const float*",
        /// [n_v_heads]
        dt_bias: DevicePtr as "const float*",
        /// [n_slots, n_v_heads, v_dim, k_dim]
        state: DevicePtr as "float*",
        /// [n_seqs + 1]: first token of each sequence, and the number of tokens
        seq_starts: DevicePtr as "const uint32_t*",
        /// [n_seqs, 3], see `SeqState`
        states: DevicePtr as "const uint32_t*",
        batch: DevicePtr as "const uint32_t*",
        /// of `delta_token`, as norm_weight: [n_tokens] rows of `gate_len`, which begin with [n_v_heads, v_dim]
        gate: DevicePtr as "const float*",
        /// [v_dim]
        norm_weight: DevicePtr as "const float*",
        n_k_heads: u32,
        n_v_heads: u32,
        k_dim: u32,
        v_dim: u32,
        qkv_len: u32,
        rates_len: u32,
        gate_len: u32,
        /// blocks that share a head of a sequence
        n_slices: u32,
        /// 1: value head i goes with key head i % n_k_heads; 0: those of one key head are adjacent
        tiled: u32,
        /// 1 / sqrt(k_dim)
        q_scale: f32,
        norm_eps: f32,
    }
}

/// Kernels of delta_rule.cu, by the padded size of keys.
pub(super) struct Kernels {
    delta_rule: [Kernel<DeltaRuleArgs>; K_DIMS.len()],
    delta_token: [Kernel<DeltaRuleArgs>; K_DIMS.len()],
}

impl Kernels {
    pub(super) fn load(driver: &dyn Driver) -> Result<Self> {
        let by_size = |name| {
            let [a, b, c] =
                K_DIMS.map(|dim| kernel_image!(delta_rule).kernel(driver, &format!("{name}_{dim}"), 0));
            Ok([a?, b?, c?])
        };
        Ok(Self { delta_rule: by_size("delta_rule")?, delta_token: by_size("delta_token")? })
    }
}

/// Errors: `UnsupportedSize` for keys that are larger than any kernel takes.
pub(in crate::cuda) fn check_delta_rule(shape: &DeltaShape) -> Result<()> {
    let (k_dim, max) = (shape.k_dim, K_DIMS[K_DIMS.len() - 1]);
    if (1..=max).contains(&k_dim) {
        return Ok(());
    }
    Err(Error::UnsupportedSize {
        op: "the delta rule",
        what: format!("keys of {k_dim} elements; the largest have {max}"),
        backend: "cuda",
    })
}

/// The norm of each head's result, and the gate after it.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct NormAndGate<'a> {
    pub(in crate::cuda) norm: &'a Norm<Cuda>,
    /// Column at which the gates begin in the rows that hold the rates.
    pub(in crate::cuda) start: usize,
}

/// Whether a kernel norms and gates the result, too: one token per sequence. In the fast mode only: other sums are those of steps with more
/// tokens.
pub(in crate::cuda) fn takes_norm(
    cuda: &Cuda,
    batch: &StagedBatch,
    shape: &DeltaShape,
    norm: &Norm<Cuda>,
) -> bool {
    cuda.mode == Mode::Fast
        && batch.is_decode()
        && norm.kind == NormKind::Rms
        && norm.bias.is_none()
        && shape.v_dim <= MAX_V_DIM
}

/// As [`Ops::delta_rule`](crate::Ops::delta_rule), then [`Ops::gated_norm`](crate::Ops::gated_norm) where `after` says so and [`takes_norm`].
pub(in crate::cuda) fn delta_rule(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    input: DeltaInput<'_, Cuda>,
    state: &mut Tensor<Cuda>,
    batch: &StagedBatch,
    shape: &DeltaShape,
    after: Option<NormAndGate<'_>>,
) -> Result<()> {
    let DeltaInput { ref qkv, ref rates, rates_start, decay, dt_bias } = input;
    let &DeltaShape { n_k_heads, n_v_heads, k_dim, v_dim, order } = shape;
    let n_tokens = batch.n_tokens();
    assert_eq!((qkv.row_len(), y.row_len()), (shape.qkv_len(), shape.v_len()));
    assert_eq!([qkv.rows(), rates.rows(), y.rows()], [n_tokens; 3]);
    assert_eq!((state.row_len(), batch.n_states()), (shape.v_len() * k_dim, batch.n_seqs()));
    assert_eq!((decay.len(), dt_bias.len()), (n_v_heads, n_v_heads));
    assert!(rates_start + 2 * n_v_heads <= rates.row_len(), "rates {rates_start}.. of {}", rates.row_len());
    check_delta_rule(shape)?;
    if after.is_none() && delta_chunks::takes(cuda, batch, shape) {
        return delta_chunks::delta_chunks(cuda, y, input, state, batch, shape);
    }
    let index = K_DIMS.iter().position(|&dim| k_dim <= dim).expect("checked above");
    let kernels = cuda.room::<Kernels>();
    // With a norm a block has all columns of a head.
    let (f, n_warps, n_slices) = match &after {
        None => (kernels.delta_rule[index], WARPS, v_dim.div_ceil(WARP_COLUMNS * WARPS)),
        Some(after) => {
            assert!(takes_norm(cuda, batch, shape, after.norm) && after.norm.weight.len() == v_dim);
            assert!(after.start + shape.v_len() <= rates.row_len(), "gates of {}", rates.row_len());
            let is_few = batch.n_seqs() * n_v_heads <= cuda.driver.n_multiprocessors() as usize;
            let n_warps = v_dim.div_ceil(WARP_COLUMNS).next_power_of_two().clamp(WARPS, MAX_WARPS);
            (kernels.delta_token[index], if is_few { n_warps } else { WARPS }, 1)
        }
    };
    let column = |start: usize| rates.ptr().offset(size_of::<f32>() * start);
    let args = DeltaRuleArgs {
        y: y.ptr(),
        qkv: qkv.ptr(),
        rates: column(rates_start),
        decay: decay.ptr(),
        dt_bias: dt_bias.ptr(),
        state: state.ptr(),
        seq_starts: batch.seq_starts(),
        states: batch.states(),
        batch: batch.words(),
        gate: after.map_or(DevicePtr::NULL, |after| column(after.start)),
        norm_weight: after.map_or(DevicePtr::NULL, |after| after.norm.weight.ptr()),
        n_k_heads: n_k_heads as u32,
        n_v_heads: n_v_heads as u32,
        k_dim: k_dim as u32,
        v_dim: v_dim as u32,
        qkv_len: shape.qkv_len() as u32,
        rates_len: rates.row_len() as u32,
        gate_len: rates.row_len() as u32,
        n_slices: n_slices as u32,
        tiled: u32::from(order == HeadOrder::Tiled),
        q_scale: 1.0 / (k_dim as f32).sqrt(),
        norm_eps: after.map_or(0.0, |after| after.norm.eps),
    };
    let blocks = [batch.n_seqs() * n_v_heads * n_slices, 1, 1];
    // SAFETY: the tensors have a row for each token and slots are of these sizes, as asserted above. Staging the batch checked that it names
    // slots of the state only, and that no sequence writes a slot that another reads or writes; a block has its columns of a head and
    // sequence to itself.
    unsafe { cuda.launch(f, blocks, 32 * n_warps as u32, &args) }
}
