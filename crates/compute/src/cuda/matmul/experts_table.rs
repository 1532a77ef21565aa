//! The kernels for a mixture of experts, in the order of preference: the first that can, computes.

use super::packed_types::is_fp4;
use super::shape::{MatrixShape, Target};
use super::table::{Arch, Capability, Types};
use super::weights::Weights;
use super::{gemv, grouped_gemm, grouped_mma, grouped_small_m};
use crate::DType;
use crate::cuda::driver::Mode;
use std::ops::RangeInclusive;

/// A kernel for the products of experts, and what it takes.
pub(in crate::cuda) struct ExpertsKernel {
    pub(in crate::cuda) name: &'static str,
    types: Types,
    /// Rows of activations, each of which uses some experts.
    rows: RangeInclusive<usize>,
    capability: Capability,
    /// The strictest mode whose promises it keeps.
    mode: Mode,
    /// How it computes experts of these sizes; `None` where it cannot.
    plan: fn(&Target, &ExpertsProblem<'_>) -> Option<ExpertsPlan>,
}

/// Sizes of a mixture of experts.
pub(in crate::cuda) struct ExpertsProblem<'a> {
    /// `[n_experts, 2 * intermediate_size, hidden_size]`, or half the rows without gates.
    pub(in crate::cuda) gate_up: &'a MatrixShape,
    /// `[n_experts, hidden_size, intermediate_size]`
    pub(in crate::cuda) down: &'a MatrixShape,
    /// Rows of activations.
    pub(in crate::cuda) m: usize,
    /// Experts that each row uses.
    pub(in crate::cuda) n_used: usize,
    /// Whether experts have gates.
    pub(in crate::cuda) gated: bool,
}

/// How a kernel computes experts.
pub(in crate::cuda) enum ExpertsPlan {
    /// A few rows, one by one.
    Gemv(gemv::ExpertsPlan),
    /// Rows sorted by expert, a few of each, rounded to 8 bits.
    GroupedSmallM(grouped_small_m::Plan),
    /// Rows sorted by expert, on Hopper.
    GroupedGemm(grouped_gemm::Plan),
    /// The same on any GPU.
    GroupedMma(grouped_mma::Plan),
    /// Weights in floats, 8 rows at a time.
    SimtGemv,
}

/// Most rows of activations for which each reads its experts by itself, and most uses of experts in FP4 on Hopper, where `grouped_gemm` decodes it in
/// fewer instructions.
const MAX_GEMV_ROWS: usize = 8;
const MAX_GEMV_USES_OF_FP4: usize = 12;

/// By speed: a row comes before those that are slower where both can.
const KERNELS: &[ExpertsKernel] = &[
    ExpertsKernel {
        name: "gemv",
        types: Types::Packed,
        rows: 1..=MAX_GEMV_ROWS,
        capability: Capability::Sm80,
        mode: Mode::Fast,
        plan: plan_gemv,
    },
    ExpertsKernel {
        name: "gemv",
        types: Types::Plain16,
        rows: 1..=MAX_GEMV_ROWS,
        capability: Capability::Sm80,
        mode: Mode::Fast,
        plan: plan_gemv,
    },
    ExpertsKernel {
        name: "gemv_in_order",
        types: Types::Packed,
        rows: 1..=MAX_GEMV_ROWS,
        capability: Capability::Sm80,
        mode: Mode::Deterministic,
        plan: plan_gemv_in_order,
    },
    ExpertsKernel {
        name: "grouped_small_m",
        types: Types::Packed,
        rows: 1..=usize::MAX,
        capability: Capability::Sm80,
        mode: Mode::Deterministic,
        plan: plan_grouped_small_m,
    },
    ExpertsKernel {
        name: "grouped_gemm",
        types: Types::Packed,
        rows: 2..=usize::MAX,
        capability: Capability::Sm90,
        mode: Mode::Fast,
        plan: plan_grouped_gemm,
    },
    ExpertsKernel {
        name: "grouped_gemm",
        types: Types::Plain16,
        rows: 2..=usize::MAX,
        capability: Capability::Sm90,
        mode: Mode::Fast,
        plan: plan_grouped_gemm,
    },
    ExpertsKernel {
        name: "grouped_mma",
        types: Types::Packed,
        rows: 9..=usize::MAX,
        capability: Capability::Sm80,
        mode: Mode::Fast,
        plan: plan_grouped_mma,
    },
    ExpertsKernel {
        name: "grouped_mma",
        types: Types::Plain16,
        rows: 9..=usize::MAX,
        capability: Capability::Sm80,
        mode: Mode::Fast,
        plan: plan_grouped_mma,
    },
    ExpertsKernel {
        name: "simt_gemv",
        types: Types::All,
        rows: 0..=usize::MAX,
        capability: Capability::Sm80,
        mode: Mode::Exact,
        plan: |_, _| Some(ExpertsPlan::SimtGemv),
    },
];

/// Whether the kernels for packed weights have registers for all types.
fn has_registers(p: &ExpertsProblem<'_>) -> bool {
    let takes = |w: &MatrixShape| {
        let weights = w.parts.iter().filter_map(|part| Weights::of(part, w.n_in));
        weights.into_iter().all(Weights::is_of_experts)
    };
    takes(p.gate_up) && takes(p.down)
}

/// Whether too many rows have an expert in common: where half as many experts are used as there are, or more.
fn shares_experts(p: &ExpertsProblem<'_>) -> bool {
    p.m > 1 && 2 * p.m * p.n_used > p.gate_up.n_experts
}

fn plan_gemv(target: &Target, p: &ExpertsProblem<'_>) -> Option<ExpertsPlan> {
    let is_fp4 = p.gate_up.parts.iter().chain(&p.down.parts).any(|part| is_fp4(part.dtype));
    let is_slower = target.hopper && is_fp4 && p.m > 1 && p.m * p.n_used > MAX_GEMV_USES_OF_FP4;
    if shares_experts(p) || is_slower || !has_registers(p) {
        return None;
    }
    gemv::plan_experts(target, p.gate_up, p.down, (p.m, p.n_used), false).map(ExpertsPlan::Gemv)
}

fn plan_gemv_in_order(target: &Target, p: &ExpertsProblem<'_>) -> Option<ExpertsPlan> {
    let has_twin = || plan_grouped_small_m(target, p).is_some();
    if target.mode != Mode::Deterministic || shares_experts(p) || !has_registers(p) || !has_twin() {
        return None;
    }
    gemv::plan_experts(target, p.gate_up, p.down, (p.m, p.n_used), true).map(ExpertsPlan::Gemv)
}

fn plan_grouped_small_m(target: &Target, p: &ExpertsProblem<'_>) -> Option<ExpertsPlan> {
    // A row by itself is for the kernels of one row.
    if target.mode == Mode::Fast && p.m == 1 {
        return None;
    }
    grouped_small_m::plan(target, p.gate_up, p.down, p.m * p.n_used).map(ExpertsPlan::GroupedSmallM)
}

fn plan_grouped_gemm(target: &Target, p: &ExpertsProblem<'_>) -> Option<ExpertsPlan> {
    if !has_registers(p) {
        return None;
    }
    grouped_gemm::plan(target, p.gate_up, p.down, p.m * p.n_used).map(ExpertsPlan::GroupedGemm)
}

fn plan_grouped_mma(_: &Target, p: &ExpertsProblem<'_>) -> Option<ExpertsPlan> {
    grouped_mma::plan(p.gate_up, p.down).map(ExpertsPlan::GroupedMma)
}

/// The first kernel that can, with its plan.
pub(in crate::cuda) fn select_experts(
    target: &Target,
    problem: &ExpertsProblem<'_>,
) -> (&'static ExpertsKernel, ExpertsPlan) {
    let parts = || problem.gate_up.parts.iter().chain(&problem.down.parts);
    let found = KERNELS.iter().find_map(|k| {
        let takes = k.rows.contains(&problem.m)
            && k.capability.includes(target)
            && k.mode >= target.mode
            // The others multiply gates and ups as part of their products.
            && (k.mode == Mode::Exact || problem.gated)
            && parts().all(|p| k.types.contains(p));
        if !takes {
            return None;
        }
        (k.plan)(target, problem).map(|plan| (k, plan))
    });
    found.expect("the last kernel takes all")
}

/// The kernel that multiplies `m` rows of activations with experts `[n_experts, n_out, n_in]` of this type; `None` where rows of these are
/// not whole blocks. `gated`: whether the experts have gates.
pub fn experts_kernel_for(
    arch: Arch,
    dtype: DType,
    [n_experts, n_out, n_in]: [usize; 3],
    gated: bool,
    m: usize,
) -> Option<&'static str> {
    let target = arch.target();
    let shape = |n_out| MatrixShape::single(dtype, [n_experts, n_out, n_in], target.mode);
    let (gate_up, down) = (shape(2 * n_out)?, shape(n_out)?);
    let problem = ExpertsProblem { gate_up: &gate_up, down: &down, m, n_used: 1, gated };
    Some(select_experts(&target, &problem).0.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::QUANTS;
    use std::fmt::Write;

    /// What selection_experts.txt lists: for every type the kernels of experts of a size that models have.
    fn print() -> String {
        const M: [usize; 5] = [1, 8, 9, 256, 4096];
        let mut out = String::new();
        for arch in Arch::ALL {
            write!(out, "{:<8}", arch.name()).unwrap();
            M.iter().for_each(|m| write!(out, " {:<15}", format!("M = {m}")).unwrap());
            for spec in QUANTS {
                write!(out, "\n{:<8}", spec.name).unwrap();
                for m in M {
                    let name = experts_kernel_for(arch, spec.dtype, [128, 768, 2048], true, m).unwrap();
                    write!(out, " {name:<15}").unwrap();
                }
            }
            out.push_str("\n\n");
        }
        let lines: Vec<&str> = out.trim_end().lines().map(str::trim_end).collect();
        lines.join("\n") + "\n"
    }

    #[test]
    fn every_type_takes_the_kernels_that_selection_experts_txt_lists() {
        let listed = include_str!("selection_experts.txt");
        assert_eq!(print(), listed, "selection_experts.txt should be\n{}", print());
    }

    #[test]
    fn exact_sums_take_exact_kernels_only() {
        let target = Target { mode: Mode::Exact, ..Target::SM_90 };
        for spec in QUANTS {
            let w = &MatrixShape::single(spec.dtype, [8, 1024, 1024], target.mode).unwrap();
            for m in [1, 8, 4096] {
                let problem = ExpertsProblem { gate_up: w, down: w, m, n_used: 2, gated: true };
                let (kernel, _) = select_experts(&target, &problem);
                assert!(kernel.mode == Mode::Exact, "{} with {m} rows: {}", spec.name, kernel.name);
            }
        }
    }
}
