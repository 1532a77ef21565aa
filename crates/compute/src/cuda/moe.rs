//! Launches of a mixture of experts: nothing of the routing comes back to the host.

use super::driver::DevicePtr;
use super::matmul::{Rows, TILE_ROWS, gemv};
use super::matrix::Matrix;
use super::{Cuda, elementwise};
use crate::{Error, MoeParams, MoeScratch, Result, Tensor};

/// Most experts that the routing kernels hold.
const MAX_EXPERTS: usize = 1024;

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    y: DevicePtr,
    router: DevicePtr,
    outputs: DevicePtr,
    experts: DevicePtr,
    weights: DevicePtr,
    slots: DevicePtr,
    tokens: DevicePtr,
    tiles: DevicePtr,
    n_tokens: u32,
    n_experts: u32,
    n_used: u32,
    hidden_size: u32,
    n_tiles: u32,
    norm_topk: u32,
}

pub(super) fn moe(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    x: &Tensor<Cuda>,
    router: &Tensor<Cuda>,
    gate_up: &Matrix,
    down: &Matrix,
    params: &MoeParams,
    scratch: &mut MoeScratch<Cuda>,
) -> Result<()> {
    let (n_tokens, n, inner, n_experts) = (x.rows(), x.row_len(), down.n_in, router.row_len());
    assert_eq!((gate_up.n_in, gate_up.n_out, down.n_out), (n, 2 * inner, n));
    assert_eq!((gate_up.n_experts, down.n_experts), (n_experts, n_experts));
    assert_eq!((y.rows(), y.row_len(), router.rows()), (n_tokens, n, n_tokens));
    assert!(params.n_used <= n_experts, "{} of {n_experts} experts", params.n_used);
    if n_experts > MAX_EXPERTS {
        let what = format!("{n_experts} experts; up to {MAX_EXPERTS} can be");
        return Err(Error::UnsupportedSize { op: "moe", what, backend: "cuda" });
    }
    let n_uses = n_tokens * params.n_used;
    for t in [&mut scratch.gate_up, &mut scratch.hidden, &mut scratch.y] {
        t.set_rows(n_uses);
    }
    // Each expert's last tile may be partly filled.
    let n_tiles = n_uses.min(n_uses / TILE_ROWS + n_experts);
    let words = cuda.scratch.get(&cuda.driver, "routes to experts", 4 * (4 * n_uses + 3 * n_tiles))?;
    let array = |i: usize| words.offset(4 * i * n_uses);
    let args = Args {
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
        n_used: params.n_used as u32,
        hidden_size: n as u32,
        n_tiles: n_tiles as u32,
        norm_topk: u32::from(params.norm_topk),
    };
    // SAFETY: the scratch memory holds four words for each use and three for each tile; the tensors were checked above.
    unsafe {
        cuda.launch(cuda.kernels.moe_route, [n_tokens.div_ceil(4), 1, 1], 128, &args)?;
        cuda.launch(cuda.kernels.moe_group, [usize::from(n_uses > 0), 1, 1], 256, &args)?;
    }
    let rows = |x_rows| Rows::Tiles { tiles: args.tiles, n_tiles, x_rows };
    for part in &gate_up.parts {
        let out = scratch.gate_up.ptr().offset(4 * part.first_out);
        gemv(cuda, out, x.ptr(), DevicePtr::NULL, gate_up, part, rows(args.tokens))?;
    }
    let (gated, hidden) = (scratch.gate_up.ptr(), scratch.hidden.ptr());
    elementwise::gated_rows(cuda, hidden, gated, n_uses, inner, params.activation)?;
    for part in &down.parts {
        let out = scratch.y.ptr().offset(4 * part.first_out);
        gemv(cuda, out, hidden, DevicePtr::NULL, down, part, rows(DevicePtr::NULL))?;
    }
    // SAFETY: as above; the outputs of all uses were written.
    unsafe { cuda.launch(cuda.kernels.moe_combine, [n_tokens, n.div_ceil(256), 1], 256, &args) }
}
