//! Launches of a mixture of experts: nothing of the routing comes back to the host.

use super::common::activation_code;
use super::driver::{Cuda, DevicePtr, kernel_args, kernels};
use super::matmul::{Part, Rows, TILE_ROWS, gemv_part};
use crate::{Error, Experts, ExpertsKind, GroupScore, MoeScratch, Result, Router, RouterScores, Tensor};

/// Most experts that the routing kernels hold.
const MAX_EXPERTS: usize = 1024;
/// Most groups of experts, one for each lane of a warp.
const MAX_GROUPS: usize = 32;

kernel_args! {
    in "experts_args.cuh";

    struct MoeArgs {
        /// [n_tokens, hidden_size]
        y: DevicePtr as "float*",
        /// [n_tokens, n_experts]
        router: DevicePtr as "const float*",
        /// [n_experts], added to the scores for the choice only, or null
        selection_bias: DevicePtr as "const float*",
        /// [n_experts, hidden_size], or null
        down_bias: DevicePtr as "const float*",
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
        /// Whether scores are sigmoids; softmax otherwise.
        is_sigmoid: u32,
        /// On the weights.
        scale: f32,
        /// Of consecutive experts; 1 where all are compared.
        n_groups: u32,
        n_groups_used: u32,
        /// Whether groups are compared by the sum of their two best; by their best otherwise.
        groups_by_top_two: u32,
    }

    struct MoeGateArgs {
        /// [n_uses, intermediate_size], by slot
        hidden: DevicePtr as "float*",
        /// [n_uses, 2 * intermediate_size], by slot
        gate_up: DevicePtr as "const float*",
        /// [n_experts, 2 * intermediate_size], or null
        bias: DevicePtr as "const float*",
        /// [n_uses]
        experts: DevicePtr as "const uint32_t*",
        /// [n_uses]
        slots: DevicePtr as "const uint32_t*",
        intermediate_size: u32,
        activation: u32,
    }
}

kernels! {
    /// Kernels of experts.cu.
    pub(in crate::cuda) struct Kernels in experts {
        moe_route: MoeArgs,
        moe_group: MoeArgs,
        moe_gate: MoeGateArgs,
        moe_combine: MoeArgs,
    }
}

/// Whether the kernels have room for this.
pub(in crate::cuda) fn check(kind: &ExpertsKind) -> Result<()> {
    check_sizes(kind.n_experts, &kind.params.router)
}

fn check_sizes(n_experts: usize, router: &Router) -> Result<()> {
    let n_groups = router.groups.map_or(1, |groups| groups.count);
    let what = match () {
        () if n_experts > MAX_EXPERTS => format!("{n_experts} experts; up to {MAX_EXPERTS} can be"),
        () if n_groups > MAX_GROUPS => format!("{n_groups} groups of experts; up to {MAX_GROUPS} can be"),
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
    check_sizes(n_experts, &params.router)?;
    let Router { n_used, scores, norm_topk, scale, groups } = params.router;
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
        selection_bias: selection_bias.map_or(DevicePtr::NULL, Tensor::ptr),
        down_bias: down_bias.map_or(DevicePtr::NULL, Tensor::ptr),
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
        is_sigmoid: u32::from(scores == RouterScores::Sigmoid),
        scale,
        n_groups: groups.map_or(1, |groups| groups.count as u32),
        n_groups_used: groups.map_or(1, |groups| groups.n_used as u32),
        groups_by_top_two: u32::from(groups.is_some_and(|groups| groups.score == GroupScore::TopTwo)),
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
    let hidden = scratch.hidden.ptr();
    let gate = MoeGateArgs {
        hidden,
        gate_up: scratch.gate_up.ptr(),
        bias: gate_up_bias.map_or(DevicePtr::NULL, Tensor::ptr),
        experts: args.experts,
        slots: args.slots,
        intermediate_size: inner as u32,
        activation: activation_code(params.activation),
    };
    // SAFETY: gates and ups of all uses were written, and there is room for their products.
    unsafe { cuda.launch(kernels.moe_gate, [n_uses, inner.div_ceil(256), 1], 256, &gate)? };
    for part in &down.parts {
        let y = scratch.y.ptr().offset(4 * part.shape.first_out);
        gemv_part(cuda, Part { w: back, part, y, bias: DevicePtr::NULL }, hidden, rows(DevicePtr::NULL))?;
    }
    // SAFETY: as above; the outputs of all uses were written.
    unsafe { cuda.launch(kernels.moe_combine, [n_tokens, n.div_ceil(256), 1], 256, &args) }
}
