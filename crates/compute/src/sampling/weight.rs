//! Probabilities as integers, so that their sums do not depend on the order in which a device adds them up.

/// The weight of the likeliest token. Tokens less likely than 2⁻⁴⁰ of it have none.
pub const WEIGHT_OF_LIKELIEST: u64 = 1 << 40;

/// The largest vocabulary whose weights can be summed.
pub const MAX_VOCAB: usize = 1 << 23;

/// A number in 0..1 as a fraction of 2⁶⁴.
pub fn fraction(x: f64) -> u64 {
    (x * 18_446_744_073_709_551_616.0) as u64
}

/// `fraction · sum`, rounded down.
pub fn share(fraction: u64, sum: u64) -> u64 {
    ((u128::from(fraction) * u128::from(sum)) >> 64) as u64
}

/// `exp(x) · 2⁴⁰` of a relative logit, which is at most 0: rounded down, with the error of a float.
///
/// The exponential is a power of two times a polynomial (Cody and Waite 1980); every operation is a plain one of `F32`.
#[inline]
pub fn weight(x: f32) -> u64 {
    // Minus infinity less itself is not a number.
    if x.is_nan() || x < -28.0 {
        return 0;
    }
    // Adding 1.5 · 2²³ leaves no room for a fraction.
    const ROUND: f32 = 12_582_912.0;
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    // ln 2 in two parts; the first has few bits, so that its product with n is exact.
    let r = (x - n * (355.0 / 512.0)) - n * -2.121_944_4e-4;
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    let bits = p.to_bits();
    let mantissa = u64::from(bits & 0x7f_ffff | 0x80_0000);
    // The mantissa has 23 bits behind the point.
    let shift = (bits >> 23) as i32 - 127 + n as i32 + 40 - 23;
    if shift >= 0 { mantissa << shift } else { mantissa >> -shift }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_exponentials() {
        assert_eq!(weight(0.0), WEIGHT_OF_LIKELIEST);
        assert_eq!((weight(f32::NEG_INFINITY), weight(f32::NAN), weight(-1e30)), (0, 0, 0));
        for i in 0..2_800_000 {
            let x = -(i as f32) * 1e-5;
            let want = f64::from(x).exp() * WEIGHT_OF_LIKELIEST as f64;
            let error = (weight(x) as f64 - want).abs();
            assert!(error <= 1.0 + want * 2.5e-7, "{x}: {} instead of {want}", weight(x));
        }
    }

    #[test]
    fn shares_are_rounded_down() {
        assert_eq!(share(fraction(0.5), 7), 3);
        assert_eq!(share(fraction(0.0), 7), 0);
        assert_eq!(share(fraction(1.0 - f64::EPSILON / 2.0), u64::MAX >> 1), (u64::MAX >> 1) - 1024);
    }
}
