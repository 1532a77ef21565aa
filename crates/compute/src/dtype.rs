//! The element types of tensors. Everything else about a type stands in its row of [`QUANTS`].

use crate::quant::{QUANTS, QuantSpec};
use std::fmt;

/// Element type of a tensor, named as GGUF spells it.
///
/// The discriminant is the type's index in [`QUANTS`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(non_camel_case_types, missing_docs)]
pub enum DType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
}

impl DType {
    /// The row of [`QUANTS`] that describes this type.
    pub fn spec(self) -> &'static QuantSpec {
        &QUANTS[self as usize]
    }

    /// Name as GGUF spells it, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// The type with this number in GGUF's tensor directory, if we know it.
    pub fn from_ggml_id(id: u32) -> Option<Self> {
        QUANTS.iter().find(|s| s.ggml_id == id).map(|s| s.dtype)
    }

    /// The type of this name, in any letter case.
    pub fn from_name(name: &str) -> Option<Self> {
        QUANTS.iter().find(|s| s.name.eq_ignore_ascii_case(name)).map(|s| s.dtype)
    }

    /// Elements in one block (1 for plain numbers).
    pub fn block_len(self) -> usize {
        self.spec().block_len
    }

    /// Bytes of `n` elements; `None` where `n` is not a whole number of blocks or the size overflows.
    pub fn bytes_for(self, n: usize) -> Option<usize> {
        let s = self.spec();
        if n.is_multiple_of(s.block_len) { (n / s.block_len).checked_mul(s.block_bytes) } else { None }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
