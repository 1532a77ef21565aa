//! Times of operations at the sizes of real models, by the cases that check them: the benchmark `ops`.
//!
//! ```text
//! cargo bench -p realizar-compute --bench ops -- cpu matmul experts
//! ```
//!
//! The CPU has all its threads. A time is the median of several samples, each of many operations
//! on weights that lie in several places, so that no cache holds them; a GPU replays them as one graph. Limits are those that the device
//! itself was seen to reach: reading memory on the CPU, and the instruction that products use from registers; of a GPU the bandwidth
//! that its driver states.
#![allow(dead_code, reason = "tests use `op` and `copies` only")]
#![allow(clippy::print_stdout)]

#[path = "../../benches/machine/mod.rs"]
mod machine;

use super::*;
use realizar_compute::cpu::bandwidth::ReadTest;
use realizar_compute::cpu::threads::{Pool, default_threads};
use realizar_compute::{Choosing, Error, GraphKey};
use std::cell::Cell;
use std::time::Instant;

/// Bytes of weights that a sample goes through, beyond any cache.
const PASS_BYTES: usize = 256 << 20;
/// Least operations of a sample, so that what comes before and after them does not count.
const SAMPLE: usize = 20;
/// Least seconds of all samples.
const SECONDS: f64 = 0.2;

thread_local! {
    /// Whether operations are timed.
    static TIMING: Cell<bool> = const { Cell::new(false) };
    /// Seconds of the last operation.
    static TIME: Cell<f64> = const { Cell::new(0.0) };
}

/// The benchmark: arguments are `cpu` or `gpu`, and names of tables; without names all of them.
pub(crate) fn main() {
    type Table = (&'static str, fn(On));
    let tables: [Table; 6] = [
        ("matmul", matrices::times::matmul),
        ("experts", matrices::times::experts),
        ("heads", heads::times::heads),
        ("attention", attention::times::attention),
        ("delta_rule", recurrent::times::delta_rule),
        ("ssm_scan", ssm_scan::times::ssm_scan),
    ];
    let names = tables.map(|(name, _)| name);
    let mut on = On::Cpu;
    let mut wanted = Vec::new();
    // Cargo adds options of its own.
    for argument in std::env::args().skip(1).filter(|argument| !argument.starts_with("--")) {
        match argument.as_str() {
            "cpu" => on = On::Cpu,
            "gpu" => on = On::Gpu,
            name if names.contains(&name) => wanted.push(argument),
            other => panic!("{other} is none of cpu, gpu, {}", names.join(", ")),
        }
    }
    TIMING.set(true);
    for (name, table) in tables {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            table(on);
        }
    }
}

/// Runs the operation that a case is about: once in a test, again and again in the benchmark, with how often it ran before.
pub(super) fn op<B: Backend>(
    b: &B,
    n_copies: usize,
    mut f: impl FnMut(usize) -> realizar_compute::Result<()>,
) {
    if !TIMING.get() {
        return f(0).unwrap();
    }
    let n = if b.is_asynchronous() { n_copies.max(SAMPLE) } else { n_copies };
    let key = GraphKey {
        owner: GraphKey::new_owner(),
        n_tokens: 0,
        n_logits: 0,
        choosing: Choosing::Nothing,
        shape: 0,
    };
    let mut sample = || {
        let start = Instant::now();
        b.captured::<Error>(key, || (0..n).try_for_each(&mut f)).unwrap();
        b.synchronize().unwrap();
        start.elapsed().as_secs_f64() / n as f64
    };
    // The first runs as it is, the second is recorded.
    (0..2).for_each(|_| _ = sample());
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || start.elapsed().as_secs_f64() < SECONDS {
        times.push(sample());
    }
    b.forget(key.owner);
    times.sort_by(f64::total_cmp);
    TIME.set(times[times.len() / 2]);
}

/// In how many places weights of so many bytes lie.
pub(super) fn copies(bytes: usize) -> usize {
    if TIMING.get() { PASS_BYTES.div_ceil(bytes) } else { 1 }
}

/// What an operation has to do at least.
pub(super) struct Work {
    /// Bytes that are read from memory or written to it.
    pub(super) bytes: f64,
    /// Multiplications and additions.
    pub(super) operations: f64,
}

/// What a device can do at most.
struct Limits {
    bytes_per_second: f64,
    /// With weights of a type, where it is known.
    operations_per_second: Box<dyn Fn(DType) -> Option<f64>>,
}

/// `(name, type of the weights, case, its work)`
type Timed<C> = (String, DType, C, Work);

/// A table's device.
#[derive(Clone, Copy)]
pub(super) enum On {
    Cpu,
    Gpu,
}

/// Times cases on a device.
pub(super) fn table<C: Case>(on: On, title: &str, cases: Vec<Timed<C>>) {
    match on {
        On::Cpu => on_cpu(title, cases),
        On::Gpu => on_gpu(title, cases),
    }
}

fn on_cpu<C: Case>(title: &str, cases: Vec<Timed<C>>) {
    let cpu = Cpu::new(CpuOptions::default());
    let isa = cpu.options().isa;
    let pool = Pool::new(default_threads());
    let test = ReadTest::new(&pool).unwrap();
    let bytes_per_second = (0..41).map(|_| test.bytes_per_second(&pool)).fold(0.0, f64::max);
    drop(test);
    let operations_per_second: Box<dyn Fn(DType) -> Option<f64>> =
        Box::new(move |dtype| Some(machine::peak_gop_s(&pool, dtype, isa)? * 1e9));
    rows(title, &cpu, &Limits { bytes_per_second, operations_per_second }, cases);
}

#[cfg(feature = "cuda")]
fn on_gpu<C: Case>(title: &str, cases: Vec<Timed<C>>) {
    let gpu = Cuda::new(CudaOptions { device: 0, mode: Mode::Fast }).unwrap();
    let bytes_per_second = gpu.memory_bandwidth().map_or(f64::NAN, |b| b as f64);
    let limits = Limits { bytes_per_second, operations_per_second: Box::new(|_| None) };
    rows(title, &gpu, &limits, cases);
}

#[cfg(not(feature = "cuda"))]
fn on_gpu<C: Case>(_: &str, _: Vec<Timed<C>>) {
    panic!("built without GPUs");
}

fn rows<C: Case, B: Backend>(title: &str, b: &B, limits: &Limits, cases: Vec<Timed<C>>) {
    println!("\n{title}, {}; memory {:.0} GB/s\n", b.describe(), limits.bytes_per_second / 1e9);
    println!("| what | µs | GB/s | of memory | GOP/s | of the instruction |\n|---|---|---|---|---|---|");
    for (name, dtype, case, work) in cases {
        case.run(b);
        let seconds = TIME.get();
        let (bytes, operations) = (work.bytes / seconds, work.operations / seconds);
        let peak = (limits.operations_per_second)(dtype);
        println!(
            "| {name} | {:.1} | {:.1} | {:.0} % | {:.0} | {} |",
            seconds * 1e6,
            bytes / 1e9,
            100.0 * bytes / limits.bytes_per_second,
            operations / 1e9,
            peak.map_or("–".into(), |peak| format!("{:.0} %", 100.0 * operations / peak)),
        );
    }
}
