//! Q5_K: 256 weights `d * scale * q - dmin * min`, `q` of five bits.
//!
//! Each of 8 sub-blocks of 32 weights has its own scale and min of six bits.

use super::QuantSpec;
use super::affine::Grids;
use super::bits::{bits_256, join_bits_256, join_nibbles_256, nibbles_256};
use super::blocks::{decode, encode_weighted, f16_to_f32};
use super::k_scales;
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::Q5_K,
    name: "Q5_K",
    ggml_id: 13,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 176 bytes for 256 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Scale of the scales `d`, f16.
    pub(crate) d: [u8; 2],
    /// Scale of the mins `dmin`, f16.
    pub(crate) dmin: [u8; 2],
    /// Scales and mins, packed as [`k_scales`] says.
    pub(crate) scales: [u8; 12],
    /// Byte `l`: the highest bit of `q[32 * s + l]` in bit `s`, for each sub-block `s`.
    pub(crate) qh: [u8; 32],
    /// Byte `32 * c + l`: the low bits of `q[64 * c + l]` in the low nibble, of `q[64 * c + 32 + l]` in the high one.
    pub(crate) qs: [u8; 128],
}

impl Block {
    /// All `q`, each in 0..32.
    #[inline]
    pub(crate) fn quants(&self) -> [u8; 256] {
        let mut q = nibbles_256(&self.qs);
        for (q, high) in q.iter_mut().zip(bits_256(&self.qh)) {
            *q |= high << 4;
        }
        q
    }
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 256>(src, dst, |b, y| {
        let (d, dmin) = (f16_to_f32(b.d), f16_to_f32(b.dmin));
        let (scales, mins) = k_scales::unpack(&b.scales);
        let q = b.quants();
        for (s, (y, q)) in y.as_chunks_mut::<32>().0.iter_mut().zip(q.as_chunks::<32>().0).enumerate() {
            let (scale, min) = (d * f32::from(scales[s]), dmin * f32::from(mins[s]));
            for (y, q) in y.iter_mut().zip(q) {
                *y = scale * f32::from(*q) - min;
            }
        }
    });
}

fn quantize(src: &[f32], dst: &mut [u8], importance: Option<&[f32]>) {
    encode_weighted::<Block, 256>(src, dst, importance, |x, importance| {
        let b = k_scales::encode::<31>(x, importance, Grids { first: -0.5, n: 16 });
        Block {
            d: b.d,
            dmin: b.dmin,
            scales: k_scales::pack(&b.scales, &b.mins),
            qh: join_bits_256(&b.q.map(|q| q >> 4)),
            qs: join_nibbles_256(&b.q.map(|q| q & 15)),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fifth_bit_adds_sixteen() {
        let mut block = Block { d: [0x00, 0x3c], dmin: [0, 0], scales: [1; 12], qh: [0; 32], qs: [0; 128] };
        block.qh[4] = 0b1000_0010; // weights 36 and 228
        block.qs[4] = 0x30; // weights 4 and 36
        let mut y = [9.0; 256];
        dequantize(bytemuck::bytes_of(&block), &mut y);
        let mut want = [0.0; 256];
        (want[36], want[228]) = (19.0, 16.0);
        assert_eq!(y, want);
    }
}
