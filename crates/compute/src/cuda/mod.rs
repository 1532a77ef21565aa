//! The NVIDIA GPU as a backend.
//!
//! Each kind of work has a room, with a door (`mod.rs`), launchers, and kernels (`.cu`) beside them. Rooms import from `driver` and
//! `common` only, experts also from `matmul`. The kernels are compiled ahead of time (`tools/kernels`) and embedded. [`driver::Driver`] is
//! the seam to CUDA, through which the tests run the same launchers and kernels on a machine that has no GPU.

mod attention;
mod backend;
mod batch;
mod blocks;
mod common;
pub mod driver;
mod elementwise;
mod experts;
mod matmul;
mod norm;
mod ranks;
mod recurrent;
mod sampling;

pub use batch::StagedBatch;
pub use driver::{Buffer, Cuda, CudaOptions, MAX_RANKS, Mode};
pub use matmul::{Arch, Matrix, experts_kernel_for, kernel_for};
pub use sampling::Choices;

use crate::Result;
use driver::{Driver, Link, Member, Rooms};
use std::sync::Arc;

impl Cuda {
    /// Opens the driver and a GPU.
    ///
    /// Errors: `Device` with the reason in one line: no driver, one that is too old, no such GPU, a GPU that is too old.
    pub fn new(options: CudaOptions) -> Result<Self> {
        Self::with_driver(driver::open(options.device)?, options.mode)
    }

    /// The GPU's driver by itself, which tests put others in front of.
    ///
    /// Errors: as [`Cuda::new`].
    pub fn open_driver(device: usize) -> Result<Arc<dyn Driver>> {
        driver::open(device)
    }

    /// The backend on another driver than the GPU's; for tests.
    pub fn with_driver(driver: Arc<dyn Driver>, mode: Mode) -> Result<Self> {
        with_member(driver, mode, None)
    }

    /// GPUs that share a model, one rank each, in this order.
    ///
    /// Errors: as [`Cuda::new`] for each; `Device` for a number that occurs twice, for more than eight, without NCCL.
    pub fn group(devices: &[usize], mode: Mode) -> Result<Vec<Self>> {
        if let &[device] = devices {
            return Ok(vec![Self::new(CudaOptions { device, mode })?]);
        }
        let (drivers, link) = driver::open_group(devices)?;
        Self::group_on(drivers, link, mode)
    }

    /// The same on other drivers; for tests.
    pub fn group_on(drivers: Vec<Arc<dyn Driver>>, link: Arc<dyn Link>, mode: Mode) -> Result<Vec<Self>> {
        let members = Member::group(&drivers, link)?;
        let both = drivers.into_iter().zip(members);
        both.map(|(driver, member)| with_member(driver, mode, Some(member))).collect()
    }
}

fn with_member(driver: Arc<dyn Driver>, mode: Mode, member: Option<Member>) -> Result<Cuda> {
    let mut rooms = Rooms::default();
    rooms.add(driver::UploadKernels::load(&*driver)?);
    rooms.add(elementwise::Kernels::load(&*driver)?);
    rooms.add(experts::Kernels::load(&*driver)?);
    rooms.add(norm::Kernels::load(&*driver)?);
    rooms.add(ranks::Kernels::load(&*driver)?);
    rooms.add(sampling::Kernels::load(&*driver)?);
    attention::load(&*driver, &mut rooms)?;
    matmul::load(&*driver, &mut rooms)?;
    recurrent::load(&*driver, &mut rooms)?;
    Ok(Cuda::assemble(driver, mode, member, rooms))
}
