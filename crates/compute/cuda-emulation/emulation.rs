//! A CUDA driver that runs the kernels' own sources on the CPU: tests, which include this file, compile them with a C++ compiler and
//! open the result.
//!
//! The launchers, their grids and arguments, and the kernels are those of the GPU. Memory ends where unmapped pages begin, so that
//! an access past its end stops the test, and holds NaN until it is written. A GPU before Hopper is emulated or Hopper, for which the
//! kernels are compiled once more.

use libloading::Library;
use realizar_compute::cuda::driver::{
    BoxMap, Boxes, DevicePtr, Driver, Function, Graph, Grid, Image, Link, PinnedReadback,
};
use realizar_compute::{DeviceMemory, Result};
use std::ffi::{CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Which GPU is emulated.
#[derive(Clone, Copy, PartialEq)]
enum Arch {
    Sm80,
    Sm90,
}

/// The emulated device.
pub(crate) struct Emulation {
    arch: Arch,
    library: Library,
    /// Kernels run one at a time in each copy of the library, whose state they share.
    running: Arc<Mutex<()>>,
    /// Memory for readbacks that nobody has finished.
    readbacks: Mutex<Vec<Option<Vec<u64>>>>,
    /// What the device claims to have.
    n_multiprocessors: u32,
}

impl Emulation {
    /// Compiles the kernels, or takes what an earlier test compiled from the same sources; `None`, said loudly, without a compiler.
    pub(crate) fn build() -> Option<Arc<dyn Driver>> {
        Self::build_for(Arch::Sm80)
    }

    /// The same for Hopper, with its tensor cores and its copy engine.
    #[allow(dead_code)]
    pub(crate) fn build_hopper() -> Option<Arc<dyn Driver>> {
        Self::build_for(Arch::Sm90)
    }

    #[allow(clippy::print_stderr)]
    fn build_for(arch: Arch) -> Option<Arc<dyn Driver>> {
        if Command::new("g++").arg("--version").output().is_err() {
            eprintln!("SKIPPED: kernels are not tested, since there is no g++ to compile them for the CPU");
            return None;
        }
        static SM80: OnceLock<Arc<Mutex<()>>> = OnceLock::new();
        static SM90: OnceLock<Arc<Mutex<()>>> = OnceLock::new();
        // Opening a library again gives the same copy of it.
        let running = match arch {
            Arch::Sm80 => &SM80,
            Arch::Sm90 => &SM90,
        };
        let running = running.get_or_init(Arc::default).clone();
        Some(Arc::new(Self { running, ..Self::open(&compile(arch), arch) }))
    }

    fn open(path: &Path, arch: Arch) -> Self {
        // SAFETY: the library is one that was compiled here; its initializers fill a list.
        let library = unsafe { Library::new(path) }.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self { arch, library, running: Arc::default(), readbacks: Mutex::default(), n_multiprocessors: 4 }
    }

    fn call<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the callers name functions of emulation.cpp with their types.
        *unsafe { self.library.get::<F>(name) }.unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

/// Devices side by side, which write to each other's memory: copies of the library, since each holds the state of one device.
#[allow(dead_code, clippy::type_complexity)]
pub(crate) fn group(count: usize) -> Option<(Vec<Arc<dyn Driver>>, Arc<dyn Link>)> {
    Emulation::build()?;
    let kernels = compile(Arch::Sm80);
    let copy = |i: usize| {
        let path = kernels.with_extension(format!("{i}.{}.so", unique()));
        std::fs::copy(&kernels, &path).unwrap();
        // Not all of them share out their work alike.
        let device = Emulation { n_multiprocessors: [4, 3, 5][i % 3], ..Emulation::open(&path, Arch::Sm80) };
        std::fs::remove_file(&path).unwrap();
        Arc::new(device) as Arc<dyn Driver>
    };
    Some(((0..count).map(copy).collect(), Arc::new(EmulatedLink(AtomicU32::new(0)))))
}

/// Nothing but the word that ends all waiting.
struct EmulatedLink(AtomicU32);

impl Link for EmulatedLink {
    fn reaches(&self) -> bool {
        true
    }

    fn adds(&self) -> bool {
        false
    }

    unsafe fn all_reduce(&self, _: usize, _: DevicePtr, _: usize) -> Result<()> {
        unreachable!("this link does not add")
    }

    fn cut_word(&self) -> DevicePtr {
        DevicePtr(self.0.as_ptr() as u64)
    }

    fn cut(&self) {
        self.0.store(1, Ordering::SeqCst);
    }

    fn is_cut(&self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }
}

/// The counts of blocks as C++ passes them.
#[derive(Clone, Copy)]
#[repr(C)]
struct Blocks([u32; 3]);

/// What no other file of this or another test has in its name.
fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Of the compiler. Copies of the library must not share the static storage that stands for shared memory: no unique symbols. Accesses at
/// misaligned addresses, which a GPU refuses, end the process.
const FLAGS: [&str; 9] = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-gnu-unique",
    "-fsanitize=alignment",
    "-fno-sanitize-recover=alignment",
];

/// Where the compiled kernels are, named by a hash of their sources and the compiler's flags.
fn compile(arch: Arch) -> PathBuf {
    let root = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../compute");
    let define = match arch {
        Arch::Sm80 => "-DREALIZAR_EMULATION=800",
        Arch::Sm90 => "-DREALIZAR_EMULATION=900",
    };
    let mut sources = Vec::new();
    for dir in ["cuda-emulation", "src/cuda", "src/quant"] {
        collect(&root.join(dir), &mut sources);
    }
    sources.sort();
    // FNV-1a.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |bytes: &[u8]| {
        for &byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    add(FLAGS.concat().as_bytes());
    add(define.as_bytes());
    sources.iter().for_each(|source| add(&std::fs::read(source).unwrap()));
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = dir.join(format!("kernels-{hash:016x}.so"));
    if path.exists() {
        return path;
    }
    // Another test may compile at the same time.
    let new = dir.join(format!("kernels-{hash:016x}.{}", unique()));
    let compiled = sources.iter().filter(|p| p.extension().is_some_and(|e| e == "cu" || e == "cpp"));
    let status = Command::new("g++")
        .args(FLAGS)
        .args(["-Wno-unknown-pragmas", define, "-Icuda-emulation", "-o"])
        .arg(&new)
        .args(["-x", "c++"])
        .args(compiled)
        .current_dir(root)
        .status()
        .unwrap();
    assert!(status.success(), "the kernels do not compile for the CPU");
    std::fs::rename(&new, &path).unwrap();
    path
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| ["cu", "cuh", "cpp", "hpp"].iter().any(|x| e == *x)) {
            files.push(path);
        }
    }
}

impl Driver for Emulation {
    fn describe(&self) -> String {
        match self.arch {
            Arch::Sm80 => "an emulated GPU".into(),
            Arch::Sm90 => "an emulated Hopper GPU".into(),
        }
    }

    fn n_multiprocessors(&self) -> u32 {
        self.n_multiprocessors
    }

    fn max_shared_bytes(&self) -> usize {
        match self.arch {
            Arch::Sm80 => 99 << 10,
            Arch::Sm90 => 227 << 10,
        }
    }

    fn is_hopper(&self) -> bool {
        self.arch == Arch::Sm90
    }

    /// The numbers of the map as hopper.cpp reads them. Checks what cuTensorMapEncodeTiled demands of them.
    fn box_map(&self, boxes: Boxes) -> Result<BoxMap> {
        let dimensions = boxes.dimensions();
        let mut words = [0; 16];
        let (base, rest) = words.split_at_mut(1);
        let (lens, rest) = rest.split_at_mut(5);
        let (strides, rest) = rest.split_at_mut(4);
        let (box_lens, flags) = rest.split_at_mut(5);
        assert!(boxes.rows.0.is_multiple_of(16), "{boxes:?}");
        base[0] = boxes.rows.0;
        for (i, d) in dimensions.iter().enumerate() {
            assert!((1..=1 << 32).contains(&d.len) && (1..=256).contains(&d.box_len), "{boxes:?}");
            (lens[i], box_lens[i]) = (d.len as u64, d.box_len as u64);
            if i > 0 {
                assert!(d.stride.is_multiple_of(16) && d.stride < 1 << 40, "{boxes:?}");
                strides[i - 1] = d.stride as u64;
            }
        }
        let line = dimensions[0].box_len;
        assert!(line.is_multiple_of(16) && (!boxes.swizzled || line <= 128), "{boxes:?}");
        flags[0] = (dimensions.len() as u64) << 8 | u64::from(boxes.swizzled);
        Ok(BoxMap(words))
    }

    fn memory(&self) -> DeviceMemory {
        DeviceMemory { free: usize::MAX, total: usize::MAX }
    }

    fn function(&self, _: &'static Image, name: &str, _: u32) -> Result<Function> {
        let find: unsafe extern "C" fn(*const c_char) -> usize = self.call("emulation_find");
        let c_name = CString::new(name).unwrap();
        // SAFETY: the name ends with a zero.
        let kernel = unsafe { find(c_name.as_ptr()) };
        assert_ne!(kernel, 0, "there is no kernel {name}");
        Ok(Function(kernel))
    }

    fn allocate(&self, bytes: usize, what: &str) -> Result<DevicePtr> {
        let allocate: unsafe extern "C" fn(usize) -> u64 = self.call("emulation_allocate");
        // SAFETY: maps new pages.
        let ptr = unsafe { allocate(bytes) };
        assert_ne!(ptr, 0, "no {bytes} bytes for {what}");
        Ok(DevicePtr(ptr))
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        let free: unsafe extern "C" fn(u64) = self.call("emulation_free");
        // SAFETY: `ptr` came from `emulation_allocate` and is freed once (`Driver::free`).
        unsafe { free(ptr.0) }
    }

    unsafe fn zero(&self, ptr: DevicePtr, bytes: usize) -> Result<()> {
        // SAFETY: device memory is the host's, and `ptr` addresses `bytes` bytes of it (`Driver::zero`).
        unsafe { std::ptr::write_bytes(ptr.0 as *mut u8, 0, bytes) };
        Ok(())
    }

    unsafe fn write(&self, dst: DevicePtr, src: &[u8]) -> Result<()> {
        // SAFETY: device memory is the host's, `dst` has room for `src` (`Driver::write`), and `src` is not in it.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), dst.0 as *mut u8, src.len()) };
        Ok(())
    }

    unsafe fn read(&self, dst: &mut [u8], src: DevicePtr) -> Result<()> {
        // SAFETY: device memory is the host's, `src` has as many bytes as `dst` (`Driver::read`), and `dst` is not in it.
        unsafe { std::ptr::copy_nonoverlapping(src.0 as *const u8, dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }

    fn claim_readback(&self, bytes: usize) -> Result<PinnedReadback> {
        let mut memory = vec![0u64; bytes.div_ceil(8)];
        let ptr = DevicePtr(memory.as_mut_ptr() as u64);
        let mut readbacks = self.readbacks.lock().unwrap_or_else(PoisonError::into_inner);
        readbacks.push(Some(memory));
        Ok(PinnedReadback { index: readbacks.len() - 1, ptr })
    }

    fn record_readback(&self, _: &PinnedReadback) -> Result<()> {
        Ok(())
    }

    fn finish_readback(&self, readback: PinnedReadback, dst: &mut [u8]) -> Result<()> {
        let memory = self.readbacks.lock().unwrap_or_else(PoisonError::into_inner)[readback.index].take();
        let memory = memory.expect("a readback is finished once");
        assert!(dst.len() <= 8 * memory.len());
        // SAFETY: checked; kernels wrote through the address that they were given, and none runs.
        unsafe { std::ptr::copy_nonoverlapping(memory.as_ptr().cast(), dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }

    unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: usize) -> Result<()> {
        // SAFETY: device memory is the host's, and both address `bytes` bytes that do not overlap (`Driver::copy`).
        unsafe { std::ptr::copy_nonoverlapping(src.0 as *const u8, dst.0 as *mut u8, bytes) };
        Ok(())
    }

    unsafe fn launch(&self, f: Function, grid: Grid, args: *const c_void) -> Result<()> {
        let launch: unsafe extern "C" fn(usize, Blocks, u32, usize, u32, u32, *const c_void) =
            self.call("emulation_launch");
        let (shared, blocks) = (grid.shared_bytes as usize, self.n_multiprocessors);
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the kernel gets the struct that it takes and memory as it demands (`Driver::launch`); one kernel runs at a time.
        unsafe { launch(f.0, Blocks(grid.blocks), grid.threads, shared, grid.cluster, blocks, args) };
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn record(&self, _: &mut dyn FnMut()) -> Result<Option<Graph>> {
        Ok(None)
    }

    unsafe fn replay(&self, _: &Graph) -> Result<()> {
        unreachable!("nothing was recorded")
    }

    unsafe fn forget(&self, _: Graph) {}
}
