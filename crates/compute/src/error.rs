//! The error of every fallible operation in this crate.

use crate::DType;

/// Why an operation on a device could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device has too little free memory for an allocation.
    #[error("{device} is out of memory: {requested} bytes wanted for {what}")]
    OutOfMemory {
        /// Name of the device.
        device: String,
        /// What the memory was for.
        what: String,
        /// Size of the allocation, in bytes.
        requested: usize,
    },
    /// There is no such device.
    #[error("{device}: {message}")]
    NoDevice {
        /// Name of the device.
        device: String,
        /// What is missing.
        message: String,
    },
    /// The backend has no implementation for this combination.
    #[error("{backend} cannot run {op} on {dtype}")]
    Unsupported {
        /// Name of the operation, as in the `Ops` trait.
        op: &'static str,
        /// Element type that has no implementation.
        dtype: DType,
        /// Name of the backend.
        backend: &'static str,
    },
    /// The backend has no implementation for this size or option.
    #[error("{backend} cannot run {op} with {what}")]
    UnsupportedSize {
        /// Name of the operation, as in the `Ops` trait.
        op: &'static str,
        /// What there is, and what can be.
        what: String,
        /// Name of the backend.
        backend: &'static str,
    },
    /// A tensor from outside has another size than its type and shape say.
    #[error("{what}: {dtype} of shape {shape:?} needs {expected} bytes but has {found}")]
    WrongSize {
        /// Which tensor.
        what: String,
        /// Its element type.
        dtype: DType,
        /// Its shape, outermost dimension first.
        shape: Vec<usize>,
        /// Bytes that this type and shape need.
        expected: usize,
        /// Bytes that were given.
        found: usize,
    },
    /// A row of a quantized tensor is not a whole number of blocks.
    #[error("{what}: rows of {len} elements are not a multiple of {dtype}'s block of {block_len}")]
    PartialBlock {
        /// Which tensor.
        what: String,
        /// Its element type.
        dtype: DType,
        /// Elements in a row.
        len: usize,
        /// Elements in a block.
        block_len: usize,
    },
    /// The batch does not fit the buffers that were made for it.
    #[error("a batch of {found} {what} exceeds the limit of {limit}")]
    BatchTooLarge {
        /// What there is too much of: tokens, sequences, blocks, logits.
        what: &'static str,
        /// How many the batch has.
        found: usize,
        /// How many the buffers hold.
        limit: usize,
    },
    /// The batch contradicts itself, or names a block, position, slot or row that does not exist.
    #[error("a batch is not valid: {what}")]
    InvalidBatch {
        /// What is wrong with it.
        what: String,
    },
    /// A worker panicked or a device call failed; later calls may fail too.
    #[error("{device} failed: {message}")]
    Device {
        /// Name of the device.
        device: String,
        /// What it said.
        message: String,
    },
}

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
