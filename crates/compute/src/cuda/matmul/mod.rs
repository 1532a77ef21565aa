//! Matmuls with weights of any type.
//!
//! [`table`] lists the kernels, and what each takes; [`run`] takes the first that can. Weights are repacked when they are loaded
//! ([`Matrix`]); a plan ([`table::select`]) depends only on sizes and on the device.

mod blocks;
mod dequantize;
mod epilogue;
mod experts_table;
mod f32;
mod gemm;
mod gemm_i8;
mod gemv;
mod grouped;
mod grouped_gemm;
mod grouped_mma;
mod grouped_small_m;
mod head_gemm;
mod heads;
mod maps;
mod matrix;
mod mixed_gemm;
mod op;
mod operands;
mod packed_types;
mod repack;
mod shape;
mod simt;
mod small_m;
mod table;
mod weights;

pub(in crate::cuda) use dequantize::embed;
pub(in crate::cuda) use epilogue::{Epilogue, EpilogueKind};
pub use experts_table::experts_kernel_for;
pub(in crate::cuda) use experts_table::{ExpertsPlan, ExpertsProblem, select_experts};
pub(in crate::cuda) use gemm::tiles;
pub(in crate::cuda) use gemv::{ExpertsRows, MAX_USED};
pub(in crate::cuda) use grouped::GroupedRows;
pub(in crate::cuda) use heads::head_matmul;
pub use matrix::Matrix;
pub(in crate::cuda) use op::Matmul;
pub(in crate::cuda) use packed_types::packed_row_bytes;
pub(in crate::cuda) use shape::Target;
pub(in crate::cuda) use simt::{Part, Rows, TILE_ROWS, gemv_part};
pub use table::{Arch, kernel_for};

use super::common::{Input, Output, TileLayout, Tiles};
use super::driver::{Cuda, Driver, Mode, Rooms};
use crate::{Result, Tensor};
use table::{InputKind, Plan, Problem, select};

/// Loads the room's kernels.
pub(in crate::cuda) fn load(driver: &dyn Driver, rooms: &mut Rooms) -> Result<()> {
    rooms.add(dequantize::Kernels::load(driver)?);
    rooms.add(f32::Kernels::load(driver)?);
    rooms.add(gemm::Kernels::load(driver)?);
    rooms.add(gemm_i8::Kernels::load(driver)?);
    rooms.add(gemv::Kernels::load(driver)?);
    rooms.add(grouped_gemm::Kernels::load(driver)?);
    rooms.add(grouped_mma::Kernels::load(driver)?);
    rooms.add(grouped_small_m::Kernels::load(driver)?);
    rooms.add(head_gemm::Kernels::load(driver)?);
    rooms.add(matrix::Codebooks::default());
    rooms.add(mixed_gemm::Kernels::load(driver)?);
    rooms.add(operands::Kernels::load(driver)?);
    rooms.add(repack::Kernels::load(driver)?);
    rooms.add(simt::GemmKernels::load(driver)?);
    rooms.add(simt::Kernels::load(driver)?);
    rooms.add(small_m::Kernels::load(driver)?);
    Ok(())
}

/// `y[m, n_out] = x[m, n_in] · wᵀ + bias`
pub(in crate::cuda) fn matmul(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    x: &Tensor<Cuda>,
    w: &Matrix,
    bias: Option<&Tensor<Cuda>>,
) -> Result<()> {
    assert_eq!((x.row_len(), y.row_len(), x.rows()), (w.shape.n_in, w.shape.n_out, y.rows()));
    let (x, y, m) = (Input::Floats(x.ptr(), None), Output::Floats(y.ptr()), x.rows());
    let done = run(cuda, &Matmul { w, x, y, bias, m, epilogue: Epilogue::Store })?;
    assert!(done, "a kernel multiplies any weights with floats");
    Ok(())
}

/// Computes a matmul with what stands before and after it in one launch, or in a few; `false`, and nothing done, where the kernel for it
/// cannot.
///
/// The callers check the shapes of `x` and `y`.
pub(in crate::cuda) fn run(cuda: &Cuda, op: &Matmul<'_>) -> Result<bool> {
    let w = &op.w.shape;
    assert_eq!(w.n_experts, 1, "a matmul with one matrix");
    assert!(op.bias.is_none_or(|b| b.len() == w.n_out), "a bias for {} outputs", w.n_out);
    let target = Target::of(cuda);
    let problem = Problem { w, m: op.m, epilogue: op.epilogue.kind() };
    let Some((kernel, plan)) = select(&target, &problem) else { return Ok(false) };
    if !kernel.reads(InputKind::of(op)) {
        return Ok(false);
    }
    let plan = match (plan, op.y, op.epilogue) {
        (Plan::Gemv(plan), Output::Floats(_), Epilogue::AddRanks) if !plan.can_add_ranks(cuda) => None,
        (_, Output::Floats(_), Epilogue::Activate(_)) => None,
        (plan, Output::Floats(_), _) => Some(plan),
        (Plan::MixedGemm(plan), Output::Tiles(tiles), Epilogue::Gate(f)) => {
            plan.with_tiles(w, tiles, f).map(Plan::MixedGemm)
        }
        (Plan::Gemm, Output::Qkv(..), Epilogue::Store) if target.hopper => Some(Plan::Gemm),
        (Plan::Gemm, Output::Tiles(tiles), epilogue) => {
            gemm::writes_tiles(&target, w, tiles, epilogue).then_some(Plan::Gemm)
        }
        (_, Output::Tiles(_) | Output::Qkv(..), _) => None,
    };
    plan.map_or(Ok(false), |plan| plan.run(cuda, op).map(|()| true))
}

/// The tiles that a matmul of `x` with these weights reads in place of floats, in the memory of `x`; `None` where it reads floats.
pub(in crate::cuda) fn tiles_in(
    cuda: &Cuda,
    w: &Matrix,
    x: &Tensor<Cuda>,
    epilogue: EpilogueKind,
) -> Option<Tiles> {
    let target = Target::of(cuda);
    // The same numbers as floats are rounded otherwise, and not every step has tiles.
    if target.mode == Mode::Deterministic {
        return None;
    }
    match select(&target, &Problem { w: &w.shape, m: x.rows(), epilogue })?.1 {
        Plan::MixedGemm(plan) => plan.tiles_in(x),
        Plan::Gemm => gemm::tiles(gemm::tile_layout(&target, &w.shape)?, x),
        _ => None,
    }
}

/// The layout of tiles that `gemm` reads, if it is what multiplies `m` rows with these weights.
pub(in crate::cuda) fn gemm_tiles(
    cuda: &Cuda,
    w: &Matrix,
    m: usize,
    epilogue: EpilogueKind,
) -> Option<TileLayout> {
    let target = Target::of(cuda);
    if target.mode == Mode::Deterministic {
        return None;
    }
    match select(&target, &Problem { w: &w.shape, m, epilogue })?.1 {
        Plan::Gemm => gemm::tile_layout(&target, &w.shape),
        _ => None,
    }
}
