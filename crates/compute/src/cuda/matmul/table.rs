//! The matmul kernels, in the order of preference: the first that can, computes.

use super::epilogue::EpilogueKind;
use super::op::Matmul;
use super::shape::{Layout, MatrixShape, PartShape, Target};
use super::{f32, gemm, gemm_i8, gemv, mixed_gemm, simt, small_m};
use crate::cuda::common::Input;
use crate::cuda::driver::{Cuda, Mode};
use crate::{DType, NormKind, Result};
use std::ops::RangeInclusive;

/// A kernel, and what it takes.
pub(in crate::cuda) struct MatmulKernel {
    pub(in crate::cuda) name: &'static str,
    types: Types,
    /// Rows of activations, M.
    rows: RangeInclusive<usize>,
    capability: Capability,
    /// The strictest mode whose promises it keeps.
    mode: Mode,
    epilogues: &'static [EpilogueKind],
    inputs: &'static [InputKind],
    /// How it computes a matrix of these sizes; `None` where it cannot.
    plan: fn(&Target, &Problem<'_>) -> Option<Plan>,
}

/// Sizes of one matmul, and what happens to its result.
pub(in crate::cuda) struct Problem<'a> {
    pub(in crate::cuda) w: &'a MatrixShape,
    pub(in crate::cuda) m: usize,
    pub(in crate::cuda) epilogue: EpilogueKind,
}

impl Problem<'_> {
    fn is_gate(&self) -> bool {
        self.epilogue == EpilogueKind::Gate
    }
}

/// Kinds of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Types {
    /// In a packed layout.
    Packed,
    /// F16 and BF16.
    Plain16,
    /// F32.
    Plain32,
    /// All but F32, which has no place in 16 bits.
    NotF32,
    /// All.
    All,
}

impl Types {
    pub(super) fn contains(self, part: &PartShape) -> bool {
        match self {
            Self::Packed => part.layout == Layout::Packed,
            Self::Plain16 => matches!(part.dtype, DType::F16 | DType::BF16),
            Self::Plain32 => part.dtype == DType::F32,
            Self::NotF32 => part.dtype != DType::F32,
            Self::All => true,
        }
    }
}

/// Which GPUs run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capability {
    /// Compute capability 8.0 and later.
    Sm80,
    /// As `Sm80`, but not Hopper, which has a kernel of its own.
    NotSm90,
    /// 9.0: wgmma and TMA.
    Sm90,
}

impl Capability {
    pub(super) fn includes(self, target: &Target) -> bool {
        match self {
            Self::Sm80 => true,
            Self::NotSm90 => !target.hopper,
            Self::Sm90 => target.hopper,
        }
    }
}

/// What a kernel can read, and do to it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum InputKind {
    /// Floats.
    Floats,
    /// Floats that are divided by their root mean square first.
    RmsNorm,
    /// Floats that are normalized otherwise first.
    OtherNorm,
    /// Tiles, which only the kernel that reads them is asked to read.
    Tiles,
}

impl InputKind {
    pub(super) fn of(op: &Matmul<'_>) -> Self {
        match op.x {
            Input::Floats(_, None) => Self::Floats,
            Input::Floats(_, Some(norm)) => {
                let is_simple = norm.kind == NormKind::Rms && norm.bias.is_none();
                let fits = norm.weight.len() == op.w.shape.n_in;
                if is_simple && fits { Self::RmsNorm } else { Self::OtherNorm }
            }
            Input::Tiles(_) => Self::Tiles,
        }
    }
}

use EpilogueKind::{Activate, Add, AddRanks, Gate, Store};
use InputKind::{Floats, OtherNorm, RmsNorm, Tiles};

/// By speed, as measured: a row comes before those that are slower where both can.
pub(in crate::cuda) const KERNELS: &[MatmulKernel] = &[
    MatmulKernel {
        name: "gemv",
        types: Types::Packed,
        rows: 1..=1,
        capability: Capability::Sm80,
        mode: Mode::Fast,
        epilogues: &[Store, Add, AddRanks, Gate],
        inputs: &[Floats, RmsNorm],
        plan: plan_gemv,
    },
    MatmulKernel {
        name: "gemv",
        types: Types::Plain16,
        rows: 1..=1,
        capability: Capability::Sm80,
        mode: Mode::Fast,
        epilogues: &[Store, Add, AddRanks, Gate],
        inputs: &[Floats, RmsNorm],
        plan: plan_gemv,
    },
    MatmulKernel {
        name: "gemv_in_order",
        types: Types::Packed,
        rows: 1..=1,
        capability: Capability::Sm80,
        mode: Mode::Deterministic,
        epilogues: &[Store, Add, Gate],
        inputs: &[Floats, RmsNorm],
        plan: plan_gemv_in_order,
    },
    MatmulKernel {
        name: "small_m_i8",
        types: Types::Packed,
        rows: 1..=small_m::ROWS,
        capability: Capability::Sm80,
        mode: Mode::Deterministic,
        epilogues: &[Store, Add, Gate],
        inputs: &[Floats, RmsNorm],
        plan: plan_small_m,
    },
    MatmulKernel {
        name: "stream_k",
        types: Types::Packed,
        rows: 65..=256,
        capability: Capability::Sm90,
        mode: Mode::Fast,
        epilogues: &[Store, Add, Gate],
        inputs: &[Floats, RmsNorm, Tiles],
        plan: plan_mixed_gemm,
    },
    MatmulKernel {
        name: "mixed_gemm",
        types: Types::Packed,
        rows: 2..=64,
        capability: Capability::Sm90,
        mode: Mode::Fast,
        epilogues: &[Store, Add, Gate],
        inputs: &[Floats, RmsNorm, Tiles],
        plan: plan_mixed_gemm,
    },
    MatmulKernel {
        name: "mixed_gemm",
        types: Types::Plain16,
        rows: 2..=256,
        capability: Capability::Sm90,
        mode: Mode::Fast,
        epilogues: &[Store, Add, Gate],
        inputs: &[Floats, RmsNorm, Tiles],
        plan: plan_mixed_gemm,
    },
    MatmulKernel {
        name: "gemv (passes)",
        types: Types::NotF32,
        rows: 2..=16,
        capability: Capability::Sm80,
        mode: Mode::Fast,
        epilogues: &[Store, Add, Gate],
        inputs: &[Floats, RmsNorm],
        plan: plan_gemv,
    },
    MatmulKernel {
        name: "gemm_hopper",
        types: Types::NotF32,
        rows: 9..=usize::MAX,
        capability: Capability::Sm90,
        mode: Mode::Fast,
        epilogues: &[Store, Add, Gate, Activate],
        inputs: &[Floats, RmsNorm, OtherNorm, Tiles],
        plan: plan_gemm,
    },
    MatmulKernel {
        name: "gemm",
        types: Types::NotF32,
        rows: 9..=usize::MAX,
        capability: Capability::NotSm90,
        mode: Mode::Fast,
        epilogues: &[Store, Add, Gate],
        inputs: &[Floats, RmsNorm, OtherNorm],
        plan: plan_gemm,
    },
    MatmulKernel {
        name: "f32_gemv",
        types: Types::Plain32,
        rows: 1..=f32::MAX_GEMV_ROWS,
        capability: Capability::Sm80,
        mode: Mode::Fast,
        epilogues: &[Store],
        inputs: &[Floats, RmsNorm],
        plan: plan_f32,
    },
    MatmulKernel {
        name: "f32_small_m",
        types: Types::Plain32,
        rows: f32::MAX_GEMV_ROWS + 1..=f32::MANY_ROWS - 1,
        capability: Capability::Sm80,
        mode: Mode::Fast,
        epilogues: &[Store],
        inputs: &[Floats, RmsNorm],
        plan: plan_f32,
    },
    MatmulKernel {
        name: "f32_gemm",
        types: Types::Plain32,
        rows: f32::MANY_ROWS..=usize::MAX,
        capability: Capability::Sm80,
        mode: Mode::Fast,
        epilogues: &[Store],
        inputs: &[Floats],
        plan: plan_f32,
    },
    MatmulKernel {
        name: "gemm_i8_hopper",
        types: Types::Packed,
        rows: small_m::ROWS + 1..=usize::MAX,
        capability: Capability::Sm90,
        mode: Mode::Deterministic,
        epilogues: &[Store, Add, Gate],
        inputs: &[Floats, RmsNorm],
        plan: plan_gemm_i8_hopper,
    },
    MatmulKernel {
        name: "gemm_i8",
        types: Types::Packed,
        rows: small_m::ROWS + 1..=usize::MAX,
        capability: Capability::Sm80,
        mode: Mode::Deterministic,
        epilogues: &[Store, Add, Gate],
        inputs: &[Floats, RmsNorm],
        plan: plan_gemm_i8,
    },
    MatmulKernel {
        name: "mixed_gemm",
        types: Types::Plain16,
        rows: 1..=usize::MAX,
        capability: Capability::Sm90,
        mode: Mode::Deterministic,
        epilogues: &[Store, Add, Gate],
        inputs: &[Floats, RmsNorm],
        plan: plan_mixed_gemm,
    },
    MatmulKernel {
        name: "gemm",
        types: Types::Plain16,
        rows: 1..=usize::MAX,
        capability: Capability::NotSm90,
        mode: Mode::Deterministic,
        epilogues: &[Store, Add, Gate],
        inputs: &[Floats, RmsNorm, OtherNorm],
        plan: plan_gemm,
    },
    MatmulKernel {
        name: "simt_gemv",
        types: Types::All,
        rows: 1..=8,
        capability: Capability::Sm80,
        mode: Mode::Exact,
        epilogues: &[Store],
        inputs: &[Floats],
        plan: |_, _| Some(Plan::SimtGemv),
    },
    MatmulKernel {
        name: "simt_gemm",
        types: Types::All,
        rows: 9..=usize::MAX,
        capability: Capability::Sm80,
        mode: Mode::Fast,
        epilogues: &[Store],
        inputs: &[Floats],
        plan: |_, _| Some(Plan::SimtGemm),
    },
    MatmulKernel {
        name: "simt_gemv",
        types: Types::All,
        rows: 9..=usize::MAX,
        capability: Capability::Sm80,
        mode: Mode::Exact,
        epilogues: &[Store],
        inputs: &[Floats],
        plan: |_, _| Some(Plan::SimtGemv),
    },
];

fn plan_gemv(target: &Target, p: &Problem<'_>) -> Option<Plan> {
    gemv::plan(target, p.w, p.m, p.is_gate()).map(Plan::Gemv)
}

fn plan_gemv_in_order(target: &Target, p: &Problem<'_>) -> Option<Plan> {
    let has_twins = || plan_small_m(target, p).is_some();
    let plan = || gemv::plan_in_order(target, p.w, p.is_gate()).map(Plan::Gemv);
    (target.mode == Mode::Deterministic && has_twins()).then(plan)?
}

fn plan_small_m(target: &Target, p: &Problem<'_>) -> Option<Plan> {
    let plan = small_m::plan(target, p.w, p.m, p.is_gate())?;
    // More rows have the same bits, or these have others.
    let has_twin = || gemm_i8::plan(target, p.w, small_m::ROWS + 1, p.is_gate()).is_some();
    (target.mode == Mode::Fast || has_twin()).then_some(Plan::SmallM(plan))
}

fn plan_gemm_i8(target: &Target, p: &Problem<'_>) -> Option<Plan> {
    let has_twin = small_m::plan(target, p.w, small_m::ROWS, p.is_gate()).is_some();
    gemm_i8::plan(target, p.w, p.m, p.is_gate()).filter(|_| has_twin).map(Plan::GemmI8)
}

fn plan_gemm_i8_hopper(target: &Target, p: &Problem<'_>) -> Option<Plan> {
    let has_twin = small_m::plan(target, p.w, small_m::ROWS, p.is_gate()).is_some();
    gemm_i8::plan_hopper(target, p.w, p.m, p.is_gate()).filter(|_| has_twin).map(Plan::GemmI8)
}

fn plan_mixed_gemm(target: &Target, p: &Problem<'_>) -> Option<Plan> {
    mixed_gemm::plan(target, p.w, p.m, p.is_gate()).map(Plan::MixedGemm)
}

fn plan_f32(_: &Target, p: &Problem<'_>) -> Option<Plan> {
    f32::supports(p.w).then_some(Plan::F32)
}

fn plan_gemm(target: &Target, p: &Problem<'_>) -> Option<Plan> {
    gemm::supports(target, p.w, p.is_gate()).then_some(Plan::Gemm)
}

/// How a kernel computes one matmul.
pub(super) enum Plan {
    Gemv(gemv::Plan),
    SmallM(small_m::Plan),
    MixedGemm(mixed_gemm::Plan),
    GemmI8(gemm_i8::Plan),
    Gemm,
    F32,
    SimtGemv,
    SimtGemm,
}

impl Plan {
    pub(super) fn run(&self, cuda: &Cuda, op: &Matmul<'_>) -> Result<()> {
        match self {
            Self::Gemv(plan) => plan.run(cuda, op),
            Self::SmallM(plan) => plan.run(cuda, op),
            Self::MixedGemm(plan) => plan.run(cuda, op),
            Self::GemmI8(plan) => plan.run(cuda, op),
            Self::Gemm => gemm::matmul(cuda, op),
            Self::F32 => f32::matmul(cuda, op),
            Self::SimtGemv => simt::gemv(cuda, op),
            Self::SimtGemm => simt::gemm(cuda, op),
        }
    }
}

/// The first kernel that can, with its plan. Whether it reads the input as it is, its `inputs` say: a kernel that is faster on these rows
/// is not passed over for one that would save a norm's launch.
pub(super) fn select(target: &Target, problem: &Problem<'_>) -> Option<(&'static MatmulKernel, Plan)> {
    KERNELS.iter().find_map(|k| {
        let takes = k.rows.contains(&problem.m)
            && k.capability.includes(target)
            && k.mode >= target.mode
            && k.epilogues.contains(&problem.epilogue)
            && problem.w.parts.iter().all(|p| k.types.contains(p));
        if !takes {
            return None;
        }
        (k.plan)(target, problem).map(|plan| (k, plan))
    })
}

impl MatmulKernel {
    pub(super) fn reads(&self, input: InputKind) -> bool {
        self.inputs.contains(&input)
    }
}

/// A GPU to select kernels for without having it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// An A100; other GPUs than Hopper select alike.
    Sm80,
    /// An H200.
    Sm90,
}

impl Arch {
    /// All.
    pub const ALL: [Self; 2] = [Self::Sm80, Self::Sm90];

    pub(super) fn target(self) -> Target {
        match self {
            Self::Sm80 => Target::SM_80,
            Self::Sm90 => Target::SM_90,
        }
    }

    /// As CUDA writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sm80 => "sm_80",
            Self::Sm90 => "sm_90",
        }
    }
}

/// The kernel that multiplies `m` rows of activations with a matrix `[n_out, n_in]` of this type, or with the halves of its outputs for a
/// gate; `None` where a gate is not part of the matmul, or rows of the matrix are not whole blocks.
pub fn kernel_for(
    arch: Arch,
    dtype: DType,
    n_out: usize,
    n_in: usize,
    m: usize,
    gate: bool,
) -> Option<&'static str> {
    kernel_on(&arch.target(), dtype, [n_out, n_in], m, gate)
}

fn kernel_on(
    target: &Target,
    dtype: DType,
    [n_out, n_in]: [usize; 2],
    m: usize,
    gate: bool,
) -> Option<&'static str> {
    let w = &MatrixShape::single(dtype, [1, n_out, n_in], target.mode)?;
    let epilogue = if gate { Gate } else { Store };
    select(target, &Problem { w, m, epilogue }).map(|(kernel, _)| kernel.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::QUANTS;
    use std::fmt::Write;

    /// What selection.txt lists: for every type the kernels of a matrix of a size that models have, at M around each border.
    fn print() -> String {
        const M: [usize; 9] = [1, 2, 8, 9, 64, 65, 256, 257, 4096];
        let mut out = String::new();
        let modes = [Mode::Fast, Mode::Deterministic];
        for (mode, arch) in modes.into_iter().flat_map(|mode| Arch::ALL.map(|arch| (mode, arch))) {
            if mode == Mode::Deterministic {
                writeln!(out, "deterministic").unwrap();
            }
            write!(out, "{:<8}", arch.name()).unwrap();
            M.iter().for_each(|m| write!(out, " {:<13}", format!("M = {m}")).unwrap());
            for spec in QUANTS {
                write!(out, "\n{:<8}", spec.name).unwrap();
                for m in M {
                    let target = Target { mode, ..arch.target() };
                    let name = kernel_on(&target, spec.dtype, [4096, 4096], m, false).unwrap();
                    write!(out, " {name:<13}").unwrap();
                }
            }
            out.push_str("\n\n");
        }
        let lines: Vec<&str> = out.trim_end().lines().map(str::trim_end).collect();
        lines.join("\n") + "\n"
    }

    #[test]
    fn every_type_takes_the_kernels_that_selection_txt_lists() {
        let listed = include_str!("selection.txt");
        assert_eq!(print(), listed, "selection.txt should be\n{}", print());
    }

    #[test]
    fn exact_sums_take_exact_kernels_only() {
        let target = Target { mode: Mode::Exact, ..Target::SM_90 };
        for spec in QUANTS {
            let w = &MatrixShape::single(spec.dtype, [1, 4096, 4096], target.mode).unwrap();
            for m in [1, 8, 9, 256, 4096] {
                let (kernel, _) = select(&target, &Problem { w, m, epilogue: Store }).unwrap();
                assert!(kernel.mode == Mode::Exact, "{} with {m} rows: {}", spec.name, kernel.name);
            }
        }
    }

    /// All rows of a matrix take kernels of one family, whose bits are the same.
    #[test]
    fn deterministic_kernels_of_a_matrix_agree() {
        let families = [
            &["gemv_in_order", "small_m_i8", "gemm_i8", "gemm_i8_hopper"][..],
            &["mixed_gemm"],
            &["gemm"],
            &["simt_gemv"],
        ];
        for target in [Target::SM_80, Target::SM_90].map(|t| Target { mode: Mode::Deterministic, ..t }) {
            for (spec, n_in) in QUANTS.iter().flat_map(|spec| [512, 2880, 14336].map(|n| (spec, n))) {
                for (n_out, gate) in [(64, false), (4096, false), (28672, true), (128_256, false)] {
                    let of = |m| kernel_on(&target, spec.dtype, [n_out, n_in], m, gate);
                    // Neither a gate nor rows that are not whole blocks.
                    if of(1).is_none() {
                        assert!(
                            [8, 9, 300].iter().all(|&m| of(m).is_none()),
                            "{} [{n_out}, {n_in}]",
                            spec.name
                        );
                        continue;
                    }
                    let found: Vec<_> = [1, 2, 8, 9, 64, 65, 256, 257, 4096].map(|m| of(m).unwrap()).to_vec();
                    let agree = families.iter().any(|f| found.iter().all(|name| f.contains(name)));
                    assert!(agree, "{} [{n_out}, {n_in}]: {found:?}", spec.name);
                }
            }
        }
    }

    #[test]
    fn any_matrix_has_a_kernel() {
        for spec in QUANTS {
            let n_in = if spec.block_len == 1 { 33 } else { 3 * spec.block_len };
            for target in [Target::SM_80, Target::SM_90] {
                for n_out in [1, 77] {
                    let w = &MatrixShape::single(spec.dtype, [1, n_out, n_in], target.mode).unwrap();
                    for m in [1, 2, 8, 9, 17, 64, 65, 256, 257] {
                        let found = select(&target, &Problem { w, m, epilogue: Store });
                        assert!(found.is_some(), "{} [{n_out}, {n_in}] with {m} rows", spec.name);
                    }
                }
            }
        }
    }
}
