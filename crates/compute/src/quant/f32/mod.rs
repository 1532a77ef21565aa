//! F32: IEEE 754 single precision, little-endian.

use super::QuantSpec;
use crate::DType;

pub(super) const SPEC: QuantSpec = QuantSpec {
    dtype: DType::F32,
    name: "F32",
    ggml_id: 0,
    block_len: 1,
    block_bytes: 4,
    dequantize,
    quantize: Some(quantize),
};

fn dequantize(src: &[u8], dst: &mut [f32]) {
    for (b, y) in src.as_chunks().0.iter().zip(dst) {
        *y = f32::from_le_bytes(*b);
    }
}

fn quantize(src: &[f32], dst: &mut [u8], _: Option<&[f32]>) {
    for (x, b) in src.iter().zip(dst.as_chunks_mut().0) {
        *b = x.to_le_bytes();
    }
}
