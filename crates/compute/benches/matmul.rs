//! Speed of the matrix products: GB/s of weights for one row, GOP/s for many, beside the machine's read bandwidth.
//!
//! `cargo bench -p realizar-compute --bench matmul -- [TYPE…] [rows=M,…] [threads=N,…] [isa=NAME] [shape=OUTxIN,…] [cpu-time] [hot]
//! [model=Q4_K_M,Q8_0,…]`; with `model`, all products of a model of Llama-3.2-1B's shape: one token, and a prompt of 512.
//!
//! For many rows the share is that of the multiplying instruction from registers. Each figure is the median of several passes (in brackets the best one; bandwidth and barrier are the best). For one row the weights are several copies of the matrix, larger
//! together than the caches, as they are in a model.
#![allow(clippy::print_stdout, missing_docs)]

mod machine;

use bytes::Bytes;
use machine::peak_gop_s;
use realizar_compute::cpu::bandwidth::ReadTest;
use realizar_compute::cpu::isa::Isa;
use realizar_compute::cpu::matmul::{Activations, Group, Matrix, MatrixOptions, Operands, matmul};
use realizar_compute::cpu::threads::{Pool, default_threads};
use realizar_compute::{DType, MatrixPart};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of weights that one pass goes through, beyond any cache.
const PASS_BYTES: usize = 128 << 20;

/// Count the time that the thread had a processor instead of the time of day: for one thread on a busy machine.
static CPU_TIME: AtomicBool = AtomicBool::new(false);

/// Use one copy of the weights: how fast the kernel is without the memory.
static HOT: AtomicBool = AtomicBool::new(false);

fn main() {
    let mut types = Vec::new();
    let (mut rows, mut threads) = (vec![1, 8, 512], vec![1, default_threads()]);
    let mut shapes = vec![(8192, 2048), (2048, 8192)];
    let mut isa = Isa::best();
    let mut models: Vec<String> = Vec::new();
    for argument in std::env::args().skip(1) {
        let numbers =
            |list: &str| list.split(',').map(|n| n.parse().expect("a number")).collect::<Vec<usize>>();
        if let Some(list) = argument.strip_prefix("rows=") {
            rows = numbers(list);
        } else if let Some(list) = argument.strip_prefix("threads=") {
            threads = numbers(list);
        } else if let Some(name) = argument.strip_prefix("isa=") {
            isa = *Isa::available()
                .iter()
                .find(|i| i.to_string() == name)
                .expect("an available instruction set");
        } else if let Some(list) = argument.strip_prefix("shape=") {
            let shape = |s: &str| {
                let (out, n_in) = s.split_once('x').expect("OUTxIN");
                (out.parse().expect("a number"), n_in.parse().expect("a number"))
            };
            shapes = list.split(',').map(shape).collect();
        } else if let Some(list) = argument.strip_prefix("model=") {
            models = list.split(',').map(str::to_string).collect();
        } else if argument == "hot" {
            HOT.store(true, Ordering::Relaxed);
        } else if argument == "cpu-time" {
            CPU_TIME.store(true, Ordering::Relaxed);
        } else if let Some(dtype) = DType::from_name(&argument) {
            types.push(dtype);
        }
    }
    if types.is_empty() {
        types = realizar_compute::quant::QUANTS.iter().map(|spec| spec.dtype).collect();
    }
    threads.dedup();
    for &n in &threads {
        let pool = Pool::new(n);
        println!("barrier, {n} threads: {:.2} µs", barrier_us(&pool));
        let test = ReadTest::new(&pool).expect("memory");
        let bandwidth = (0..TURNS).map(|_| test.bytes_per_second(&pool)).fold(0.0, f64::max);
        println!("read bandwidth, {n} threads: {:.1} GB/s", bandwidth / 1e9);
        for name in &models {
            model(&pool, name, isa);
        }
        if !models.is_empty() {
            continue;
        }
        for &dtype in &types {
            for &(n_out, n_in) in &shapes {
                for &m in &rows {
                    product(&pool, &test, dtype, n_out, n_in, m, isa);
                }
            }
        }
    }
}

/// Median and least seconds of `f`, over passes that take about a second together.
fn time(mut f: impl FnMut()) -> (f64, f64) {
    f();
    let mut times = Vec::new();
    let start = Instant::now();
    while times.len() < 5 || start.elapsed() < Duration::from_millis(600) {
        let start = now();
        f();
        times.push(now() - start);
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[0])
}

/// Seconds on the clock: of the day, or with `cpu-time` of the calling thread.
fn now() -> f64 {
    use std::ffi::{c_int, c_long};
    // From the C library, which the standard library links anyway.
    unsafe extern "C" {
        fn clock_gettime(clock: c_int, time: *mut [c_long; 2]) -> c_int;
    }
    const MONOTONIC: c_int = 1;
    const THREAD_CPU_TIME: c_int = 3;
    let clock = if CPU_TIME.load(Ordering::Relaxed) { THREAD_CPU_TIME } else { MONOTONIC };
    let mut time: [c_long; 2] = [0; 2];
    // SAFETY: `time` is a timespec: seconds and nanoseconds.
    let status = unsafe { clock_gettime(clock, &mut time) };
    assert_eq!(status, 0, "clock_gettime");
    time[0] as f64 + time[1] as f64 * 1e-9
}

fn barrier_us(pool: &Pool) -> f64 {
    time(|| {
        (0..1000).for_each(|_| {
            pool.run(|worker, _| {
                black_box(worker);
            })
        })
    })
    .1 * 1e3
}

/// Passes beside which reading is measured.
const TURNS: usize = 81;

/// Speed of `pass`, which reads so many bytes, as a share of the read bandwidth on a machine whose speed changes: the median over
/// passes of one right after the other.
fn share_of_bandwidth(pool: &Pool, test: &ReadTest, bytes: f64, mut pass: impl FnMut()) -> f64 {
    let mut shares: Vec<f64> = (0..TURNS)
        .map(|_| {
            let bandwidth = test.bytes_per_second(pool);
            let start = now();
            pass();
            bytes / (now() - start) / bandwidth
        })
        .collect();
    shares.sort_by(f64::total_cmp);
    shares[TURNS / 2]
}

/// The product with a plain matrix.
fn multiply(pool: &Pool, y: &mut [f32], x: &[f32], w: &Matrix, scratch: &mut Activations) {
    let groups = &[Group { expert: 0, rows: 0..x.len() / w.n_in() }];
    matmul(pool, y, Operands { x, sources: None, w, groups, bias: None }, scratch);
}

fn product(pool: &Pool, test: &ReadTest, dtype: DType, n_out: usize, n_in: usize, m: usize, isa: Isa) {
    let options = MatrixOptions { isa, exact: false, repack: true };
    let size = dtype.bytes_for(n_out * n_in).expect("whole blocks");
    let copies = if m <= 16 && !HOT.load(Ordering::Relaxed) { (PASS_BYTES / size).max(1) } else { 1 };
    let made: Vec<Matrix> = (0..copies)
        .map(|_| Matrix::new(vec![part(dtype, n_out, n_in)], options, pool).expect("a matrix"))
        .collect();
    let x: Vec<f32> = (0..m * n_in).map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0).collect();
    let mut y = vec![0.0; m * n_out];
    let mut scratch = Activations::new();
    let mut pass = || {
        for w in &made {
            multiply(pool, &mut y, &x, w, &mut scratch);
        }
    };
    let (median, best) = time(&mut pass);
    let bytes = (copies * made[0].bytes()) as f64;
    let share = if m == 1 && copies > 1 {
        let share = share_of_bandwidth(pool, test, bytes, &mut pass);
        format!("  {:.0} % of read bandwidth", share * 100.0)
    } else if let Some(peak) = peak_gop_s(pool, dtype, isa).filter(|_| m > 1) {
        let speed = 2.0 * (n_out * n_in * m * copies) as f64 / median / 1e9;
        format!("  {:.0} % of {peak:.0} GOP/s", speed / peak * 100.0)
    } else {
        String::new()
    };
    black_box(&y);
    let (seconds, best) = (median / copies as f64, best / copies as f64);
    println!(
        "{:6} {isa} {} threads  [{n_out:6}, {n_in:5}] x {m:3} rows: {:8.1} µs  {:6.1} GB/s  {:7.1} GOP/s  (best {:6.1}, {:7.1}){share}",
        dtype.name(),
        pool.n_threads(),
        seconds * 1e6,
        made[0].bytes() as f64 / seconds / 1e9,
        2.0 * (n_out * n_in * m) as f64 / seconds / 1e9,
        made[0].bytes() as f64 / best / 1e9,
        2.0 * (n_out * n_in * m) as f64 / best / 1e9,
    );
}

/// A matrix of bytes that make every field of every type a normal number.
fn part(dtype: DType, n_out: usize, n_in: usize) -> MatrixPart {
    let size = dtype.bytes_for(n_out * n_in).expect("whole blocks");
    let mut state = 1_u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        0x11 + (state >> 24) as u8 % 0x2f
    };
    let bytes = Bytes::from((0..size).map(|_| byte()).collect::<Vec<_>>());
    MatrixPart { name: "w".into(), dtype, n_experts: 1, n_out, n_in, bytes }
}

/// All products of a forward pass of Llama-3.2-1B's shape, without what stands between them.
fn model(pool: &Pool, name: &str, isa: Isa) {
    // The mixes keep half of the layers' v and down in Q6_K, and the head.
    let (base, better) = match name.strip_suffix("_M") {
        Some(base) => (DType::from_name(base).expect("a type"), DType::Q6_K),
        None => (DType::from_name(name).expect("a type"), DType::from_name(name).expect("a type")),
    };
    let options = MatrixOptions { isa, exact: false, repack: true };
    let make = |parts| Matrix::new(parts, options, pool).expect("a matrix");
    let start = Instant::now();
    let mut layers = Vec::new();
    for layer in 0..16 {
        let some = if layer % 2 == 0 { better } else { base };
        layers.push(make(vec![part(base, 2048, 2048), part(base, 512, 2048), part(some, 512, 2048)]));
        layers.push(make(vec![part(base, 2048, 2048)]));
        layers.push(make(vec![part(base, 8192, 2048), part(base, 8192, 2048)]));
        layers.push(make(vec![part(some, 2048, 8192)]));
    }
    let head = make(vec![part(better, 128_256, 2048)]);
    println!("{name}: made in {:.1} s", start.elapsed().as_secs_f64());
    let bytes: usize = layers.iter().map(Matrix::bytes).sum::<usize>() + head.bytes();
    let mut scratch = Activations::new();
    let mut y = vec![0.0; 512 * 16_384];
    for m in [1, 8, 512] {
        let x: Vec<f32> = (0..m * 8192).map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0).collect();
        let (median, best) = time(|| {
            for w in &layers {
                multiply(pool, &mut y[..m * w.n_out()], &x[..m * w.n_in()], w, &mut scratch);
            }
            let last = m.min(8);
            multiply(pool, &mut y[..last * head.n_out()], &x[..last * 2048], &head, &mut scratch);
        });
        println!(
            "{name} {isa} {} threads, {m:3} rows: {:8.2} ms  {:7.1} rows/s (best {:7.1})  {:5.1} GB/s",
            pool.n_threads(),
            median * 1e3,
            m as f64 / median,
            m as f64 / best,
            bytes as f64 / median / 1e9
        );
    }
}
