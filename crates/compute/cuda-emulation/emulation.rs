//! A CUDA driver that runs the kernels' own sources on the CPU: tests, which include this file, compile them with a C++ compiler and
//! open the result.
//!
//! The launchers, their grids and arguments, and the kernels are those of the GPU. Memory ends where unmapped pages begin, so that
//! an access past its end stops the test, and holds NaN until it is written. A GPU before Hopper is emulated or Hopper, for which the
//! kernels are compiled once more.

#[path = "../tests/support/test_data.rs"]
mod test_data;

use libloading::Library;
use realizar_compute::cuda::driver::{
    BoxMap, Boxes, DevicePtr, Driver, Function, Graph, Grid, Image, Link, PinnedReadback,
};
use realizar_compute::{DeviceMemory, Result};
use std::ffi::{CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;

/// Which GPU is emulated.
#[derive(Clone, Copy, PartialEq)]
enum Arch {
    Sm80,
    Sm90,
}

/// The kernels, in as many copies of their library as threads can use: each runs one kernel at a time, whose state it holds. Memory of the
/// device is the host's, the same to all of them.
struct Copies(Vec<(Library, Mutex<()>)>);

impl Copies {
    fn open(kernels: &Path, count: usize) -> Self {
        // Opening a library again gives the same copy of it.
        let open = |i: usize| {
            let path = kernels.with_extension(format!("{i}.{}.so", unique()));
            std::fs::copy(kernels, &path).unwrap();
            // SAFETY: the library is one that was compiled here; its initializers fill a list.
            let library =
                unsafe { Library::new(&path) }.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            std::fs::remove_file(&path).unwrap();
            (library, Mutex::default())
        };
        Self((0..count).map(open).collect())
    }

    /// A copy that runs no kernel, or else one to wait for.
    fn claim(&self) -> (usize, MutexGuard<'_, ()>) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let idle = self.0.iter().enumerate().find_map(|(i, copy)| Some((i, copy.1.try_lock().ok()?)));
        idle.unwrap_or_else(|| {
            let i = NEXT.fetch_add(1, Ordering::Relaxed) % self.0.len();
            (i, lock(&self.0[i].1))
        })
    }

    fn call<F: Copy>(&self, copy: usize, name: &str) -> F {
        // SAFETY: the callers name functions of emulation.cpp with their types.
        *unsafe { self.0[copy].0.get::<F>(name) }.unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

/// What a device does in the order of its queue.
enum Operation {
    Launch { function: usize, grid: Grid, args: Vec<ArgsLine> },
    Zero { ptr: DevicePtr, bytes: usize },
    Copy { dst: DevicePtr, src: DevicePtr, bytes: usize },
}

/// Bytes of a kernel's arguments, aligned as the most demanding of them.
#[derive(Clone, Copy)]
#[repr(align(128))]
struct ArgsLine(#[expect(dead_code, reason = "kernels read it")] [u8; 128]);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The emulated device.
pub(crate) struct Emulation {
    arch: Arch,
    copies: Arc<Copies>,
    /// Where each function is in each copy.
    functions: Mutex<Vec<Vec<usize>>>,
    /// Memory for readbacks that nobody has finished.
    readbacks: Mutex<Vec<Option<Vec<u64>>>>,
    /// Held while a thread records.
    turn: Mutex<()>,
    /// The thread that records, and what it has recorded.
    recording: Mutex<Option<(ThreadId, Vec<Operation>)>>,
    /// What was recorded, until it is given back.
    graphs: Mutex<Vec<Arc<Vec<Operation>>>>,
    /// What the device claims to have.
    n_multiprocessors: u32,
}

impl Emulation {
    /// Compiles the kernels, or takes what an earlier test compiled from the same sources; `None`, said by [`test_data::missing`], without a compiler.
    pub(crate) fn build() -> Option<Arc<dyn Driver>> {
        Self::build_for(Arch::Sm80)
    }

    /// The same for Hopper, with its tensor cores and its copy engine.
    #[allow(dead_code)]
    pub(crate) fn build_hopper() -> Option<Arc<dyn Driver>> {
        Self::build_for(Arch::Sm90)
    }

    fn build_for(arch: Arch) -> Option<Arc<dyn Driver>> {
        if Command::new("g++").arg("--version").output().is_err() {
            test_data::missing("there is no g++ to compile the kernels for the CPU");
            return None;
        }
        static SM80: OnceLock<Arc<Copies>> = OnceLock::new();
        static SM90: OnceLock<Arc<Copies>> = OnceLock::new();
        let copies = match arch {
            Arch::Sm80 => &SM80,
            Arch::Sm90 => &SM90,
        };
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        let copies = copies.get_or_init(|| Arc::new(Copies::open(&compile(arch), n_threads)));
        Some(Arc::new(Self::of(copies.clone(), arch)))
    }

    fn of(copies: Arc<Copies>, arch: Arch) -> Self {
        Self {
            arch,
            copies,
            functions: Mutex::default(),
            readbacks: Mutex::default(),
            turn: Mutex::default(),
            recording: Mutex::default(),
            graphs: Mutex::default(),
            n_multiprocessors: 4,
        }
    }

    /// Does an operation now, or notes it if this thread records.
    ///
    /// # Safety
    /// The conditions of `Driver::launch`, `zero` or `copy`, now and whenever it is replayed.
    unsafe fn enqueue(&self, operation: Operation) {
        if let Some((thread, operations)) = &mut *lock(&self.recording)
            && *thread == std::thread::current().id()
        {
            return operations.push(operation);
        }
        // SAFETY: the conditions are this function's.
        unsafe { self.run(&operation) }
    }

    /// # Safety
    /// The conditions of `Driver::launch`, `zero` or `copy`.
    unsafe fn run(&self, operation: &Operation) {
        match operation {
            // SAFETY: device memory is the host's, and `ptr` addresses `bytes` bytes of it.
            &Operation::Zero { ptr, bytes } => unsafe { std::ptr::write_bytes(ptr.0 as *mut u8, 0, bytes) },
            // SAFETY: device memory is the host's, and both address `bytes` bytes that do not overlap.
            &Operation::Copy { dst, src, bytes } => unsafe {
                std::ptr::copy_nonoverlapping(src.0 as *const u8, dst.0 as *mut u8, bytes);
            },
            Operation::Launch { function, grid, args } => {
                let (copy, _running) = self.copies.claim();
                let launch: unsafe extern "C" fn(usize, Blocks, u32, usize, u32, u32, *const c_void) =
                    self.copies.call(copy, "emulation_launch");
                let kernel = lock(&self.functions)[*function][copy];
                let (shared, n_blocks) = (grid.shared_bytes as usize, self.n_multiprocessors);
                let (blocks, args) = (Blocks(grid.blocks), args.as_ptr().cast());
                // SAFETY: the kernel gets a copy of the struct that it takes and memory as it demands; its copy of the library runs no
                // other.
                unsafe { launch(kernel, blocks, grid.threads, shared, grid.cluster, n_blocks, args) };
            }
        }
    }

    /// A function of the emulation that is the same in all copies.
    fn call<F: Copy>(&self, name: &str) -> F {
        self.copies.call(0, name)
    }
}

/// Devices side by side, which write to each other's memory.
#[allow(dead_code, clippy::type_complexity)]
pub(crate) fn group(count: usize) -> Option<(Vec<Arc<dyn Driver>>, Arc<dyn Link>)> {
    Emulation::build()?;
    let kernels = compile(Arch::Sm80);
    let copy = |i: usize| {
        // Each holds the state of one device.
        let device = Emulation::of(Arc::new(Copies::open(&kernels, 1)), Arch::Sm80);
        // Not all of them share out their work alike.
        Arc::new(Emulation { n_multiprocessors: [4, 3, 5][i % 3], ..device }) as Arc<dyn Driver>
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
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
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
    std::fs::create_dir(&new).unwrap();
    let is_unit = |p: &&PathBuf| p.extension().is_some_and(|e| e == "cu" || e == "cpp");
    let units: Vec<_> = sources.iter().filter(is_unit).enumerate().collect();
    let object = |i: usize| new.join(format!("{i}.o"));
    let run = |command: &mut Command| {
        let status = command.current_dir(root).status().unwrap();
        assert!(status.success(), "the kernels do not compile for the CPU");
    };
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((i, unit)) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut gcc = Command::new("g++");
                    gcc.args(FLAGS).args(["-Wno-unknown-pragmas", define, "-Icuda-emulation", "-c", "-o"]);
                    run(gcc.arg(object(*i)).args(["-x", "c++"]).arg(unit));
                }
            });
        }
    });
    let library = new.join("kernels.so");
    run(Command::new("g++")
        .args(FLAGS)
        .arg("-shared")
        .arg("-o")
        .arg(&library)
        .args((0..units.len()).map(object)));
    std::fs::rename(&library, &path).unwrap();
    std::fs::remove_dir_all(new).unwrap();
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
        let c_name = CString::new(name).unwrap();
        let find_in = |copy| {
            let find: unsafe extern "C" fn(*const c_char) -> usize = self.copies.call(copy, "emulation_find");
            // SAFETY: the name ends with a zero.
            let kernel = unsafe { find(c_name.as_ptr()) };
            assert_ne!(kernel, 0, "there is no kernel {name}");
            kernel
        };
        let found = (0..self.copies.0.len()).map(find_in).collect();
        let mut functions = lock(&self.functions);
        functions.push(found);
        Ok(Function(functions.len() - 1))
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
        // SAFETY: the conditions are the same.
        unsafe { self.enqueue(Operation::Zero { ptr, bytes }) };
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
        let mut readbacks = lock(&self.readbacks);
        readbacks.push(Some(memory));
        Ok(PinnedReadback { index: readbacks.len() - 1, ptr })
    }

    fn record_readback(&self, _: &PinnedReadback) -> Result<()> {
        Ok(())
    }

    fn finish_readback(&self, readback: PinnedReadback, dst: &mut [u8]) -> Result<()> {
        let memory = lock(&self.readbacks)[readback.index].take();
        let memory = memory.expect("a readback is finished once");
        assert!(dst.len() <= 8 * memory.len());
        // SAFETY: checked; kernels wrote through the address that they were given, and none runs.
        unsafe { std::ptr::copy_nonoverlapping(memory.as_ptr().cast(), dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }

    unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: usize) -> Result<()> {
        // SAFETY: the conditions are the same.
        unsafe { self.enqueue(Operation::Copy { dst, src, bytes }) };
        Ok(())
    }

    unsafe fn launch(&self, f: Function, grid: Grid, args: *const c_void) -> Result<()> {
        let size_of_args: unsafe extern "C" fn(usize) -> usize = self.call("emulation_args_bytes");
        let kernel = lock(&self.functions)[f.0][0];
        // SAFETY: `kernel` is what `emulation_find` of the first copy returned.
        let size = unsafe { size_of_args(kernel) };
        let mut copy = vec![ArgsLine([0; 128]); size.div_ceil(128)];
        // SAFETY: `args` points to the struct that the kernel takes (`Driver::launch`), and the copy has as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(args.cast::<u8>(), copy.as_mut_ptr().cast(), size) };
        // SAFETY: the conditions are the same.
        unsafe { self.enqueue(Operation::Launch { function: f.0, grid, args: copy }) };
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn record(&self, f: &mut dyn FnMut()) -> Result<Option<Graph>> {
        // As on a GPU, one thread records at a time.
        let _turn = lock(&self.turn);
        *lock(&self.recording) = Some((std::thread::current().id(), Vec::new()));
        f();
        let (_, operations) = lock(&self.recording).take().expect("recording began above");
        let mut graphs = lock(&self.graphs);
        graphs.push(Arc::new(operations));
        Ok(Some(Graph(graphs.len() - 1)))
    }

    unsafe fn replay(&self, graph: &Graph) -> Result<()> {
        let operations = lock(&self.graphs)[graph.0].clone();
        // SAFETY: the conditions of each operation hold again (`Driver::replay`).
        operations.iter().for_each(|operation| unsafe { self.run(operation) });
        Ok(())
    }

    unsafe fn forget(&self, graph: Graph) {
        lock(&self.graphs)[graph.0] = Arc::default();
    }
}
