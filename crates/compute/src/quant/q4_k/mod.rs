//! Q4_K: 256 weights `d * scale * q - dmin * min`, `q` of four bits.
//!
//! Each of 8 sub-blocks of 32 weights has its own scale and min of six bits.

use super::QuantSpec;
use super::affine::Grids;
use super::bits::{join_nibbles_256, nibbles_256};
use super::blocks::{decode, encode_weighted, f16_to_f32};
use super::k_scales;
use crate::DType;
use bytemuck::{Pod, Zeroable};

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::Q4_K,
    name: "Q4_K",
    ggml_id: 12,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    dequantize,
    quantize: Some(quantize),
};

/// 144 bytes for 256 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    /// Scale of the scales `d`, f16.
    pub(crate) d: [u8; 2],
    /// Scale of the mins `dmin`, f16.
    pub(crate) dmin: [u8; 2],
    /// Scales and mins, packed as [`k_scales`] says.
    pub(crate) scales: [u8; 12],
    /// Byte `32 * c + l`: `q[64 * c + l]` in the low nibble, `q[64 * c + 32 + l]` in the high one.
    pub(crate) qs: [u8; 128],
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    decode::<Block, 256>(src, dst, |b, y| {
        let (d, dmin) = (f16_to_f32(b.d), f16_to_f32(b.dmin));
        let (scales, mins) = k_scales::unpack(&b.scales);
        let q = nibbles_256(&b.qs);
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
        let b = k_scales::encode::<15>(x, importance, Grids { first: -1.0, n: 21 });
        let scales = k_scales::pack(&b.scales, &b.mins);
        Block { d: b.d, dmin: b.dmin, scales, qs: join_nibbles_256(&b.q) }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_blocks_alternate_between_nibbles() {
        let mut block = Block { d: [0x00, 0x3c], dmin: [0x00, 0x38], scales: [0; 12], qs: [0; 128] }; // 1, 0.5
        block.scales[1] = 2; // scale of sub-block 1
        block.scales[5] = 0b11_000001; // min of sub-block 1 is 1; min of sub-block 5 gets 48
        block.scales[9] = 0x43; // scale of sub-block 5 is 3; its min gets 4
        block.qs[7] = 0x90; // weights 7 and 39
        block.qs[64] = 0xf1; // weights 128 and 160
        let mut y = [9.0; 256];
        dequantize(bytemuck::bytes_of(&block), &mut y);
        let mut want = [0.0; 256];
        want[32..64].fill(-0.5);
        want[39] = 17.5;
        want[160..192].fill(-26.0);
        want[160] = 19.0;
        assert_eq!(y, want);
    }
}
