//! One GPU as operations see it: its driver, scratch memory, kernels, recorded graphs.

use super::api::{DevicePtr, Driver, Grid};
use super::buffer::Scratch;
use super::graphs::Graphs;
use super::kernels::Kernel;
use super::occupancy::SmemOccupancyGuard;
use super::ranks::Member;
use crate::{DType, Error, GraphKey, Profiler, Result, Tensor};
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

/// What the result of a sum may depend on. Each mode keeps the promises of those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Kernels are chosen by the size of a step, and round differently: a row's last bits depend on what is computed beside it.
    #[default]
    Fast,
    /// A row's result does not depend on what is computed beside it, nor on how a prompt is cut into steps.
    Deterministic,
    /// Every sum is taken in F32 in one order, and nothing is rounded to fewer bits than it is stored in. Slower.
    Exact,
}

/// How a GPU is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaOptions {
    /// Number of the GPU, as the driver counts.
    pub device: usize,
    /// What results may depend on.
    pub mode: Mode,
}

/// One NVIDIA GPU, or one stream of its work. Threads may use it at the same time, and their results do not depend on each other.
pub struct Cuda {
    // Dropped before the driver: graphs, then memory.
    graphs: Graphs,
    pub(in crate::cuda) scratch: Scratch,
    rooms: Rooms,
    pub(in crate::cuda) driver: Arc<dyn Driver>,
    pub(in crate::cuda) mode: Mode,
    pub(in crate::cuda) profiler: Profiler,
    pub(in crate::cuda) smem_guard: SmemOccupancyGuard,
    /// Where several GPUs share a model.
    pub(in crate::cuda) member: Option<Member>,
}

/// What each room keeps for a GPU, such as its kernels: one value of each type.
#[derive(Default)]
pub(in crate::cuda) struct Rooms(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl Rooms {
    pub(in crate::cuda) fn add<T: Any + Send + Sync>(&mut self, room: T) {
        let before = self.0.insert(TypeId::of::<T>(), Box::new(room));
        assert!(before.is_none(), "{} was added twice", std::any::type_name::<T>());
    }
}

impl Cuda {
    pub(in crate::cuda) fn assemble(
        driver: Arc<dyn Driver>,
        mode: Mode,
        member: Option<Member>,
        rooms: Rooms,
    ) -> Self {
        Self {
            graphs: Graphs::default(),
            scratch: Scratch::default(),
            rooms,
            driver,
            mode,
            profiler: Profiler::default(),
            smem_guard: SmemOccupancyGuard::default(),
            member,
        }
    }

    /// What a room keeps for this GPU.
    ///
    /// # Panics
    /// If the room did not add a `T` when the GPU was opened.
    pub(in crate::cuda) fn room<T: Any>(&self) -> &T {
        let room = self.rooms.0.get(&TypeId::of::<T>()).and_then(|room| room.downcast_ref());
        room.unwrap_or_else(|| panic!("no room added {}", std::any::type_name::<T>()))
    }

    /// Errors: `Device` after another GPU that shares the model has failed.
    pub(in crate::cuda) fn check_ranks(&self) -> Result<()> {
        self.member.as_ref().map_or(Ok(()), Member::check)
    }

    /// Runs `f`, or replays what it launched when it was recorded under this key.
    pub(in crate::cuda) fn captured_dyn<E: From<Error>>(
        &self,
        key: GraphKey,
        f: &mut dyn FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.check_ranks()?;
        self.graphs.run(&*self.driver, key, f)
    }

    /// Drops what was recorded under an owner's keys.
    pub(in crate::cuda) fn forget_graphs(&self, owner: u64) {
        self.graphs.forget(&*self.driver, owner);
    }

    /// Enqueues a kernel with its arguments.
    ///
    /// # Safety
    /// - Every pointer in `args` is null where the kernel allows that, or addresses device memory of the size that the kernel's
    ///   declaration of the argument states for these sizes.
    /// - That memory stays allocated until the kernel has run, and no kernel of another stream writes to it meanwhile.
    pub(in crate::cuda) unsafe fn launch<A: Copy>(
        &self,
        kernel: Kernel<A>,
        blocks: [usize; 3],
        threads: u32,
        args: &A,
    ) -> Result<()> {
        // SAFETY: the conditions are the same.
        unsafe { self.launch_shared(kernel, blocks, threads, 0, args) }
    }

    /// As [`Cuda::launch`], with dynamic shared memory.
    ///
    /// # Safety
    /// As [`Cuda::launch`]; `shared_bytes` is at least what the kernel uses for these arguments.
    pub(in crate::cuda) unsafe fn launch_shared<A: Copy>(
        &self,
        kernel: Kernel<A>,
        blocks: [usize; 3],
        threads: u32,
        shared_bytes: usize,
        args: &A,
    ) -> Result<()> {
        let blocks = grid_blocks(blocks);
        let grid = Grid { blocks, threads, shared_bytes: shared_bytes as u32, cluster: 1 };
        // SAFETY: the conditions are the same.
        unsafe { self.launch_grid(kernel, grid, args) }
    }

    /// As [`Cuda::launch_shared`], with all of a grid given.
    ///
    /// # Safety
    /// As [`Cuda::launch_shared`]; a kernel for clusters gets the cluster size that it expects.
    pub(in crate::cuda) unsafe fn launch_grid<A: Copy>(
        &self,
        kernel: Kernel<A>,
        grid: Grid,
        args: &A,
    ) -> Result<()> {
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        self.smem_guard.forget();
        // SAFETY: `Kernel<A>` says that the kernel takes an `A`; the rest is this function's own condition.
        unsafe { self.driver.launch(kernel.function, grid, std::ptr::from_ref(args).cast()) }
    }
}

impl Tensor<Cuda> {
    /// Where the elements of an `F32` tensor begin.
    pub(in crate::cuda) fn ptr(&self) -> DevicePtr {
        assert_eq!(self.dtype(), DType::F32);
        self.buffer().ptr()
    }
}

/// # Panics
/// If the grid is larger than CUDA allows; the callers bound their shapes.
pub(in crate::cuda) fn grid_blocks(blocks: [usize; 3]) -> [u32; 3] {
    let blocks = blocks.map(|n| u32::try_from(n).expect("a grid's blocks fit 32 bits"));
    assert!(blocks[1] < 1 << 16 && blocks[2] < 1 << 16, "a grid of {blocks:?}");
    blocks
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.graphs.clear(&*self.driver);
    }
}
