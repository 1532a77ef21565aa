//! Speed of the matrix products: GB/s of weights for one row, GOP/s for many, beside the machine's read bandwidth.
//!
//! `cargo bench -p realizar-compute --bench matmul -- [TYPE…] [rows=M,…] [threads=N,…] [isa=NAME] [shape=OUTxIN,…]`
//!
//! Each figure is the median of several passes. For one row the weights are several copies of the matrix, larger
//! together than the caches, as they are in a model.
#![allow(clippy::print_stdout, missing_docs)]

use bytes::Bytes;
use realizar_compute::cpu::isa::Isa;
use realizar_compute::cpu::matmul::{Activations, Matrix, MatrixOptions, matmul};
use realizar_compute::cpu::threads::{Pool, default_threads};
use realizar_compute::{DType, MatrixPart};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Bytes of weights that one pass goes through, beyond any cache.
const PASS_BYTES: usize = 192 << 20;

fn main() {
    let mut types = Vec::new();
    let (mut rows, mut threads) = (vec![1, 8, 512], vec![1, default_threads()]);
    let mut shapes = vec![(8192, 2048), (2048, 8192)];
    let mut isa = Isa::best();
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
        } else if let Some(dtype) = DType::from_name(&argument) {
            types.push(dtype);
        }
    }
    if types.is_empty() {
        types = ["Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q8_0", "F16", "BF16", "F32"]
            .iter()
            .filter_map(|name| DType::from_name(name))
            .collect();
    }
    threads.dedup();
    for &n in &threads {
        let pool = Pool::new(n);
        println!("barrier, {n} threads: {:.2} µs", barrier_us(&pool));
        println!("read bandwidth, {n} threads: {:.1} GB/s", read_gb_s(&pool));
        for &dtype in &types {
            for &(n_out, n_in) in &shapes {
                for &m in &rows {
                    product(&pool, dtype, n_out, n_in, m, isa);
                }
            }
        }
    }
}

/// Median seconds of `f`, over passes that take about a second together.
fn median(mut f: impl FnMut()) -> f64 {
    f();
    let mut times = Vec::new();
    let start = Instant::now();
    while times.len() < 5 || (start.elapsed() < Duration::from_millis(600) && times.len() < 101) {
        let start = Instant::now();
        f();
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn barrier_us(pool: &Pool) -> f64 {
    median(|| (0..1000).for_each(|_| pool.run(|worker, _| drop(black_box(worker))))) * 1e3
}

fn read_gb_s(pool: &Pool) -> f64 {
    let data = vec![1_u64; PASS_BYTES / 8];
    let seconds = median(|| {
        pool.for_each_chunk(data.len(), 64 << 10, |range| {
            let mut sums = [0_u64; 32];
            for x in data[range].as_chunks::<32>().0 {
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum |= x;
                }
            }
            black_box(sums);
        });
    });
    PASS_BYTES as f64 / seconds / 1e9
}

fn product(pool: &Pool, dtype: DType, n_out: usize, n_in: usize, m: usize, isa: Isa) {
    let options = MatrixOptions { isa, exact: false, repack: true };
    let size = dtype.bytes_for(n_out * n_in).expect("whole blocks");
    // Bytes that make every field of every type a normal number.
    let mut state = 1_u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        0x11 + (state >> 24) as u8 % 0x2f
    };
    let bytes = Bytes::from((0..size).map(|_| byte()).collect::<Vec<_>>());
    let copies = if m <= 16 { (PASS_BYTES / size).max(1) } else { 1 };
    let made: Vec<Matrix> = (0..copies)
        .map(|_| {
            let part = MatrixPart { dtype, n_experts: 1, n_out, n_in, bytes: bytes.clone() };
            Matrix::new(vec![part], options, pool).expect("a matrix")
        })
        .collect();
    let x: Vec<f32> = (0..m * n_in).map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0).collect();
    let mut y = vec![0.0; m * n_out];
    let mut scratch = Activations::new();
    let seconds = median(|| {
        for w in &made {
            matmul(pool, &mut y, n_out, &x, m, w, 0, None, &mut scratch);
        }
    }) / copies as f64;
    black_box(&y);
    println!(
        "{:6} {isa} {} threads  [{n_out:6}, {n_in:5}] x {m:3} rows: {:8.1} µs  {:6.1} GB/s  {:7.1} GOP/s",
        dtype.name(),
        pool.n_threads(),
        seconds * 1e6,
        made[0].bytes() as f64 / seconds / 1e9,
        2.0 * (n_out * n_in * m) as f64 / seconds / 1e9,
    );
}
