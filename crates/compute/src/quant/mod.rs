//! Quantization formats: one folder per type, one row of [`QUANTS`] each.
//!
//! A type's folder holds its block layout and its scalar `dequantize` (bit-equal to ggml's) and, where the type can be
//! written, `quantize`. These are the meaning of the type; the CPU's and GPU's fast kernels are tested against them.
//!
//! | type | weights in a block | bytes of a block | bits per weight | written here |
//! |---|---|---|---|---|
//! | F32 | 1 | 4 | 32 | yes |
//! | F16, BF16 | 1 | 2 | 16 | yes |
//! | Q8_0 | 32 | 34 | 8.5 | yes |
//! | Q6_K | 256 | 210 | 6.5625 | yes |
//! | Q5_1 | 32 | 24 | 6 | yes |
//! | Q5_0 | 32 | 22 | 5.5 | yes |
//! | Q5_K | 256 | 176 | 5.5 | yes |
//! | Q4_1 | 32 | 20 | 5 | yes |
//! | Q4_0, IQ4_NL | 32 | 18 | 4.5 | yes |
//! | Q4_K | 256 | 144 | 4.5 | yes |
//! | NVFP4 | 64 | 36 | 4.5 | no |
//! | MXFP4 | 32 | 17 | 4.25 | yes |
//! | IQ4_XS | 256 | 136 | 4.25 | yes |
//! | Q3_K | 256 | 110 | 3.4375 | yes |
//! | IQ3_S | 256 | 110 | 3.4375 | yes |
//! | IQ3_XXS | 256 | 98 | 3.0625 | yes |
//! | Q2_K | 256 | 84 | 2.625 | yes |
//! | IQ2_S | 256 | 82 | 2.5625 | yes |
//! | IQ2_XS | 256 | 74 | 2.3125 | yes |
//! | IQ2_XXS | 256 | 66 | 2.0625 | yes |
//! | TQ2_0 | 256 | 66 | 2.0625 | yes |
//! | IQ1_M | 256 | 56 | 1.75 | yes |
//! | TQ1_0 | 256 | 54 | 1.6875 | yes |
//! | IQ1_S | 256 | 50 | 1.5625 | yes |
//! | Q1_0 | 128 | 18 | 1.125 | no |

pub(crate) mod bf16;
pub(crate) mod f16;
pub(crate) mod f32;
pub(crate) mod iq1_m;
pub(crate) mod iq1_s;
pub(crate) mod iq2_s;
pub(crate) mod iq2_xs;
pub(crate) mod iq2_xxs;
pub(crate) mod iq3_s;
pub(crate) mod iq3_xxs;
pub(crate) mod iq4_nl;
pub(crate) mod iq4_xs;
pub(crate) mod mxfp4;
pub(crate) mod nvfp4;
pub(crate) mod q1_0;
pub(crate) mod q2_k;
pub(crate) mod q3_k;
pub(crate) mod q4_0;
pub(crate) mod q4_1;
pub(crate) mod q4_k;
pub(crate) mod q5_0;
pub(crate) mod q5_1;
pub(crate) mod q5_k;
pub(crate) mod q6_k;
pub(crate) mod q8_0;
pub(crate) mod tq1_0;
pub(crate) mod tq2_0;

mod affine;
pub(crate) mod bits;
mod blocks;
pub(crate) mod codebook;
pub(crate) mod fp4;
mod importance;
pub(crate) mod k_scales;
mod lattice;
mod rounding;
mod symmetric;

use crate::DType;

/// Decodes whole blocks.
pub type Dequantize = fn(src: &[u8], dst: &mut [f32]);
/// Encodes whole blocks, with the importance of each weight where it is known.
pub type Quantize = fn(src: &[f32], dst: &mut [u8], importance: Option<&[f32]>);

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
    pub dequantize: Dequantize,
    /// Encodes whole blocks, the inverse direction; `None` for types that this project only reads.
    ///
    /// `importance`: for each element of `src` a number that is not negative, the mean square of the activations that it is multiplied
    /// with. Errors then cost in proportion to it. Types that store numbers of 8 bits and more, powers of two or ternary weights leave it
    /// out.
    pub quantize: Option<Quantize>,
}

/// All element types; the index of a row is its `DType` discriminant.
pub static QUANTS: &[QuantSpec] = &[
    f32::SPEC,
    f16::SPEC,
    bf16::SPEC,
    q4_0::SPEC,
    q4_1::SPEC,
    q5_0::SPEC,
    q5_1::SPEC,
    q8_0::SPEC,
    q2_k::SPEC,
    q3_k::SPEC,
    q4_k::SPEC,
    q5_k::SPEC,
    q6_k::SPEC,
    iq1_s::SPEC,
    iq1_m::SPEC,
    iq2_xxs::SPEC,
    iq2_xs::SPEC,
    iq2_s::SPEC,
    iq3_xxs::SPEC,
    iq3_s::SPEC,
    iq4_nl::SPEC,
    iq4_xs::SPEC,
    tq1_0::SPEC,
    tq2_0::SPEC,
    mxfp4::SPEC,
    nvfp4::SPEC,
    q1_0::SPEC,
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn rows_stand_at_their_types_place() {
        assert_eq!(QUANTS.len(), DType::Q1_0 as usize + 1);
        for (i, s) in QUANTS.iter().enumerate() {
            assert_eq!(s.dtype as usize, i, "row {i} is {}", s.name);
            assert_eq!(DType::from_name(s.name), Some(s.dtype));
            assert_eq!(DType::from_ggml_id(s.ggml_id), Some(s.dtype));
        }
        let ids: HashSet<_> = QUANTS.iter().map(|s| s.ggml_id).collect();
        let names: HashSet<_> = QUANTS.iter().map(|s| s.name).collect();
        assert_eq!((ids.len(), names.len()), (QUANTS.len(), QUANTS.len()));
    }
}
