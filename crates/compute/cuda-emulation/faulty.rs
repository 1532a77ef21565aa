//! A driver that fails when it is told to, for tests of what happens then; everything else it passes on.

use realizar_compute::cuda::driver::{
    BoxMap, Boxes, DevicePtr, Driver, Function, Graph, Grid, Image, PinnedReadback,
};
use realizar_compute::{DeviceMemory, Error, Result};
use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Allocate,
    Write,
    Launch,
    ClaimReadback,
    RecordReadback,
    FinishReadback,
    Synchronize,
}

/// The calls that a test lets fail.
pub(crate) const CALLS: [Call; 6] = [
    Call::Allocate,
    Call::Write,
    Call::Launch,
    Call::ClaimReadback,
    Call::RecordReadback,
    Call::FinishReadback,
];

#[derive(Default)]
struct State {
    /// Which call fails, after how many more of its kind.
    fault: Option<(Call, usize)>,
    /// Whether that is the end of the device.
    fatal: bool,
    lost: bool,
    n_faults: usize,
    n_allocations: usize,
    launches: Vec<Instant>,
    n_replays: usize,
    n_synchronizations: usize,
    live: HashSet<u64>,
    /// What was written, if somebody wants to know.
    writes: Option<Vec<Vec<u8>>>,
    memory: Option<DeviceMemory>,
}

/// Passes everything on to another driver, but for one fault.
pub(crate) struct Faulty {
    inner: Arc<dyn Driver>,
    state: Mutex<State>,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { inner, state: Mutex::default() })
    }

    /// Lets the call fail that comes after `n` others of its kind; from then on all fail if it is `fatal`.
    pub(crate) fn fail(&self, call: Call, n: usize, fatal: bool) {
        let mut state = self.state();
        (state.fault, state.fatal) = (Some((call, n)), fatal);
    }

    /// Lets nothing more fail, and brings back a lost device. Returns whether anything failed since the last time.
    pub(crate) fn heal(&self) -> bool {
        let mut state = self.state();
        (state.fault, state.lost) = (None, false);
        std::mem::take(&mut state.n_faults) > 0
    }

    /// What the device claims to have.
    pub(crate) fn set_memory(&self, memory: DeviceMemory) {
        self.state().memory = Some(memory);
    }

    /// Calls `f`, and returns what it wrote to the device: the bytes of each call.
    pub(crate) fn writes_of<T>(&self, f: impl FnOnce() -> T) -> (T, Vec<Vec<u8>>) {
        self.state().writes = Some(Vec::new());
        let result = f();
        (result, self.state().writes.take().expect("only taken here"))
    }

    /// Allocations so far.
    pub(crate) fn n_allocations(&self) -> usize {
        self.state().n_allocations
    }

    /// Launches of single kernels, recorded ones included, and replays of recorded steps so far.
    pub(crate) fn n_launches_and_replays(&self) -> (usize, usize) {
        let state = self.state();
        (state.launches.len(), state.n_replays)
    }

    /// When single kernels were launched, recorded ones included.
    #[allow(dead_code)]
    pub(crate) fn launches(&self) -> Vec<Instant> {
        self.state().launches.clone()
    }

    /// How often somebody waited for all that the device does.
    #[allow(dead_code)]
    pub(crate) fn n_synchronizations(&self) -> usize {
        self.state().n_synchronizations
    }

    /// Allocations that were not given back.
    pub(crate) fn n_live(&self) -> usize {
        self.state().live.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, call: Call) -> Result<()> {
        let mut state = self.state();
        let due = match &mut state.fault {
            Some((which, n)) if *which == call => {
                let due = *n == 0;
                *n = n.saturating_sub(1);
                due
            }
            _ => false,
        };
        if due {
            state.fault = None;
            state.n_faults += 1;
            state.lost |= state.fatal;
        }
        if !due && !state.lost {
            return Ok(());
        }
        Err(match call {
            Call::Allocate if !state.lost => {
                Error::OutOfMemory { device: "a faulty GPU".into(), what: "a test".into(), requested: 1 }
            }
            _ => {
                let message =
                    format!("{call:?}: {}", if state.lost { "the device is lost" } else { "a fault" });
                Error::Device { device: "a faulty GPU".into(), message }
            }
        })
    }
}

impl Driver for Faulty {
    fn describe(&self) -> String {
        "a faulty GPU".into()
    }

    fn n_multiprocessors(&self) -> u32 {
        self.inner.n_multiprocessors()
    }

    fn max_shared_bytes(&self) -> usize {
        self.inner.max_shared_bytes()
    }

    fn is_first(&self) -> bool {
        self.inner.is_first()
    }

    fn is_hopper(&self) -> bool {
        self.inner.is_hopper()
    }

    fn box_map(&self, boxes: Boxes) -> Result<BoxMap> {
        self.inner.box_map(boxes)
    }

    fn memory(&self) -> DeviceMemory {
        self.state().memory.unwrap_or_else(|| self.inner.memory())
    }

    fn function(&self, image: &'static Image, name: &str, shared_bytes: u32) -> Result<Function> {
        self.inner.function(image, name, shared_bytes)
    }

    fn allocate(&self, bytes: usize, what: &str) -> Result<DevicePtr> {
        self.check(Call::Allocate)?;
        let ptr = self.inner.allocate(bytes, what)?;
        let mut state = self.state();
        state.n_allocations += 1;
        state.live.insert(ptr.0);
        Ok(ptr)
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        assert!(self.state().live.remove(&ptr.0), "memory is given back once");
        // SAFETY: the conditions of `Driver::free` are handed on with the same arguments.
        unsafe { self.inner.free(ptr) }
    }

    unsafe fn zero(&self, ptr: DevicePtr, bytes: usize) -> Result<()> {
        // SAFETY: the conditions of `Driver::zero` are handed on with the same arguments.
        unsafe { self.inner.zero(ptr, bytes) }
    }

    unsafe fn write(&self, dst: DevicePtr, src: &[u8]) -> Result<()> {
        self.check(Call::Write)?;
        if let Some(writes) = &mut self.state().writes {
            writes.push(src.to_vec());
        }
        // SAFETY: the conditions of `Driver::write` are handed on with the same arguments.
        unsafe { self.inner.write(dst, src) }
    }

    unsafe fn read(&self, dst: &mut [u8], src: DevicePtr) -> Result<()> {
        self.check(Call::Synchronize)?;
        // SAFETY: the conditions of `Driver::read` are handed on with the same arguments.
        unsafe { self.inner.read(dst, src) }
    }

    fn claim_readback(&self, bytes: usize) -> Result<PinnedReadback> {
        self.check(Call::ClaimReadback)?;
        self.inner.claim_readback(bytes)
    }

    fn record_readback(&self, readback: &PinnedReadback) -> Result<()> {
        self.check(Call::RecordReadback)?;
        self.inner.record_readback(readback)
    }

    fn finish_readback(&self, readback: PinnedReadback, dst: &mut [u8]) -> Result<()> {
        let failed = self.check(Call::FinishReadback);
        self.inner.finish_readback(readback, dst)?;
        failed
    }

    unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: usize) -> Result<()> {
        // SAFETY: the conditions of `Driver::copy` are handed on with the same arguments.
        unsafe { self.inner.copy(dst, src, bytes) }
    }

    unsafe fn launch(&self, f: Function, grid: Grid, args: *const c_void) -> Result<()> {
        self.check(Call::Launch)?;
        self.state().launches.push(Instant::now());
        // SAFETY: the conditions of `Driver::launch` are handed on with the same arguments.
        unsafe { self.inner.launch(f, grid, args) }
    }

    fn synchronize(&self) -> Result<()> {
        self.check(Call::Synchronize)?;
        self.state().n_synchronizations += 1;
        self.inner.synchronize()
    }

    fn record(&self, f: &mut dyn FnMut()) -> Result<Option<Graph>> {
        self.inner.record(f)
    }

    unsafe fn replay(&self, graph: &Graph) -> Result<()> {
        self.check(Call::Launch)?;
        self.state().n_replays += 1;
        // SAFETY: the conditions of `Driver::replay` are handed on with the same arguments.
        unsafe { self.inner.replay(graph) }
    }

    unsafe fn forget(&self, graph: Graph) {
        // SAFETY: the conditions of `Driver::forget` are handed on with the same arguments.
        unsafe { self.inner.forget(graph) }
    }
}
