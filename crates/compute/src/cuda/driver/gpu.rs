//! The GPU's driver, opened when the program runs: a machine without one needs nothing and loses nothing.

use super::api::{BoxMap, Boxes, DevicePtr, Driver, Function, Graph, Grid, Image, PinnedReadback};
use crate::{DeviceMemory, Error, Result};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

/// The interface that the driver must offer: CUDA 13.0, which came with driver 580.
const MIN_CUDA_VERSION: i32 = 13_000;
/// Ampere.
const MIN_CAPABILITY: (i32, i32) = (8, 0);
/// Bytes of a buffer through which data goes to the device and back.
const CHUNK: usize = 4 << 20;
/// Such buffers of a thread: while one is filled, another is on its way.
const CHUNKS_OF_THREAD: usize = 2;
/// Threads that fill buffers at most. One reads a mapped file at a tenth of the speed of the bus.
const MAX_FILLERS: usize = 12;

/// One NVIDIA GPU.
pub(super) struct Gpu {
    name: String,
    ordinal: usize,
    capability: (i32, i32),
    n_multiprocessors: u32,
    max_shared_bytes: usize,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    first: First,
    /// Held to enqueue, and while a graph is recorded: what other threads enqueue must not become a part of it.
    turn: Mutex<()>,
    /// The thread that records.
    recorder: Mutex<Option<ThreadId>>,
    modules: Mutex<HashMap<&'static str, sys::CUmodule>>,
    /// Each in its own place, since launches refer to them by address.
    kernels: Mutex<Vec<Arc<LazyKernel>>>,
    staging: Mutex<Staging>,
    readbacks: Mutex<Vec<ReadbackMemory>>,
}

/// Being the first of a GPU's queues: its number, for one of them at a time.
struct First(Option<usize>);

/// The GPUs that have one.
static FIRSTS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

impl First {
    fn claim(ordinal: usize) -> Self {
        let mut firsts = lock(&FIRSTS);
        let is_free = !firsts.contains(&ordinal);
        if is_free {
            firsts.push(ordinal);
        }
        Self(is_free.then_some(ordinal))
    }
}

impl Drop for First {
    fn drop(&mut self) {
        lock(&FIRSTS).retain(|&ordinal| Some(ordinal) != self.0);
    }
}

/// Page-locked memory, and the event after which kernels have written to it.
struct ReadbackMemory {
    memory: *mut u8,
    bytes: usize,
    event: sys::CUevent,
    taken: bool,
}

/// Page-locked buffers.
struct Staging {
    /// `CHUNKS_OF_THREAD` for each thread that fills them; made as they are wanted.
    chunks: Vec<Chunk>,
    /// The one that a single thread fills next.
    next: usize,
}

/// A page-locked buffer of [`CHUNK`] bytes and the event of its last copy.
#[derive(Clone, Copy)]
struct Chunk {
    memory: *mut u8,
    event: sys::CUevent,
}

// SAFETY: the memory is not bound to a thread, and only one thread at a time holds a chunk.
unsafe impl Send for Chunk {}

/// A kernel that is loaded when it is first launched: most models need a few of them.
struct LazyKernel {
    image: &'static Image,
    name: String,
    shared_bytes: u32,
    loaded: OnceLock<usize>,
}

// SAFETY: the driver's handles may be used from any thread, as long as the context is made current there, which every method does.
unsafe impl Send for Gpu {}
// SAFETY: driver calls on one context may come from several threads at once, and all state beside the handles is behind mutexes.
unsafe impl Sync for Gpu {}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why the GPU `ordinal` cannot be used, in one line.
fn unusable(ordinal: usize, message: impl Into<String>) -> Error {
    Error::Device { device: format!("CUDA device {ordinal}"), message: message.into() }
}

/// That there is no GPU `ordinal`, in one line.
fn absent(ordinal: usize, message: impl Into<String>) -> Error {
    Error::NoDevice { device: format!("CUDA device {ordinal}"), message: message.into() }
}

fn words(e: DriverError) -> String {
    let text = |s: std::result::Result<&std::ffi::CStr, _>| s.ok().map(|s| s.to_string_lossy().into_owned());
    let name = text(e.error_name()).unwrap_or_else(|| format!("error {}", e.0 as u32));
    match text(e.error_string()) {
        Some(meaning) => format!("{name}: {meaning}"),
        None => name,
    }
}

impl Gpu {
    /// Opens the driver and the GPU with this number.
    ///
    /// Errors: `Device` saying what is missing: the driver, a newer one, a GPU of this number, a newer GPU.
    pub(super) fn open(ordinal: usize) -> Result<Self> {
        let start = Instant::now();
        // SAFETY: loads the driver's library, whose initialization has no demands.
        if !unsafe { sys::is_culib_present() } {
            return Err(absent(ordinal, "there is no NVIDIA driver (libcuda was not found)"));
        }
        let fail = |what: &str, e: DriverError| unusable(ordinal, format!("{what}: {}", words(e)));
        let mut version = 0;
        // SAFETY: writes to the one integer.
        unsafe { sys::cuDriverGetVersion(&mut version) }
            .result()
            .map_err(|e| fail("no driver version", e))?;
        if version < MIN_CUDA_VERSION {
            return Err(unusable(
                ordinal,
                format!(
                    "the NVIDIA driver is too old: it offers CUDA {}.{}, and 13.0 (driver 580) is needed",
                    version / 1000,
                    version % 1000 / 10
                ),
            ));
        }
        result::init().map_err(|e| match e.0 {
            CUresult::CUDA_ERROR_NO_DEVICE => absent(ordinal, "the NVIDIA driver finds no GPU"),
            _ => fail("the NVIDIA driver does not start", e),
        })?;
        let count = result::device::get_count().map_err(|e| fail("cannot count GPUs", e))?;
        if ordinal >= count as usize {
            return Err(absent(ordinal, format!("there is no such GPU; {count} were found")));
        }
        let device = result::device::get(ordinal as i32).map_err(|e| fail("cannot open", e))?;
        let name = result::device::get_name(device).map_err(|e| fail("no name", e))?;
        // SAFETY: the device is one that the driver just gave.
        let attribute = |a| unsafe { result::device::get_attribute(device, a) };
        let capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        );
        let (Ok(major), Ok(minor)) = capability else {
            return Err(unusable(ordinal, format!("{name} does not tell its compute capability")));
        };
        if (major, minor) < MIN_CAPABILITY {
            return Err(unusable(
                ordinal,
                format!("{name} has compute capability {major}.{minor}, and 8.0 (Ampere) is needed"),
            ));
        }
        let n_multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(|e| fail("no multiprocessor count", e))? as u32;
        let max_shared_bytes = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
            .map_err(|e| fail("no size of shared memory", e))? as usize;
        // SAFETY: the device is valid; the context is released when this is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }
            .map_err(|e| fail("cannot make a context, possibly for lack of memory", e))?;
        let mut gpu = Self {
            name,
            ordinal,
            capability: (major, minor),
            n_multiprocessors,
            max_shared_bytes,
            device,
            context,
            stream: std::ptr::null_mut(),
            first: First::claim(ordinal),
            turn: Mutex::default(),
            recorder: Mutex::default(),
            modules: Mutex::default(),
            kernels: Mutex::default(),
            staging: Mutex::new(Staging { chunks: Vec::new(), next: 0 }),
            readbacks: Mutex::default(),
        };
        gpu.bind()?;
        gpu.stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(|e| fail("cannot make a stream", e))?;
        tracing::debug!(ms = start.elapsed().as_millis() as u64, "GPU opened");
        Ok(gpu)
    }

    /// Its stream, in whose order everything takes effect.
    pub(super) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Lets kernels of this GPU use the memory of another; `false` where they cannot.
    pub(super) fn reach(&self, other: &Self) -> Result<bool> {
        self.bind()?;
        let mut can = 0;
        // SAFETY: both devices are valid.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.device, other.device) };
        self.check("cuDeviceCanAccessPeer", asked.result())?;
        if can == 0 {
            return Ok(false);
        }
        // SAFETY: both contexts are valid, and this one is current.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) }.result() {
            Ok(()) | Err(DriverError(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)) => Ok(true),
            Err(e) => self.check("cuCtxEnablePeerAccess", Err(e)),
        }
    }

    /// Host memory of this many bytes that every GPU can read, until [`Gpu::free_host`].
    pub(super) fn host_memory(&self, bytes: usize) -> Result<*mut u8> {
        self.bind()?;
        // SAFETY: the caller writes the memory before it reads it.
        let memory = unsafe {
            result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP)
        };
        Ok(self.check("page-locking host memory", memory)?.cast())
    }

    /// Gives host memory back.
    ///
    /// # Safety
    /// `memory` is from [`Gpu::host_memory`] of this GPU, and nobody uses it any more.
    pub(super) unsafe fn free_host(&self, memory: *mut u8) {
        if self.bind().is_ok() {
            // SAFETY: the memory came from `host_memory` of this GPU and is freed once, since nobody uses it any more.
            let _ = unsafe { result::free_host(memory.cast()) };
        }
    }

    pub(super) fn label(&self) -> String {
        format!("CUDA device {} ({})", self.ordinal, self.name)
    }

    fn check<T>(&self, call: &str, result: std::result::Result<T, DriverError>) -> Result<T> {
        result.map_err(|e| Error::Device { device: self.label(), message: format!("{call}: {}", words(e)) })
    }

    /// Waits until no other thread records, and keeps others from recording.
    fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        match *lock(&self.recorder) == Some(thread::current().id()) {
            true => None,
            false => Some(lock(&self.turn)),
        }
    }

    /// Makes the context the calling thread's.
    pub(super) fn bind(&self) -> Result<()> {
        // SAFETY: the context lives as long as this.
        self.check("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.context) })
    }

    /// Makes page-locked buffers until there are `n`.
    fn make_chunks(&self, staging: &mut Staging, n: usize) -> Result<()> {
        while staging.chunks.len() < n {
            // SAFETY: the memory is freed when this is dropped; it is written before it is read.
            let memory = unsafe { result::malloc_host(CHUNK, 0) };
            let memory = self.check("page-locking host memory", memory)?.cast();
            let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
            staging.chunks.push(Chunk { memory, event: self.check("cuEventCreate", event)? });
        }
        Ok(())
    }

    /// The next buffer of a single thread, when its last copy is over.
    fn next_chunk(&self, staging: &mut Staging) -> Result<Chunk> {
        self.make_chunks(staging, CHUNKS_OF_THREAD)?;
        let chunk = staging.chunks[staging.next];
        staging.next = (staging.next + 1) % staging.chunks.len();
        self.wait(chunk)?;
        Ok(chunk)
    }

    fn wait(&self, chunk: Chunk) -> Result<()> {
        // SAFETY: the event is alive. One that was never recorded counts as over.
        self.check("cuEventSynchronize", unsafe { result::event::synchronize(chunk.event) })
    }

    /// Copies `src`, of up to `CHUNK` bytes, by way of a buffer that nothing uses.
    ///
    /// # Safety
    /// `dst` points to `src.len()` bytes.
    unsafe fn write_by(&self, chunk: Chunk, dst: DevicePtr, src: &[u8]) -> Result<()> {
        // SAFETY: the buffer has CHUNK bytes, and no copy reads it any more.
        let staged = unsafe { std::slice::from_raw_parts_mut(chunk.memory, src.len()) };
        staged.copy_from_slice(src);
        // SAFETY: `dst` has room for `src.len()` bytes (`Driver::write`), and `staged` is page-locked memory that is not reused before the event.
        unsafe {
            self.check("cuMemcpyHtoDAsync", result::memcpy_htod_async(dst.0, staged, self.stream))?;
            self.check("cuEventRecord", result::event::record(chunk.event, self.stream))
        }
    }

    /// Copies `src` with several threads, since what limits a copy is one thread that reads a mapped file.
    ///
    /// # Safety
    /// `dst` points to `src.len()` bytes.
    unsafe fn write_in_parallel(&self, staging: &mut Staging, dst: DevicePtr, src: &[u8]) -> Result<()> {
        let n_parts = src.len().div_ceil(CHUNK);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let n_threads = cores.min(MAX_FILLERS).min(n_parts);
        self.make_chunks(staging, n_threads * CHUNKS_OF_THREAD)?;
        let next = AtomicUsize::new(0);
        let fill = |chunks: [Chunk; CHUNKS_OF_THREAD]| {
            self.bind()?;
            for turn in 0.. {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= n_parts {
                    break;
                }
                let chunk = chunks[turn % CHUNKS_OF_THREAD];
                self.wait(chunk)?;
                let part = &src[i * CHUNK..][..CHUNK.min(src.len() - i * CHUNK)];
                // SAFETY: `dst` has room for all of `src`, of which this is the part at `i * CHUNK`; no other thread takes this buffer.
                unsafe { self.write_by(chunk, dst.offset(i * CHUNK), part)? };
            }
            Ok(())
        };
        thread::scope(|scope| {
            let fill = &fill;
            let threads: Vec<_> = (0..n_threads)
                .map(|t| {
                    let chunks = std::array::from_fn(|i| staging.chunks[t * CHUNKS_OF_THREAD + i]);
                    scope.spawn(move || fill(chunks))
                })
                .collect();
            threads.into_iter().try_for_each(|t| t.join().expect("copying does not panic"))
        })
    }

    /// The handle of a kernel, which is loaded now if it is not yet.
    fn load(&self, kernel: &LazyKernel) -> Result<sys::CUfunction> {
        if let Some(&f) = kernel.loaded.get() {
            return Ok(f as sys::CUfunction);
        }
        let (image, name) = (kernel.image, &kernel.name);
        let mut modules = lock(&self.modules);
        let module = match modules.get(image.name) {
            Some(&module) => module,
            None => {
                let start = Instant::now();
                // The driver reads words, and embedded bytes lie anywhere.
                let mut aligned = vec![0u64; image.bytes.len().div_ceil(8)];
                bytemuck::cast_slice_mut(&mut aligned)[..image.bytes.len()].copy_from_slice(image.bytes);
                // SAFETY: the image is a whole fatbin, which says its own length; the driver copies it.
                let module = unsafe { result::module::load_data(aligned.as_ptr().cast()) };
                let module = self.check(&format!("loading the kernels of {}", image.name), module)?;
                modules.insert(image.name, module);
                tracing::debug!(
                    module = image.name,
                    us = start.elapsed().as_micros() as u64,
                    "kernels loaded"
                );
                module
            }
        };
        let c_name = CString::new(name.as_str()).expect("kernel names have no zeros");
        // SAFETY: the module is loaded and stays so as long as this.
        let f = unsafe { result::module::get_function(module, c_name) };
        let f = self.check(&format!("finding the kernel {name}"), f)?;
        // A multiprocessor must be idle to divide its memory anew between cache and shared memory. With one division for all kernels,
        // the next can start while one ends.
        let mut attributes =
            vec![(sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100)];
        if kernel.shared_bytes > 48 << 10 {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            attributes.push((most, kernel.shared_bytes as i32));
        }
        for (attribute, value) in attributes {
            // SAFETY: the function was just found.
            let set = unsafe { result::function::set_function_attribute(f, attribute, value) };
            self.check(&format!("shared memory for the kernel {name}"), set)?;
        }
        // Another thread may have been as quick; the driver gives both the same handle.
        Ok(*kernel.loaded.get_or_init(|| f as usize) as sys::CUfunction)
    }
}

impl Driver for Gpu {
    fn describe(&self) -> String {
        let gib = self.memory().total as f64 / (1u64 << 30) as f64;
        let (major, minor) = self.capability;
        format!("{}, compute capability {major}.{minor}, {gib:.0} GiB", self.name)
    }

    fn n_multiprocessors(&self) -> u32 {
        self.n_multiprocessors
    }

    fn max_shared_bytes(&self) -> usize {
        self.max_shared_bytes
    }

    fn is_first(&self) -> bool {
        self.first.0.is_some()
    }

    fn is_hopper(&self) -> bool {
        self.capability == (9, 0)
    }

    fn box_map(&self, boxes: Boxes) -> Result<BoxMap> {
        self.bind()?;
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let dimensions = boxes.dimensions();
        let lens = dimensions.iter().map(|d| d.len as u64).collect::<Vec<_>>();
        let strides = dimensions[1..].iter().map(|d| d.stride as u64).collect::<Vec<_>>();
        let box_lens = dimensions.iter().map(|d| d.box_len as u32).collect::<Vec<_>>();
        let steps = vec![1; dimensions.len()];
        // SAFETY: reads the arrays, one number per dimension (strides: but the first), and writes the map.
        let encoded = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
                dimensions.len() as u32,
                boxes.rows.0 as *mut c_void,
                lens.as_ptr(),
                strides.as_ptr(),
                box_lens.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                match boxes.swizzled {
                    true => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                    false => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
                },
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        self.check("cuTensorMapEncodeTiled", encoded.result())?;
        Ok(BoxMap(map.opaque))
    }

    fn memory_bandwidth(&self) -> Option<u64> {
        // SAFETY: the device is one that the driver gave.
        let attribute = |a| unsafe { result::device::get_attribute(self.device, a) }.ok();
        let khz = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?;
        let bits = attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?;
        // Two transfers in a cycle; a device that does not tell says 0.
        let bytes = khz as u64 * 1000 * 2 * bits as u64 / 8;
        (bytes > 0).then_some(bytes)
    }

    fn memory(&self) -> DeviceMemory {
        match self.bind().map(|()| result::mem_get_info()) {
            Ok(Ok((free, total))) => DeviceMemory { free, total },
            _ => DeviceMemory { free: 0, total: 0 },
        }
    }

    fn function(&self, image: &'static Image, name: &str, shared_bytes: u32) -> Result<Function> {
        let kernel = LazyKernel { image, name: name.to_owned(), shared_bytes, loaded: OnceLock::new() };
        let kernel = Arc::new(kernel);
        let address = std::ptr::from_ref(&*kernel).expose_provenance();
        lock(&self.kernels).push(kernel);
        Ok(Function(address))
    }

    fn allocate(&self, bytes: usize, what: &str) -> Result<DevicePtr> {
        self.bind()?;
        // SAFETY: the caller gets memory that it must write before it reads it.
        match unsafe { result::malloc_sync(bytes.max(1)) } {
            Ok(ptr) => Ok(DevicePtr(ptr)),
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let DeviceMemory { free, total } = self.memory();
                Err(Error::OutOfMemory {
                    device: format!("{} ({free} of {total} bytes free)", self.label()),
                    what: what.into(),
                    requested: bytes,
                })
            }
            Err(e) => self.check("cuMemAlloc", Err(e)),
        }
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        if self.bind().is_ok() {
            // SAFETY: `ptr` came from `allocate` and no later work uses it (`Driver::free`); the call waits for earlier work. A device that has
            // failed may refuse; its memory goes with its context.
            let _ = unsafe { result::free_sync(ptr.0) };
        }
    }

    unsafe fn zero(&self, ptr: DevicePtr, bytes: usize) -> Result<()> {
        self.bind()?;
        let _turn = self.turn();
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: `ptr` addresses `bytes` bytes of device memory (`Driver::zero`).
        self.check("cuMemsetD8Async", unsafe { result::memset_d8_async(ptr.0, 0, bytes, self.stream) })
    }

    unsafe fn write(&self, dst: DevicePtr, src: &[u8]) -> Result<()> {
        self.bind()?;
        let _turn = self.turn();
        let mut staging = lock(&self.staging);
        if src.len() > CHUNK {
            // SAFETY: `dst` has room for `src.len()` bytes (`Driver::write`), and nobody else stages while `staging` is locked.
            return unsafe { self.write_in_parallel(&mut staging, dst, src) };
        }
        if src.is_empty() {
            return Ok(());
        }
        let chunk = self.next_chunk(&mut staging)?;
        // SAFETY: `dst` has room for `src.len()` bytes (`Driver::write`), at most CHUNK, and `next_chunk` waited for the buffer's last copy.
        unsafe { self.write_by(chunk, dst, src) }
    }

    unsafe fn read(&self, dst: &mut [u8], src: DevicePtr) -> Result<()> {
        self.bind()?;
        let _turn = self.turn();
        let mut staging = lock(&self.staging);
        for (i, part) in dst.chunks_mut(CHUNK).enumerate() {
            let chunk = self.next_chunk(&mut staging)?;
            // SAFETY: the buffer has CHUNK bytes, and no copy uses it any more.
            let chunk = unsafe { std::slice::from_raw_parts_mut(chunk.memory, part.len()) };
            // SAFETY: `src` addresses `dst.len()` bytes of device memory (`Driver::read`), and `chunk` stays until the copy is waited for below.
            let copied = unsafe { result::memcpy_dtoh_async(chunk, src.offset(i * CHUNK).0, self.stream) };
            self.check("cuMemcpyDtoHAsync", copied)?;
            self.synchronize()?;
            part.copy_from_slice(chunk);
        }
        Ok(())
    }

    fn claim_readback(&self, bytes: usize) -> Result<PinnedReadback> {
        self.bind()?;
        let mut readbacks = lock(&self.readbacks);
        let index = match readbacks.iter().position(|a| !a.taken && a.bytes >= bytes) {
            Some(index) => index,
            None => {
                let bytes = bytes.next_power_of_two().max(4096);
                // SAFETY: the memory is freed when this is dropped; it is read after it was written.
                let memory = unsafe { result::malloc_host(bytes, 0) };
                let memory = self.check("page-locking host memory", memory)?.cast();
                let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
                let event = self.check("cuEventCreate", event)?;
                readbacks.push(ReadbackMemory { memory, bytes, event, taken: false });
                readbacks.len() - 1
            }
        };
        readbacks[index].taken = true;
        // Page-locked memory has the same address on the device.
        Ok(PinnedReadback { index, ptr: DevicePtr(readbacks[index].memory as u64) })
    }

    fn record_readback(&self, readback: &PinnedReadback) -> Result<()> {
        self.bind()?;
        let _turn = self.turn();
        let event = lock(&self.readbacks)[readback.index].event;
        // SAFETY: the event and the stream live as long as this.
        self.check("cuEventRecord", unsafe { result::event::record(event, self.stream) })
    }

    fn finish_readback(&self, readback: PinnedReadback, dst: &mut [u8]) -> Result<()> {
        self.bind()?;
        let (memory, event) = {
            let a = &lock(&self.readbacks)[readback.index];
            assert!(a.taken && dst.len() <= a.bytes, "{} bytes of {}", dst.len(), a.bytes);
            (a.memory, a.event)
        };
        // SAFETY: the event is alive.
        let waited = self.check("cuEventSynchronize", unsafe { result::event::synchronize(event) });
        if waited.is_ok() {
            // SAFETY: the device has written, and the memory has as many bytes.
            unsafe { std::ptr::copy_nonoverlapping(memory, dst.as_mut_ptr(), dst.len()) };
        }
        lock(&self.readbacks)[readback.index].taken = false;
        waited
    }

    unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: usize) -> Result<()> {
        self.bind()?;
        let _turn = self.turn();
        // SAFETY: both address `bytes` bytes of device memory that do not overlap (`Driver::copy`).
        let copied = unsafe { result::memcpy_dtod_async(dst.0, src.0, bytes, self.stream) };
        self.check("cuMemcpyDtoDAsync", copied)
    }

    unsafe fn launch(&self, f: Function, grid: Grid, args: *const c_void) -> Result<()> {
        self.bind()?;
        // SAFETY: functions are addresses of kernels, which live as long as this.
        let f = self.load(unsafe { &*std::ptr::with_exposed_provenance::<LazyKernel>(f.0) })?;
        let _turn = self.turn();
        let Grid { blocks: [x, y, z], threads, shared_bytes, cluster } = grid;
        let mut args = args.cast_mut();
        let attribute = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
        // Hopper's machine code waits for its inputs by itself, so a kernel may start while the one before it ends. Other GPUs run
        // the PTX of an older target, which cannot wait, and have no clusters.
        let mut attributes = [
            attribute(
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            ),
            attribute(
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                sys::CUlaunchAttributeValue {
                    clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: cluster, y: 1, z: 1 },
                },
            ),
        ];
        let n_attributes = match (self.is_hopper(), cluster) {
            (false, _) => 0,
            (true, 1) => 1,
            (true, _) => 2,
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared_bytes,
            hStream: self.stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: n_attributes,
        };
        // SAFETY: `args` points to the struct that the kernel takes (`Driver::launch`), which the call copies; `config` and what it points to
        // live until it returns.
        let launched = unsafe { sys::cuLaunchKernelEx(&config, f, &mut args, std::ptr::null_mut()) };
        self.check("cuLaunchKernelEx", launched.result())
    }

    fn synchronize(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: the stream lives as long as this.
        self.check("cuStreamSynchronize", unsafe { result::stream::synchronize(self.stream) })
    }

    fn record(&self, f: &mut dyn FnMut()) -> Result<Option<Graph>> {
        self.bind()?;
        let _turn = lock(&self.turn);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as this.
        let began = unsafe { result::stream::begin_capture(self.stream, mode) };
        self.check("cuStreamBeginCapture", began)?;
        *lock(&self.recorder) = Some(thread::current().id());
        f();
        *lock(&self.recorder) = None;
        // SAFETY: capturing began on this stream above, and launches by other threads waited.
        let graph = unsafe { result::stream::end_capture(self.stream) };
        let graph = self.check("cuStreamEndCapture", graph)?;
        // SAFETY: the graph is valid, and not needed once it is instantiated.
        let executable = unsafe {
            let mut executable = std::ptr::null_mut();
            let made = sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0).result();
            let _ = result::graph::destroy(graph);
            made.map(|()| executable)
        };
        Ok(Some(Graph(self.check("cuGraphInstantiate", executable)? as usize)))
    }

    unsafe fn replay(&self, graph: &Graph) -> Result<()> {
        self.bind()?;
        let _turn = self.turn();
        // SAFETY: the graph was instantiated; the rest by this function's contract.
        let launched = unsafe { result::graph::launch(graph.0 as sys::CUgraphExec, self.stream) };
        self.check("cuGraphLaunch", launched)
    }

    unsafe fn forget(&self, graph: Graph) {
        if self.bind().is_ok() {
            // SAFETY: the graph was instantiated; a failed device may refuse.
            let _ = unsafe { result::graph::exec_destroy(graph.0 as sys::CUgraphExec) };
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.bind().is_err() {
            return;
        }
        // A device that has failed refuses all of this, and the driver cleans up after the process.
        // SAFETY: these handles were made by `open` and are not used again.
        unsafe {
            if !self.stream.is_null() {
                let _ = result::stream::synchronize(self.stream);
                let _ = result::stream::destroy(self.stream);
            }
            for chunk in &lock(&self.staging).chunks {
                let _ = result::event::destroy(chunk.event);
                let _ = result::free_host(chunk.memory.cast());
            }
            for b in lock(&self.readbacks).iter() {
                let _ = result::event::destroy(b.event);
                let _ = result::free_host(b.memory.cast());
            }
            for &module in lock(&self.modules).values() {
                let _ = result::module::unload(module);
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
}
