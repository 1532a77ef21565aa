//! GGUF, the single-file format of ggml: reader and writer.
//!
//! Layout, all little-endian: magic `GGUF`, u32 version, u64 number of tensors, u64 number of key-value pairs; the
//! pairs (key, u32 type, value); the tensor directory (name, u32 number of dimensions, u64 dimensions with the innermost
//! first, u32 element type, u64 offset); padding to the alignment; the data, each tensor at an aligned offset from its
//! start. A string is a u64 length and its bytes; an array is a u32 element type, a u64 length and its elements.
//! Source: `docs/gguf.md` of the ggml repository, versions 2 and 3 (equal but for big-endian files in 3).

mod read;
mod write;

pub(crate) use read::read;
pub use write::{Header, Writer};

const MAGIC: &[u8; 4] = b"GGUF";
const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: usize = 32;
/// ggml's tensors have up to this many dimensions.
const MAX_DIMS: usize = 4;

/// Numbers of the value types in the key-value section.
mod value_type {
    pub(super) const U8: u32 = 0;
    pub(super) const I8: u32 = 1;
    pub(super) const U16: u32 = 2;
    pub(super) const I16: u32 = 3;
    pub(super) const U32: u32 = 4;
    pub(super) const I32: u32 = 5;
    pub(super) const F32: u32 = 6;
    pub(super) const BOOL: u32 = 7;
    pub(super) const STRING: u32 = 8;
    pub(super) const ARRAY: u32 = 9;
    pub(super) const U64: u32 = 10;
    pub(super) const I64: u32 = 11;
    pub(super) const F64: u32 = 12;
}
