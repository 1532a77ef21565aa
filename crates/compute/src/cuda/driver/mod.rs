//! What every operation on a GPU is made of: the CUDA driver behind a trait, memory, launches, recorded graphs, connected GPUs.
//!
//! [`api::Driver`] is the seam to CUDA; tests put an emulation behind it. [`Cuda`] is one GPU or one stream of its work. Rooms (`matmul`,
//! `attention`, ...) import from here and from `common`; nothing here imports from a room.

mod api;
mod buffer;
mod context;
mod gpu;
mod gpu_link;
mod graphs;
mod kernels;
mod lock;
mod nccl;
mod occupancy;
mod ranks;
mod upload;

pub use api::*;
pub use buffer::Buffer;
pub use context::{Cuda, CudaOptions, Mode};
pub use ranks::MAX_RANKS;

pub(in crate::cuda) use context::{Rooms, grid_blocks};
pub(in crate::cuda) use kernels::{Kernel, KernelImage, kernel_args, kernel_image, kernels};
pub(in crate::cuda) use occupancy::{BLOCK_BYTES, GEMV_STATIC_BYTES, more_than_half, sm_shared_bytes};
pub(in crate::cuda) use ranks::{MAX_BLOCKS, Member, PLACES, RanksArgs};
pub(in crate::cuda) use upload::{Kernels as UploadKernels, upload};

use crate::Result;
use std::sync::Arc;

/// Opens the CUDA driver and a GPU.
///
/// Errors: `Device` with the reason in one line: no driver, one that is too old, no such GPU, a GPU that is too old.
pub(in crate::cuda) fn open(device: usize) -> Result<Arc<dyn Driver>> {
    Ok(Arc::new(gpu::Gpu::open(device)?))
}

/// Opens GPUs and connects them.
pub(in crate::cuda) fn open_group(devices: &[usize]) -> Result<gpu_link::Group> {
    gpu_link::open(devices)
}
