//! What the backend needs of CUDA, so that the same launchers drive a GPU and the tests' emulation of one.

use crate::{DeviceMemory, Result};
use std::ffi::c_void;

/// Address in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// No memory; kernels take it for an operand that is left out.
    pub const NULL: Self = Self(0);

    /// The address `bytes` further on.
    pub fn offset(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// A kernel.
#[derive(Clone, Copy, Debug)]
pub struct Function(pub usize);

/// A recorded sequence of launches.
#[derive(Debug)]
pub struct Graph(pub usize);

/// Page-locked host memory that kernels write to and the host reads once.
#[derive(Debug, PartialEq, Eq)]
pub struct PinnedReadback {
    /// Its number with the driver.
    pub index: usize,
    /// Where kernels write.
    pub ptr: DevicePtr,
}

/// Compiled kernels: the file `name`.cu.
#[derive(Debug)]
pub struct Image {
    /// Name of the source without its ending.
    pub name: &'static str,
    /// Machine code and PTX.
    pub bytes: &'static [u8],
}

/// Threads of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Blocks in each dimension.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Neighbouring blocks, in the first dimension, that run together and see each other's shared memory; 1: none.
    pub cluster: u32,
}

/// What a GPU's copy engine must know of rows of bytes to bring boxes of them to shared memory; kernels take it by value.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct BoxMap(pub [u64; 16]);

/// Rows of bytes, and the boxes that are brought of them.
#[derive(Clone, Copy, Debug)]
pub struct Boxes {
    /// The first row, at a multiple of 16 bytes.
    pub rows: DevicePtr,
    /// Rows there are.
    pub n_rows: usize,
    /// Bytes of a row, a multiple of 16.
    pub row_bytes: usize,
    /// Rows of a box.
    pub box_rows: usize,
    /// Whether a box has, of 256 rows, 8 of each 32, from the same one of these on, instead of rows in a row; `box_rows` is 64 and
    /// `n_rows` some times that.
    pub spread: bool,
    /// Bytes of a row of a box, a multiple of 16.
    pub box_bytes: usize,
    /// Whether rows of a box have 128 bytes, of which each 16 go to their number xor the row's, modulo 8.
    pub swizzled: bool,
}

/// A dimension of a tensor map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapDimension {
    /// Its elements, which are bytes in the first dimension.
    pub len: usize,
    /// Bytes from one to the next.
    pub stride: usize,
    /// Elements of a box.
    pub box_len: usize,
}

impl Boxes {
    /// The dimensions of the tensor map that describes these boxes, innermost first.
    pub fn dimensions(&self) -> Vec<MapDimension> {
        let of = |len, stride, box_len| MapDimension { len, stride, box_len };
        let (row, bytes) = (self.row_bytes, of(self.row_bytes, 1, self.box_bytes));
        match self.spread {
            false => vec![bytes, of(self.n_rows, row, self.box_rows)],
            true => vec![
                bytes,
                of(8, row, 8),
                of(4, 8 * row, 1),
                of(2, 32 * row, 2),
                of(self.n_rows / 64, 64 * row, 4),
            ],
        }
    }
}

/// A device with one queue of work, in whose order everything here takes effect.
///
/// Errors: [`Error::Device`](crate::Error::Device) with what the device says; it may report the failure of work enqueued earlier.
pub trait Driver: Send + Sync {
    /// Name of the device and its capabilities, for people.
    fn describe(&self) -> String;

    /// Multiprocessors of the device.
    fn n_multiprocessors(&self) -> u32;

    /// Shared memory that a block can have, in bytes.
    fn max_shared_bytes(&self) -> usize;

    /// Whether it runs machine code for Hopper, whose tensor cores have instructions of their own.
    fn is_hopper(&self) -> bool {
        false
    }

    /// Whether this is the device's first queue in the process. Blocks of one kernel may wait for each other only there: of two queues that
    /// do so, each might hold the multiprocessors that the other's remaining blocks want.
    fn is_first(&self) -> bool {
        true
    }

    /// Describes boxes to the copy engine of a GPU that runs machine code for Hopper.
    fn box_map(&self, boxes: Boxes) -> Result<BoxMap> {
        unreachable!("{boxes:?} on a device that is not for Hopper's code")
    }

    /// Bytes per second that memory delivers by its clock and width, where the device tells them.
    fn memory_bandwidth(&self) -> Option<u64> {
        None
    }

    /// Memory now.
    fn memory(&self) -> DeviceMemory;

    /// The kernel `name` of an image, which may be launched with up to `shared_bytes` of dynamic shared memory (48 KiB at least). A
    /// device may load it when it is first launched, and fail only then.
    fn function(&self, image: &'static Image, name: &str, shared_bytes: u32) -> Result<Function>;

    /// New memory with unspecified contents, aligned to 16 bytes at least.
    ///
    /// Errors: [`Error::OutOfMemory`](crate::Error::OutOfMemory), saying `what` the memory was for.
    fn allocate(&self, bytes: usize, what: &str) -> Result<DevicePtr>;

    /// Gives memory back.
    ///
    /// # Safety
    /// - `ptr` is from [`Driver::allocate`] of this device and was not freed before.
    /// - No work that is enqueued later uses it.
    unsafe fn free(&self, ptr: DevicePtr);

    /// Fills memory with zeros.
    ///
    /// # Safety
    /// `ptr` points to `bytes` bytes.
    unsafe fn zero(&self, ptr: DevicePtr, bytes: usize) -> Result<()>;

    /// Copies to the device. `src` may change when this returns.
    ///
    /// # Safety
    /// `dst` points to `src.len()` bytes.
    unsafe fn write(&self, dst: DevicePtr, src: &[u8]) -> Result<()>;

    /// Waits for everything enqueued and copies from the device.
    ///
    /// # Safety
    /// `src` points to `dst.len()` bytes.
    unsafe fn read(&self, dst: &mut [u8], src: DevicePtr) -> Result<()>;

    /// Claims `bytes` bytes of page-locked host memory, until [`Driver::finish_readback`]. Kernels write there directly: a copy from the
    /// device, in a queue of kernels, would make it wait for its copy engine, which takes longer than a small kernel.
    fn claim_readback(&self, bytes: usize) -> Result<PinnedReadback>;

    /// Records an event behind the kernels that write the readback.
    fn record_readback(&self, readback: &PinnedReadback) -> Result<()>;

    /// Waits for that event, copies the memory to `dst`, which is not longer than what was claimed, and releases it.
    fn finish_readback(&self, readback: PinnedReadback, dst: &mut [u8]) -> Result<()>;

    /// Copies within the device.
    ///
    /// # Safety
    /// - Both point to `bytes` bytes of this device's memory.
    /// - They do not overlap.
    unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: usize) -> Result<()>;

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// - `args` points to the struct that the kernel takes.
    /// - Each pointer in it is null where the kernel allows that, or addresses as much device memory as the kernel reads and writes.
    /// - That memory stays allocated until the kernel has run, and nobody else writes to it meanwhile.
    /// - `grid` has the threads, the shared memory and the cluster that the kernel is written for.
    unsafe fn launch(&self, f: Function, grid: Grid, args: *const c_void) -> Result<()>;

    /// Waits for everything enqueued.
    fn synchronize(&self) -> Result<()>;

    /// Records the launches that `f` makes instead of running them; `None` where the device cannot.
    fn record(&self, f: &mut dyn FnMut()) -> Result<Option<Graph>>;

    /// Enqueues what was recorded.
    ///
    /// # Safety
    /// - All memory that the recorded launches use is still allocated.
    /// - The conditions of [`Driver::launch`] hold for each of them again.
    unsafe fn replay(&self, graph: &Graph) -> Result<()>;

    /// Gives a graph back.
    ///
    /// # Safety
    /// `graph` is from [`Driver::record`] of this device, and nobody replays it again.
    unsafe fn forget(&self, graph: Graph);
}

/// What connects devices that share a model. Each is a rank, with a number from 0.
pub trait Link: Send + Sync {
    /// Whether kernels can write to the memory of all these devices.
    fn reaches(&self) -> bool;

    /// Whether [`Link::all_reduce`] can be called; without it, `reaches` is true.
    fn adds(&self) -> bool;

    /// Enqueues, on the rank's device: `x[n] = sum of every rank's x[n]`, floats, with the same bits everywhere. All ranks do this
    /// together, each on a thread of its own.
    ///
    /// # Safety
    /// - `x` points to `n` floats on the rank's device.
    /// - They stay allocated, and nobody else uses them, until this has run.
    unsafe fn all_reduce(&self, rank: usize, x: DevicePtr, n: usize) -> Result<()>;

    /// A word that all these devices can read: 0 until the link is cut.
    fn cut_word(&self) -> DevicePtr;

    /// Ends the waiting of devices for each other, now and later.
    fn cut(&self);

    /// Whether that was done.
    fn is_cut(&self) -> bool;
}
