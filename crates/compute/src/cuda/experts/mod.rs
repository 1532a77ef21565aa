//! Launches of a mixture of experts: nothing of the routing comes back to the host.

use super::driver::{Cuda, DevicePtr, kernel_args, kernels};
use super::elementwise;
use super::matmul::{Part, Rows, TILE_ROWS, gemv_part};
use crate::{Activation, Error, Experts, ExpertsKind, MoeScratch, Result, Router, Tensor};

/// Most experts that the routing kernels hold.
const MAX_EXPERTS: usize = 1024;

kernel_args! {
    in "experts_args.cuh";

    struct MoeArgs {
        /// [n_tokens, hidden_size]
        y: DevicePtr as "float*",
        /// [n_tokens, n_experts]
        router: DevicePtr as "const float*",
        /// [n_uses, hidden_size], by slot
        outputs: DevicePtr as "const float*",
        /// [n_uses]: use i of token t at t * n_used + i, most probable first
        experts: DevicePtr as "uint32_t*",
        /// [n_uses]
        weights: DevicePtr as "float*",
        /// [n_uses]: the slot of each use; slots are sorted by expert, then by use
        slots: DevicePtr as "uint32_t*",
        /// [n_uses]: the token of each slot
        tokens: DevicePtr as "uint32_t*",
        /// [n_tiles]; those not needed have no rows
        tiles: DevicePtr as "struct MoeTile*",
        n_tokens: u32,
        n_experts: u32,
        n_used: u32,
        hidden_size: u32,
        n_tiles: u32,
        norm_topk: u32,
    }
}

kernels! {
    /// Kernels of experts.cu.
    pub(in crate::cuda) struct Kernels in experts {
        moe_route: MoeArgs,
        moe_group: MoeArgs,
        moe_combine: MoeArgs,
    }
}

/// Whether the kernels have all of this.
pub(in crate::cuda) fn check(kind: &ExpertsKind) -> Result<()> {
    let &ExpertsKind { n_experts, params, selection_bias, bias, shared_gate } = kind;
    let Router { n_used, norm_topk, .. } = params.router;
    let what = match () {
        () if n_experts > MAX_EXPERTS => format!("{n_experts} experts; up to {MAX_EXPERTS} can be"),
        () if params.router != Router::softmax(n_used, norm_topk) || selection_bias => {
            "a router of another kind than softmax".to_owned()
        }
        () if bias => "biases of experts".to_owned(),
        () if shared_gate => "a gate of the shared expert".to_owned(),
        () if params.activation == Activation::ClampedSwiglu => "clamped SwiGLU".to_owned(),
        () => return Ok(()),
    };
    Err(Error::UnsupportedSize { op: "moe", what, backend: "cuda" })
}

pub(in crate::cuda) fn moe(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    x: &Tensor<Cuda>,
    router: &Tensor<Cuda>,
    experts: &Experts<'_, Cuda>,
    scratch: &mut MoeScratch<Cuda>,
) -> Result<()> {
    let &Experts { gate_up, gate_up_bias, down, down_bias, selection_bias, params } = experts;
    let (up, back) = (&gate_up.shape, &down.shape);
    let (n_tokens, n, inner, n_experts) = (x.rows(), x.row_len(), back.n_in, router.row_len());
    assert_eq!((up.n_in, up.n_out, back.n_out), (n, 2 * inner, n));
    assert_eq!((up.n_experts, back.n_experts), (n_experts, n_experts));
    assert_eq!((y.rows(), y.row_len(), router.rows()), (n_tokens, n, n_tokens));
    check(&ExpertsKind {
        n_experts,
        params,
        selection_bias: selection_bias.is_some(),
        bias: gate_up_bias.is_some() || down_bias.is_some(),
        shared_gate: false,
    })?;
    let Router { n_used, norm_topk, .. } = params.router;
    assert!(n_used <= n_experts, "{n_used} of {n_experts} experts");
    let kernels = cuda.room::<Kernels>();
    let n_uses = n_tokens * n_used;
    for t in [&mut scratch.gate_up, &mut scratch.hidden, &mut scratch.y] {
        t.set_rows(n_uses);
    }
    // Each expert's last tile may be partly filled.
    let n_tiles = n_uses.min(n_uses / TILE_ROWS + n_experts);
    let words = cuda.scratch.get(&cuda.driver, "routes to experts", 4 * (4 * n_uses + 3 * n_tiles))?;
    let array = |i: usize| words.offset(4 * i * n_uses);
    let args = MoeArgs {
        y: y.ptr(),
        router: router.ptr(),
        outputs: scratch.y.ptr(),
        experts: array(0),
        weights: array(1),
        slots: array(2),
        tokens: array(3),
        tiles: array(4),
        n_tokens: n_tokens as u32,
        n_experts: n_experts as u32,
        n_used: n_used as u32,
        hidden_size: n as u32,
        n_tiles: n_tiles as u32,
        norm_topk: u32::from(norm_topk),
    };
    // SAFETY: the scratch memory holds four words for each use and three for each tile; the tensors were checked above.
    unsafe {
        cuda.launch(kernels.moe_route, [n_tokens.div_ceil(4), 1, 1], 128, &args)?;
        cuda.launch(kernels.moe_group, [usize::from(n_uses > 0), 1, 1], 256, &args)?;
    }
    let rows = |x_rows| Rows::Tiles { tiles: args.tiles, n_tiles, x_rows };
    for part in &gate_up.parts {
        let y = scratch.gate_up.ptr().offset(4 * part.shape.first_out);
        gemv_part(cuda, Part { w: up, part, y, bias: DevicePtr::NULL }, x.ptr(), rows(args.tokens))?;
    }
    let (gated, hidden) = (scratch.gate_up.ptr(), scratch.hidden.ptr());
    elementwise::gated_rows(cuda, hidden, gated, n_uses, inner, params.activation)?;
    for part in &down.parts {
        let y = scratch.y.ptr().offset(4 * part.shape.first_out);
        gemv_part(cuda, Part { w: back, part, y, bias: DevicePtr::NULL }, hidden, rows(DevicePtr::NULL))?;
    }
    // SAFETY: as above; the outputs of all uses were written.
    unsafe { cuda.launch(kernels.moe_combine, [n_tokens, n.div_ceil(256), 1], 256, &args) }
}
