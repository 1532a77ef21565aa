//! Tensors, quantization formats and the operations of a transformer on a device.
//!
//! - [`Backend`]: every operation and its shapes. [`Reference`] is what each one means; [`cpu::Cpu`] and
//!   `cuda::Cuda` are the fast ones.
//! - [`Tensor`]: a backend's buffer with an element type and a shape. [`DType`] and [`quant::QUANTS`]: the element types.
//! - [`Batch`]: one step's work as plain data.

mod backend;
mod batch;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod dtype;
mod error;
mod profile;
pub mod quant;
mod ranks;
mod reference;
pub mod sampling;
mod tensor;

pub use backend::{
    Activation, AttentionParams, Backend, Choosing, Chosen, DeviceMemory, GraphKey, Heads, KvLayer,
    MatrixPart, MoeParams, MoeScratch, Norm, NormKind, OutProduct, QkvPrep, RopeStyle,
};
pub use batch::{Batch, BatchLimits, BatchSeq, HostBatch};
pub use dtype::DType;
pub use error::{Error, Result};
pub use profile::{OpTime, Profiler};
pub use ranks::Rank;
pub use reference::Reference;
pub use tensor::{Shape, Tensor};
