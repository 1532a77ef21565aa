//! BF16: the upper half of an IEEE 754 single, little-endian.

use super::QuantSpec;
use crate::DType;
use half::bf16;

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::BF16,
    name: "BF16",
    ggml_id: 30,
    block_len: 1,
    block_bytes: 2,
    dequantize,
    quantize: Some(quantize),
};

fn dequantize(src: &[u8], dst: &mut [f32]) {
    for (b, y) in src.as_chunks().0.iter().zip(dst) {
        *y = bf16::from_le_bytes(*b).to_f32();
    }
}

fn quantize(src: &[f32], dst: &mut [u8], _: Option<&[f32]>) {
    for (x, b) in src.iter().zip(dst.as_chunks_mut().0) {
        *b = bf16::from_f32(*x).to_le_bytes();
    }
}
