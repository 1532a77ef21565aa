//! The functions between the matrices of a feed-forward block.

use super::isa::Isa;
use super::simd::{Kernel, Simd, dispatch};
use super::threads::Pool;
use super::{Cpu, parallel};
use crate::math::{SWIGLU_ALPHA, SWIGLU_LIMIT};
use crate::{Activation, Tensor};

pub(super) fn gated(pool: &Pool, isa: Isa, y: &mut Tensor<Cpu>, x: &Tensor<Cpu>, f: Activation) {
    let n = y.row_len();
    assert_eq!((x.row_len(), x.rows()), (2 * n, y.rows()));
    let x = x.floats();
    parallel::rows(pool, y.floats_mut(), n, |i, y| gated_row(isa, y, &x[i * 2 * n..][..2 * n], f));
}

/// `y = f(gate) · up`, where `x` is gate and then up.
pub(super) fn gated_row(isa: Isa, y: &mut [f32], x: &[f32], f: Activation) {
    let (gate, up) = x.split_at(y.len());
    // SAFETY: `Cpu::new` checked that the processor has `isa`; the kernel has no pointers of its own.
    unsafe { dispatch(isa, Gated { y, gate, up, f }) }
}

/// `y = f(y) · x[.., start..start + y.row_len()]`.
pub(super) fn gate_columns(
    pool: &Pool,
    isa: Isa,
    y: &mut Tensor<Cpu>,
    x: &Tensor<Cpu>,
    start: usize,
    f: Activation,
) {
    let (n, x_len) = (y.row_len(), x.row_len());
    assert_eq!(x.rows(), y.rows());
    let x = x.floats();
    parallel::rows(pool, y.floats_mut(), n, |i, y| {
        row(isa, y, f);
        y.iter_mut().zip(&x[i * x_len + start..][..n]).for_each(|(y, x)| *y *= x);
    });
}

pub(super) fn activate(pool: &Pool, isa: Isa, x: &mut Tensor<Cpu>, f: Activation) {
    let n = x.row_len();
    parallel::rows(pool, x.floats_mut(), n, |_, x| row(isa, x, f));
}

/// `x = f(x)`.
pub(super) fn row(isa: Isa, x: &mut [f32], f: Activation) {
    // SAFETY: `Cpu::new` checked that the processor has `isa`; the kernel has no pointers of its own.
    unsafe { dispatch(isa, Activate { x, f }) }
}

/// `x = cap · tanh(x / cap)`.
pub(super) fn softcap(pool: &Pool, isa: Isa, x: &mut Tensor<Cpu>, cap: f32) {
    // SAFETY: `Cpu::new` checked that the processor has `isa`; the kernel has no pointers of its own.
    parallel::pieces(pool, x.floats_mut(), |_, x| unsafe { dispatch(isa, Softcap { x, cap }) });
}

/// `x[n, len] *= sigmoid(gate[n])`.
pub(super) fn gate_rows(pool: &Pool, x: &mut Tensor<Cpu>, gate: &Tensor<Cpu>) {
    assert_eq!((gate.row_len(), gate.rows()), (1, x.rows()));
    let (n, gate) = (x.row_len(), gate.floats());
    parallel::rows(pool, x.floats_mut(), n, |i, row| {
        let divisor = 1.0 + exp(-gate[i]);
        row.iter_mut().for_each(|x| *x /= divisor);
    });
}

struct Softcap<'a> {
    x: &'a mut [f32],
    cap: f32,
}

impl Kernel for Softcap<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for x in self.x {
            *x = self.cap * tanh(*x / self.cap);
        }
    }
}

struct Gated<'a> {
    y: &'a mut [f32],
    gate: &'a [f32],
    up: &'a [f32],
    f: Activation,
}

impl Kernel for Gated<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { y, gate, up, f } = self;
        if f == Activation::ClampedSwiglu {
            for ((y, &gate), &up) in y.iter_mut().zip(gate).zip(up) {
                // NaN passes through the comparisons.
                let gate = if gate > SWIGLU_LIMIT { SWIGLU_LIMIT } else { gate };
                let up = if up > SWIGLU_LIMIT { SWIGLU_LIMIT } else { up };
                let up = if up < -SWIGLU_LIMIT { -SWIGLU_LIMIT } else { up };
                *y = gate / (1.0 + exp(-SWIGLU_ALPHA * gate)) * (up + 1.0);
            }
            return;
        }
        y.copy_from_slice(gate);
        apply(y, f);
        for (y, up) in y.iter_mut().zip(up) {
            *y *= up;
        }
    }
}

struct Activate<'a> {
    x: &'a mut [f32],
    f: Activation,
}

impl Kernel for Activate<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        apply(self.x, self.f);
    }
}

/// The branch is outside of the loops, so that the compiler vectorizes each. They are loops and not `for_each`, whose body may become a
/// function of its own, compiled without the vector instructions.
#[inline(always)]
pub(super) fn apply(x: &mut [f32], f: Activation) {
    match f {
        Activation::Silu => {
            for x in x {
                *x /= 1.0 + exp(-*x);
            }
        }
        Activation::GeluTanh => {
            for x in x {
                let inner = 0.797_884_6 * *x * (1.0 + 0.044715 * *x * *x);
                // tanh(u) = 1 - 2 / (exp(2u) + 1), so (1 + tanh(u)) / 2 = 1 - 1 / (exp(2u) + 1)
                *x *= 1.0 - 1.0 / (exp(2.0 * inner) + 1.0);
            }
        }
        Activation::GeluErf => {
            for x in x {
                // As the definition has it, with the error function rounded: its distance from -1 is that of every device.
                let erf = (1.0 - erfc(x.abs() * std::f32::consts::FRAC_1_SQRT_2)).copysign(*x);
                *x *= 0.5 * (1.0 + erf);
            }
        }
        Activation::ReluSquared => {
            for x in x {
                *x = x.max(0.0) * x.max(0.0);
            }
        }
        Activation::Relu => {
            for x in x {
                *x = x.max(0.0);
            }
        }
        Activation::ClampedSwiglu => panic!("clamped SwiGLU takes a gate and its up"),
    }
}

/// `1 - erf(a)` for `a ≥ 0`, relative error below 5e-6 (below 1e-6 up to `a = 3`), without branches, so that loops over it vectorize.
///
/// `erfc(a) · e^(a²)` falls like `1/a`; divided by `t = 1 / (1 + 0.3 a)` it is nearly flat, and the polynomial in `t` of least relative
/// error over `0 ≤ a ≤ 10` is within 2e-8 of it.
#[inline(always)]
fn erfc(a: f32) -> f32 {
    const P: [f32; 9] = [
        0.169_188_01,
        0.170_715_13,
        0.148_339_83,
        0.214_923_6,
        -0.094_645_2,
        0.547_712_4,
        -0.512_271_7,
        0.485_560_25,
        -0.129_522_32,
    ];
    let t = 1.0 / (1.0 + 0.3 * a);
    P.iter().rev().fold(0.0, |sum, p| sum * t + p) * t * exp(-a * a)
}

/// `e^x` within 2 units in the last place, without branches, so that loops over it vectorize.
///
/// `x = n · ln 2 + r` with `|r| ≤ ln 2 / 2`; `e^r` by its Taylor polynomial of degree 7, `2^n` by the exponent's bits in two halves so
/// that results near the ends of the range stay right. Below -104 the result is 0, above 88.8 infinity.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // NaN passes through both, since comparisons with it fail.
    let x = if x > 90.0 { 90.0 } else { x };
    let x = if x < -110.0 { -110.0 } else { x };
    // Adding and taking away 1.5 · 2^23 rounds to the nearest whole number.
    const ROUND: f32 = 12_582_912.0;
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let p = 1.0 / 5040.0;
    let p = p * r + 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    // A NaN becomes some exponent here, and stays NaN through `p`.
    let n = (n + ROUND).to_bits() as i32 - ROUND.to_bits() as i32;
    let n = n.clamp(-200, 200);
    let half = n >> 1;
    let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    p * power(half) * power(n - half)
}

/// `tanh(x)` within 4 units in the last place, without branches, so that loops over it vectorize.
///
/// Near 0 an odd polynomial (its error is below 1e-7 up to 0.55), where the difference of two near numbers would lose digits;
/// further out `1 - 2 / (exp(2x) + 1)`.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    // Fitted for the least relative error.
    const TANH: [f32; 5] = [-0.333_333_17, 0.133_325_81, -0.053_851_74, 0.021_069_17, -0.006_270_469];
    let far = 1.0 - 2.0 / (exp(2.0 * a) + 1.0);
    let s = x * x;
    let p = TANH[4];
    let p = p * s + TANH[3];
    let p = p * s + TANH[2];
    let p = p * s + TANH[1];
    let p = p * s + TANH[0];
    let near = a + a * s * p;
    (if a < 0.55 { near } else { far }).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::{erfc, exp, tanh};
    use crate::math::erf;

    #[test]
    fn erfc_is_that_of_the_reference_and_of_the_tables() {
        let mut a = 0.0f32;
        while a < 2.0 {
            let (got, want) = (erfc(a), 1.0 - erf(a));
            assert!((got - want).abs() < 5e-7, "erfc({a}) = {got}, not {want}");
            a += 0.00137;
        }
        // Abramowitz and Stegun, table 7.1 and 7.3.
        for (a, want) in [(2.0, 4.677_735e-3), (3.0, 2.209_05e-5), (4.0, 1.541_726e-8), (5.0, 1.537_46e-12)] {
            let got = erfc(a);
            assert!((got / want - 1.0).abs() < 5e-6, "erfc({a}) = {got}, not {want}");
        }
        assert_eq!(erfc(f32::INFINITY), 0.0);
        assert!(erfc(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_is_within_four_units_in_the_last_place() {
        let mut x = -20.0f32;
        while x < 20.0 {
            let (got, want) = (f64::from(tanh(x)), f64::from(x).tanh());
            assert!((got / want - 1.0).abs() < 2.5e-7, "tanh({x}) = {got}, not {want}");
            x += 0.00137;
        }
        for x in [0.0, 1e-30, -1e-4, 1.0, f32::INFINITY, f32::NEG_INFINITY] {
            assert!((tanh(x) - x.tanh()).abs() <= 2.5e-7 * x.tanh().abs(), "{x}");
        }
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut x = -87.0f32;
        while x < 88.5 {
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got / want - 1.0).abs() < 2.5e-7, "exp({x}) = {got}, not {want}");
            x += 0.0137;
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-120.0), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }
}
