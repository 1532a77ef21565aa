//! F16: IEEE 754 half precision, little-endian.

use super::QuantSpec;
use crate::DType;
use half::f16;

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::F16,
    name: "F16",
    ggml_id: 1,
    block_len: 1,
    block_bytes: 2,
    dequantize,
    quantize: Some(quantize),
};

fn dequantize(src: &[u8], dst: &mut [f32]) {
    for (b, y) in src.as_chunks().0.iter().zip(dst) {
        *y = f16::from_le_bytes(*b).to_f32();
    }
}

fn quantize(src: &[f32], dst: &mut [u8], _: Option<&[f32]>) {
    for (x, b) in src.iter().zip(dst.as_chunks_mut().0) {
        *b = f16::from_f32(*x).to_le_bytes();
    }
}
