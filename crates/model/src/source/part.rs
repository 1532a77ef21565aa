//! What the formats' readers make of a file.

use crate::mmap::Mapping;
use bytes::Bytes;
use realizar_compute::DType;
use std::ops::Range;
use std::path::PathBuf;

/// One parsed file: its bytes and what lies where. The formats' readers have checked that every range lies inside
/// `bytes`, that none overlaps another, and that its length is what type and shape need.
pub(crate) struct Part {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Bytes,
    /// In the order of the file, names unique.
    pub(crate) tensors: Vec<Entry>,
    /// The mapping behind `bytes`, if they are a file's.
    pub(crate) mapping: Option<Mapping>,
}

/// One tensor of a [`Part`].
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) element: Element,
    pub(crate) shape: Vec<usize>,
    pub(crate) range: Range<usize>,
}

/// Element type of a tensor as its file has it.
pub(crate) enum Element {
    /// A type that weights can have.
    Weight(DType),
    /// Any other, by the name its format gives it.
    Other(String),
}
