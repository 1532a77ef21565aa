//! Quantization formats: one folder per type, one row of [`QUANTS`] each.
//!
//! A type's folder holds its block layout and its scalar `dequantize` (bit-equal to ggml's) and, where the type can be
//! written, `quantize`. These are the meaning of the type; the CPU's and GPU's fast kernels are tested against them.

mod bf16;
mod f16;
mod f32;

use crate::DType;

/// Everything the project knows about one element type.
pub struct QuantSpec {
    /// The type.
    pub dtype: DType,
    /// Its name as GGUF spells it.
    pub name: &'static str,
    /// Its number in GGUF's tensor directory.
    pub ggml_id: u32,
    /// Elements in one block.
    pub block_len: usize,
    /// Bytes of one block.
    pub block_bytes: usize,
    /// Decodes whole blocks: `dst.len()` elements from `dst.len() / block_len * block_bytes` bytes.
    ///
    /// Bit-equal to ggml's `to_float`.
    pub dequantize: fn(src: &[u8], dst: &mut [f32]),
    /// Encodes whole blocks, the inverse direction; `None` for types that this project only reads.
    pub quantize: Option<fn(src: &[f32], dst: &mut [u8])>,
}

/// All element types; the index of a row is its `DType` discriminant.
pub static QUANTS: &[QuantSpec] = &[f32::SPEC, f16::SPEC, bf16::SPEC];
