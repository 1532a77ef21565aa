//! TQ1_0: 256 weights `d * (t - 1)`, `t` of three values (a trit).
//!
//! Five trits make a number below 243, the first the most significant; the byte holds it as the fraction
//! `ceil(number * 256 / 243)` of 256, so that multiplying by 3 carries the next trit out at the top.

use super::QuantSpec;
use super::blocks::{decode, encode, f16_to_f32};
use super::rounding::f32_to_f16;
use super::tq2_0::ternary;
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::TQ1_0,
    name: "TQ1_0",
    ggml_id: 34,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 54 bytes for 256 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Byte `m` below 32: weights `32 * n + m`, for `n` in 0..5. Byte `32 + m`: weights `160 + 16 * n + m`.
    pub(crate) qs: [u8; 48],
    /// Byte `m`: weights `240 + 4 * n + m`, for `n` in 0..4; the fifth trit is 0.
    pub(crate) qh: [u8; 4],
    /// Scale `d`, f16.
    pub(crate) d: [u8; 2],
}

const POWERS_OF_3: [u8; 5] = [1, 3, 9, 27, 81];

/// Trit `n` of a byte, 0 to 2; 0 is the first.
#[inline]
fn trit(byte: u8, n: usize) -> u8 {
    ((u16::from(byte.wrapping_mul(POWERS_OF_3[n])) * 3) >> 8) as u8
}

impl Block {
    /// All trits, each 0 to 2.
    #[inline]
    pub(crate) fn trits(&self) -> [u8; 256] {
        let mut t = [0; 256];
        let (wide, narrow) = self.qs.split_at(32);
        let (t_wide, rest) = t.split_at_mut(160);
        let (t_narrow, t_high) = rest.split_at_mut(80);
        for (bytes, t) in [(wide, t_wide), (narrow, t_narrow), (&self.qh, t_high)] {
            for (n, t) in t.chunks_exact_mut(bytes.len()).enumerate() {
                for (t, b) in t.iter_mut().zip(bytes) {
                    *t = trit(*b, n);
                }
            }
        }
        t
    }
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 256>(src, dst, |b, y| {
        let d = f16_to_f32(b.d);
        for (y, t) in y.iter_mut().zip(b.trits()) {
            *y = (f32::from(t) - 1.0) * d;
        }
    });
}

/// Five trits, the first the most significant, as a byte.
#[inline]
fn join_trits(trits: [u8; 5]) -> u8 {
    let number = trits.iter().fold(0u16, |n, t| n * 3 + u16::from(*t));
    (number * 256).div_ceil(243) as u8
}

fn quantize(src: &[f32], dst: &mut [u8], _: Option<&[f32]>) {
    encode::<Block, 256>(src, dst, |x| {
        let (d, t) = ternary(x);
        Block {
            qs: std::array::from_fn(|m| {
                let (first, stride) = if m < 32 { (m, 32) } else { (128 + m, 16) };
                join_trits(std::array::from_fn(|n| t[first + stride * n]))
            }),
            qh: std::array::from_fn(|m| join_trits([t[240 + m], t[244 + m], t[248 + m], t[252 + m], 0])),
            d: f32_to_f16(d),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_holds_five_trits_most_significant_first() {
        // 2 0 1 2 1 in base 3 is 178; 178 * 256 / 243 rounds up to 188.
        let mut block = Block { qs: [0; 48], qh: [0; 4], d: [0x00, 0x38] }; // d = 0.5
        (block.qs[1], block.qs[33], block.qh[2]) = (188, 188, 188);
        let mut y = [9.0; 256];
        dequantize(bytemuck::bytes_of(&block), &mut y);
        let mut want = [-0.5; 256];
        (want[1], want[65], want[97], want[129]) = (0.5, 0.0, 0.5, 0.0);
        (want[161], want[193], want[209], want[225]) = (0.5, 0.0, 0.5, 0.0);
        (want[242], want[250], want[254]) = (0.5, 0.0, 0.5);
        assert_eq!(y, want);
    }
}
