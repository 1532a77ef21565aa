//! RMSNorm and LayerNorm.

use super::isa::Isa;
use super::simd::{Kernel, LANES, Simd, dispatch};
use super::threads::Pool;
use super::{Cpu, parallel};
use crate::{Norm, NormKind, Tensor};

/// `x = norm(x)` in the columns from `start` on that the norm has elements for.
pub(super) fn norm_columns(pool: &Pool, isa: Isa, x: &mut Tensor<Cpu>, start: usize, norm: &Norm<Cpu>) {
    let columns = start..start + norm.weight.len();
    let (weight, bias) = (norm.weight.floats(), norm.bias.as_ref().map(|b| b.floats()));
    let n = x.row_len();
    parallel::rows(pool, x.floats_mut(), n, |_, row| {
        norm_row(isa, &mut row[columns.clone()], norm.kind, weight, bias, norm.eps);
    });
}

/// `y = norm(x)`.
pub(super) fn norm(pool: &Pool, isa: Isa, y: &mut Tensor<Cpu>, x: &Tensor<Cpu>, norm: &Norm<Cpu>) {
    assert_eq!(y.shape(), x.shape());
    let (x, n) = (x.floats(), x.row_len());
    let (weight, bias) = (norm.weight.floats(), norm.bias.as_ref().map(|b| b.floats()));
    parallel::rows(pool, y.floats_mut(), n, |i, row| {
        row.copy_from_slice(&x[i * n..][..n]);
        norm_row(isa, row, norm.kind, weight, bias, norm.eps);
    });
}

/// Normalizes one row in place.
pub(super) fn norm_row(
    isa: Isa,
    row: &mut [f32],
    kind: NormKind,
    weight: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
) {
    assert_eq!(row.len(), weight.len());
    assert!(bias.is_none_or(|b| b.len() == row.len()));
    // SAFETY: `Cpu::new` checked that the processor has `isa`; the kernel has no pointers of its own.
    unsafe { dispatch(isa, NormRow { row, kind, weight, bias, eps }) }
}

struct NormRow<'a> {
    row: &'a mut [f32],
    kind: NormKind,
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    eps: f32,
}

/// Sum in one accumulator per lane, added up in f64: short chains, and the same order for every instruction set.
#[inline(always)]
pub(super) fn sum(row: &[f32], f: impl Fn(f32) -> f32) -> f64 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, &x) in lanes.iter_mut().zip(chunk) {
            *sum += f(x);
        }
    }
    lanes.iter().map(|&s| f64::from(s)).sum::<f64>() + rest.iter().map(|&x| f64::from(f(x))).sum::<f64>()
}

impl Kernel for NormRow<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let n = self.row.len() as f64;
        let mean = match self.kind {
            NormKind::Rms => 0.0,
            NormKind::Layer => (sum(self.row, |x| x) / n) as f32,
        };
        let var = sum(self.row, |x| (x - mean) * (x - mean)) / n;
        let inv = (1.0 / (var + f64::from(self.eps)).sqrt()) as f32;
        for (x, w) in self.row.iter_mut().zip(self.weight) {
            *x = (*x - mean) * inv * w;
        }
        if let Some(bias) = self.bias {
            for (x, b) in self.row.iter_mut().zip(bias) {
                *x += b;
            }
        }
    }
}
