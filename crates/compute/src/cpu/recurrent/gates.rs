//! Norms of groups of a row's elements with a gate on each, and gates alone.

use crate::cpu::activation::exp;
use crate::cpu::isa::Isa;
use crate::cpu::simd::{Kernel, Simd, dispatch};
use crate::cpu::threads::Pool;
use crate::cpu::{Cpu, norm, parallel};
use crate::{GatedNorm, Tensor};

pub(in crate::cpu) fn gated_norm(
    pool: &Pool,
    isa: Isa,
    x: &mut Tensor<Cpu>,
    gate: &Tensor<Cpu>,
    start: usize,
    norm: GatedNorm<'_, Cpu>,
) {
    let GatedNorm { norm, group_len, gate_first } = norm;
    assert_eq!(x.rows(), gate.rows());
    let (n, gate_len, gate) = (x.row_len(), gate.row_len(), gate.floats());
    assert!(n.is_multiple_of(group_len) && [n, group_len].contains(&norm.weight.len()));
    let (weight, bias) = (norm.weight.floats(), norm.bias.as_ref().map(|b| b.floats()));
    parallel::rows(pool, x.floats_mut(), n, |t, row| {
        let gate = &gate[t * gate_len + start..][..n];
        let multiply = |x: &mut [f32]| {
            // SAFETY: `Cpu::new` checked that the processor has `isa`; the kernel has no pointers of its own.
            unsafe { dispatch(isa, Gate { x, gate, is_silu: true }) }
        };
        if gate_first {
            multiply(row);
        }
        for (i, group) in row.chunks_exact_mut(group_len).enumerate() {
            // One group's weights serve all.
            let of_group = |all: &[f32]| {
                let start = i * group_len % all.len();
                start..start + group_len
            };
            let bias = bias.map(|b| &b[of_group(b)]);
            norm::norm_row(isa, group, norm.kind, &weight[of_group(weight)], bias, norm.eps);
        }
        if !gate_first {
            multiply(row);
        }
    });
}

pub(in crate::cpu) fn sigmoid_gate(pool: &Pool, isa: Isa, x: &mut Tensor<Cpu>, gate: &Tensor<Cpu>) {
    assert_eq!(x.shape(), gate.shape());
    let gate = gate.floats();
    parallel::pieces(pool, x.floats_mut(), |start, x| {
        let gate = &gate[start..][..x.len()];
        // SAFETY: `Cpu::new` checked that the processor has `isa`; the kernel has no pointers of its own.
        unsafe { dispatch(isa, Gate { x, gate, is_silu: false }) }
    });
}

/// `x *= silu(gate)`, or `x *= sigmoid(gate)`.
struct Gate<'a> {
    x: &'a mut [f32],
    gate: &'a [f32],
    is_silu: bool,
}

impl Kernel for Gate<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { x, gate, is_silu } = self;
        // Loops and not `for_each`, see `activation::apply`.
        if is_silu {
            for (x, &g) in x.iter_mut().zip(gate) {
                *x *= g / (1.0 + exp(-g));
            }
        } else {
            for (x, &g) in x.iter_mut().zip(gate) {
                *x /= 1.0 + exp(-g);
            }
        }
    }
}
