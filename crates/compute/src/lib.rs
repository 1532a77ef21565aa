//! Tensors, quantization formats and the operations of a transformer on a device.
//!
//! - [`Ops`]: the primitive operations with their shapes. [`Blocks`]: the blocks of a layer, made of them. [`Backend`]: both, with memory
//!   ([`Device`]), collectives, recording and profiling. [`Reference`] is what each operation means; [`cpu::Cpu`] and `cuda::Cuda` are the
//!   fast backends.
//! - [`Tensor`]: a backend's buffer with an element type and a shape. [`DType`] and [`quant::QUANTS`]: the element types.
//! - [`Batch`]: one step's work as plain data.

mod backend;
mod batch;
pub mod blocks;
mod capture;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device;
mod dtype;
mod error;
mod math;
mod observer;
mod ops;
mod profile;
pub mod quant;
mod ranks;
mod reference;
pub mod sampling;
mod tensor;
mod weights;

pub use backend::Backend;
pub use batch::{Batch, BatchLimits, BatchSeq, BatchState, CacheShape, HostBatch, PreviousRow, StateWrite};
pub use blocks::{
    AttentionBlock, BlockInput, BlockOutput, Blocks, DeltaPart, EmbedBlock, FfnBlock, FfnUp, Gather,
    HeadBlock, HeadNorms, Join, LatentBlock, LatentExperts, LatentQueries, LatentRoom, Linear, MoeBlock,
    MoeNorms, OutputGate, PerLayerInputBlock, Recurrence, RecurrentBlock, SharedExpert, SsmPart, Stream,
};
pub use capture::{Capture, Choosing, GraphKey};
pub use device::{Device, DeviceMemory, KvLayer, MatrixPart, StateLayer};
pub use dtype::DType;
pub use error::{Error, Result};
pub use observer::{InputObserver, MatmulInput};
pub use ops::{
    Activation, AttentionParams, AttentionTemperature, Chosen, ConvKind, DeltaInput, DeltaShape, DtLimits,
    ExpertGroups, Experts, ExpertsKind, GatedNorm, GroupScore, HeadOrder, Heads, LatentPrep, LatentShape,
    MAX_CONV_WIDTH, MoeParams, MoeScratch, Norm, NormKind, Ops, Pooling, QkvPrep, RopeStyle, Router,
    RouterScores, ShortConv, SsmInput, SsmShape,
};
pub use profile::{OpTime, Profile, Profiler};
pub use ranks::{Collectives, Rank};
pub use reference::Reference;
pub use tensor::{Shape, Tensor};
