//! Q2_K: 256 weights `d * scale * q - dmin * min`, `q` of two bits.
//!
//! Each of 16 sub-blocks of 16 weights has its own scale and min of four bits.

use super::QuantSpec;
use super::affine::{self, Grids};
use super::bits::{join_pairs_256, pairs_256};
use super::blocks::{decode, encode_weighted, f16_to_f32};
use super::importance::error_weights;
use super::rounding::sum;
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::Q2_K,
    name: "Q2_K",
    ggml_id: 10,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 84 bytes for 256 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Byte `s`: scale of sub-block `s` in the low nibble, its min in the high one.
    pub(crate) scales: [u8; 16],
    /// Byte `32 * h + l`: `q[128 * h + 32 * k + l]` in bits `2 * k` and `2 * k + 1`, for `k` in 0..4.
    pub(crate) qs: [u8; 64],
    /// Scale of the scales `d`, f16.
    pub(crate) d: [u8; 2],
    /// Scale of the mins `dmin`, f16.
    pub(crate) dmin: [u8; 2],
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 256>(src, dst, |b, y| {
        let (d, dmin) = (f16_to_f32(b.d), f16_to_f32(b.dmin));
        let q = pairs_256(&b.qs);
        for (s, (y, q)) in y.as_chunks_mut::<16>().0.iter_mut().zip(q.as_chunks::<16>().0).enumerate() {
            let scale = d * f32::from(b.scales[s] & 15);
            let min = dmin * f32::from(b.scales[s] >> 4);
            for (y, q) in y.iter_mut().zip(q) {
                *y = scale * f32::from(*q) - min;
            }
        }
    });
}

fn quantize(src: &[f32], dst: &mut [u8], importance: Option<&[f32]>) {
    encode_weighted::<Block, 256>(src, dst, importance, |x, importance| {
        let sub_blocks = x.as_chunks::<16>().0;
        let b = if let Some(importance) = importance {
            let w = error_weights(x, importance);
            let w = w.as_chunks::<16>().0;
            let grids = Grids { first: -0.9, n: 19 };
            let fits = std::array::from_fn(|s| affine::fit::<16, 3>(&sub_blocks[s], &w[s], grids, |e| e * e));
            affine::encode_super_block::<16, 15, 3>(x, &fits, Some(&std::array::from_fn(|s| sum(&w[s]))))
        } else {
            let fits = std::array::from_fn(|s| {
                let x = &sub_blocks[s];
                // With four levels squares would let the few largest weights decide alone.
                affine::fit::<16, 3>(x, &x.map(f32::abs), Grids { first: -0.5, n: 16 }, f32::abs)
            });
            affine::encode_super_block::<16, 15, 3>(x, &fits, None)
        };
        let scales = std::array::from_fn(|s| b.scales[s] | b.mins[s] << 4);
        Block { scales, qs: join_pairs_256(&b.q), d: b.d, dmin: b.dmin }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sixteen_weights_have_a_scale_and_a_min() {
        let mut block = Block { scales: [0; 16], qs: [0; 64], d: [0x00, 0x3c], dmin: [0x00, 0x38] }; // 1, 0.5
        block.scales[2] = 0x43; // weights 32..48: 3 * q - 2
        block.scales[13] = 0x01; // weights 208..224: q
        block.qs[0] = 0b10_01_11_00; // weights 0, 32, 64, 96
        block.qs[32 + 31] = 0b00_11_00_00; // weights 159, 191, 223, 255
        block.qs[32 + 16] = 0b00_10_00_00; // weight 208
        let mut y = [9.0; 256];
        dequantize(bytemuck::bytes_of(&block), &mut y);
        let mut want = [0.0; 256];
        want[32..48].fill(-2.0);
        (want[32], want[208], want[223]) = (7.0, 2.0, 3.0);
        assert_eq!(y, want);
    }
}
