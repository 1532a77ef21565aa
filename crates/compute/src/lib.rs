//! Tensors, quantization formats and the operations of a transformer on a device.

mod dtype;
mod error;
pub mod quant;

pub use dtype::DType;
pub use error::{Error, Result};
