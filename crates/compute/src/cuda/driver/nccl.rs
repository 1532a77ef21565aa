//! NVIDIA's library for sums over several GPUs, opened when it is wanted: the few functions of it that are used here.
//!
//! Types and numbers are those of `nccl.h`, which has kept them through all versions 2.

use super::api::DevicePtr;
use cudarc::driver::sys::CUstream;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Names of the library, the first that is found.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// 2.10: the first whose calls can be recorded in graphs in every mode that is used here.
const MIN_VERSION: c_int = 21_000;
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

type Comm = *mut c_void;

/// The library and a communicator for each of some GPUs of this process.
pub(super) struct Nccl {
    functions: Functions,
    /// `None` after they were ended.
    comms: Vec<Mutex<Option<Handle>>>,
}

struct Handle(Comm);

// SAFETY: a communicator may be used from any thread, by one at a time, which its mutex sees to.
unsafe impl Send for Handle {}

struct Functions {
    all_reduce:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> c_int,
    destroy: unsafe extern "C" fn(Comm) -> c_int,
    abort: unsafe extern "C" fn(Comm) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    last_error: Option<unsafe extern "C" fn(Comm) -> *const c_char>,
    /// Keeps the functions' code.
    _library: Library,
}

fn lock(comm: &Mutex<Option<Handle>>) -> MutexGuard<'_, Option<Handle>> {
    comm.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Functions {
    fn words(&self, call: &str, status: c_int) -> String {
        // SAFETY: both functions give texts that end with a zero and stay.
        let text = |p: *const c_char| unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned();
        // SAFETY: any number may be asked for, and no communicator is an allowed argument.
        let (meaning, last) = unsafe {
            (text((self.error_string)(status)), self.last_error.map(|f| text(f(std::ptr::null_mut()))))
        };
        match last.filter(|l| !l.is_empty()) {
            Some(last) => format!("{call}: {meaning}: {last}"),
            None => format!("{call}: {meaning}"),
        }
    }
}

impl Nccl {
    /// Opens the library and connects the GPUs of these numbers.
    ///
    /// Errors: in words, what is missing or what the library says.
    pub(super) fn open(devices: &[usize]) -> Result<Self, String> {
        let mut why = String::new();
        // SAFETY: NVIDIA's library has no demands on being loaded.
        let open = |name: &&str| unsafe { Library::new(*name) }.map_err(|e| why = e.to_string()).ok();
        let library = NAMES.iter().find_map(open).ok_or_else(|| {
            format!(
                "several GPUs need NVIDIA's NCCL, which could not be opened: {why}; install NCCL for CUDA 13 (libnccl2 of \
                 NVIDIA's package repository, or nvidia-nccl-cu13 of PyPI) and name its folder in LD_LIBRARY_PATH"
            )
        })?;
        fn find<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
            // SAFETY: the callers name functions of nccl.h with their types.
            let f = unsafe { library.get::<F>(name) };
            f.map(|f| *f).map_err(|e| format!("NCCL lacks {name}: {e}"))
        }
        let get_version: unsafe extern "C" fn(*mut c_int) -> c_int = find(&library, "ncclGetVersion")?;
        let init_all: unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> c_int =
            find(&library, "ncclCommInitAll")?;
        let functions = Functions {
            all_reduce: find(&library, "ncclAllReduce")?,
            destroy: find(&library, "ncclCommDestroy")?,
            abort: find(&library, "ncclCommAbort")?,
            error_string: find(&library, "ncclGetErrorString")?,
            last_error: find(&library, "ncclGetLastError").ok(),
            _library: library,
        };
        let check = |call, status| if status == 0 { Ok(()) } else { Err(functions.words(call, status)) };
        let mut version = 0;
        // SAFETY: writes the one number.
        check("ncclGetVersion", unsafe { get_version(&mut version) })?;
        if version < MIN_VERSION {
            return Err(format!("NCCL {} is too old: 2.10 is needed", version_text(version)));
        }
        let numbers: Vec<c_int> = devices.iter().map(|&d| d as c_int).collect();
        let mut comms = vec![std::ptr::null_mut(); numbers.len()];
        // SAFETY: both lists have as many entries as are said.
        let made = unsafe { init_all(comms.as_mut_ptr(), numbers.len() as c_int, numbers.as_ptr()) };
        check("ncclCommInitAll", made)?;
        tracing::info!(version = version_text(version), ?devices, "NCCL ready");
        Ok(Self { functions, comms: comms.into_iter().map(|c| Mutex::new(Some(Handle(c)))).collect() })
    }

    /// Enqueues `x[n] = sum of every rank's x[n]`.
    ///
    /// # Safety
    /// `x` points to `n` floats on the rank's GPU, to which `stream` belongs.
    pub(super) unsafe fn all_reduce(
        &self,
        rank: usize,
        x: DevicePtr,
        n: usize,
        stream: CUstream,
    ) -> Result<(), String> {
        let comm = lock(&self.comms[rank]);
        let Some(Handle(comm)) = &*comm else { return Err("NCCL was stopped".into()) };
        let x = x.0 as *mut c_void;
        // SAFETY: `x` addresses `n` floats of device memory until the sum has run; the communicator is alive while its mutex is held.
        let status = unsafe { (self.functions.all_reduce)(x, x, n, FLOAT32, SUM, *comm, stream) };
        if status == 0 { Ok(()) } else { Err(self.functions.words("ncclAllReduce", status)) }
    }

    /// Ends what is under way and allows nothing more.
    pub(super) fn abort(&self) {
        self.end(self.functions.abort);
    }

    fn end(&self, f: unsafe extern "C" fn(Comm) -> c_int) {
        for comm in &self.comms {
            if let Some(Handle(comm)) = lock(comm).take() {
                // SAFETY: the communicator is alive, and was taken out so that nobody uses it again.
                unsafe { f(comm) };
            }
        }
    }
}

/// As NCCL numbers its versions since 2.9: 2.28.3 is 22803.
fn version_text(version: c_int) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.end(self.functions.destroy);
    }
}
