//! Speed of attention: GB/s of cache for one token beside the machine's read bandwidth, GFLOP/s for a prompt.
//!
//! `cargo bench -p realizar-compute --bench attention -- [TYPE…] [tokens=N,…] [context=N,…] [threads=N,…] [isa=NAME]
//! [heads=NxKVxDIM] [exact]`
//!
//! Each figure comes from several passes. Decoding goes through several caches, larger together than the processor's,
//! as a model's layers are. On one thread, time is what the thread had on the processor, where the system tells: other work
//! on the machine does not count.
#![allow(clippy::print_stdout, missing_docs)]

use realizar_compute::cpu::bandwidth::ReadTest;
use realizar_compute::cpu::isa::Isa;
use realizar_compute::cpu::threads::{Pool, default_threads};
use realizar_compute::cpu::{Cpu, CpuOptions};
use realizar_compute::{
    AttentionParams, Batch, BatchLimits, CacheShape, DType, Device, Heads, KvLayer, Ops, QkvPrep,
};
use std::time::{Duration, Instant};

/// Bytes that one pass of decoding reads, beyond any cache.
const PASS_BYTES: usize = 192 << 20;
const BLOCK_SIZE: usize = 16;

fn main() {
    let mut types = Vec::new();
    let (mut tokens, mut contexts) = (vec![512, 4096], vec![512, 8192]);
    let mut threads = vec![1, default_threads()];
    let mut heads = Heads { n_heads: 32, n_kv_heads: 8, head_dim: 64 };
    let (mut isa, mut exact) = (Isa::best(), false);
    for argument in std::env::args().skip(1) {
        let numbers = |list: &str, separator: char| {
            list.split(separator)
                .filter(|n| !n.is_empty())
                .map(|n| n.parse().expect("a number"))
                .collect::<Vec<usize>>()
        };
        if let Some(list) = argument.strip_prefix("tokens=") {
            tokens = numbers(list, ',');
        } else if let Some(list) = argument.strip_prefix("context=") {
            contexts = numbers(list, ',');
        } else if let Some(list) = argument.strip_prefix("threads=") {
            threads = numbers(list, ',');
        } else if let Some(name) = argument.strip_prefix("isa=") {
            let found = Isa::available().iter().find(|i| i.to_string() == name);
            isa = *found.expect("an available instruction set");
        } else if let Some(sizes) = argument.strip_prefix("heads=") {
            let [n_heads, n_kv_heads, head_dim] = numbers(sizes, 'x')[..] else { panic!("HEADSxKVxDIM") };
            heads = Heads { n_heads, n_kv_heads, head_dim };
        } else if argument == "exact" {
            exact = true;
        } else if let Some(dtype) = DType::from_name(&argument) {
            types.push(dtype);
        }
    }
    if types.is_empty() {
        types = vec![DType::F16];
    }
    threads.dedup();
    for &n_threads in &threads {
        println!("read bandwidth, {n_threads} threads: {:.1} GB/s", read_gb_s(n_threads));
        let cpu = Cpu::new(CpuOptions { n_threads, isa, exact, repack: true });
        for &dtype in &types {
            println!("{} {dtype} {heads:?}", cpu.describe());
            tokens.iter().for_each(|&n| prefill(&cpu, dtype, heads, n));
            contexts.iter().for_each(|&n| decode(&cpu, dtype, heads, n));
        }
    }
}

/// Nanoseconds that this thread has been on the processor, where the system tells; it counts at each of its ticks.
fn on_processor_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// Seconds that `f` takes: on one thread the mean time on the processor, else the median by the clock.
fn measure(n_threads: usize, mut f: impl FnMut()) -> f64 {
    f();
    let mut times = Vec::new();
    let (start, before) = (Instant::now(), on_processor_ns());
    while times.len() < 3 || start.elapsed() < Duration::from_millis(1000) {
        let start = Instant::now();
        f();
        times.push(start.elapsed().as_secs_f64());
    }
    if let (1, Some(before), Some(after)) = (n_threads, before, on_processor_ns()) {
        return (after - before) as f64 / 1e9 / times.len() as f64;
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn read_gb_s(n_threads: usize) -> f64 {
    let pool = Pool::new(n_threads);
    let test = ReadTest::new(&pool).expect("memory");
    let speeds = (0..21).map(|_| test.bytes_per_second(&pool));
    speeds.fold(0.0, f64::max) / 1e9
}

/// A cache with `n` tokens, and the last `n_new` of them as a batch with their queries.
fn filled(
    cpu: &Cpu,
    dtype: DType,
    heads: Heads,
    n: usize,
    n_new: usize,
) -> (KvLayer<Cpu>, realizar_compute::HostBatch, realizar_compute::Tensor<Cpu>) {
    let n_blocks = n.div_ceil(BLOCK_SIZE);
    let mut kv = cpu.kv_layer(dtype, n_blocks, BLOCK_SIZE, heads).expect("memory");
    // Blocks of a sequence rarely lie side by side.
    let table: Vec<u32> = (0..n_blocks).map(|i| (i * 7919 % n_blocks) as u32).collect();
    let limits = BatchLimits { n_tokens: n, n_seqs: 1, n_blocks, n_logits: 0 };
    let cache = CacheShape {
        n_blocks,
        block_size: BLOCK_SIZE,
        n_positions: n,
        n_slots: 0,
        n_token_types: 0,
        drafts: false,
        heads,
    };
    let mut staged = cpu.new_batch(limits, cache).expect("memory");
    let mut batch = Batch::default();
    batch.push(&vec![0; n], 0, &table, 0);
    cpu.stage(&mut staged, &batch).expect("within limits");
    let mut state = 1_u32;
    let values: Vec<f32> = (0..n * heads.qkv_len())
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 * 1.7 - 1.7
        })
        .collect();
    let mut qkv = cpu.upload(&[n, heads.qkv_len()], &values).expect("memory");
    let prep = QkvPrep { heads, qk_norm: None, angles: None };
    cpu.store_kv(&mut qkv, &mut kv, &staged, prep).expect("a type that can be written");
    batch.clear();
    batch.push(&vec![0; n_new], n - n_new, &table, 0);
    cpu.stage(&mut staged, &batch).expect("within limits");
    qkv.set_rows(n_new);
    (kv, staged, qkv)
}

fn params(heads: Heads) -> AttentionParams {
    let scale = 1.0 / (heads.head_dim as f32).sqrt();
    AttentionParams { heads, scale, softcap: None, window: None, causal: true, alibi: false }
}

fn prefill(cpu: &Cpu, dtype: DType, heads: Heads, n: usize) {
    let (kv, batch, qkv) = filled(cpu, dtype, heads, n, n);
    let row = heads.n_heads * heads.head_dim;
    let mut y = cpu.zeros(DType::F32, &[n, row]).expect("memory");
    let seconds = measure(cpu.options().n_threads, || {
        cpu.attention(&mut y, &qkv, &kv, &batch, &params(heads), None).expect("attention");
    });
    // Two products over half of a square.
    let flop = 2.0 * 2.0 * row as f64 * n as f64 * (n + 1) as f64 / 2.0;
    println!("  prefill {n:6} tokens: {:9.2} ms  {:6.1} GFLOP/s", seconds * 1e3, flop / seconds / 1e9);
}

fn decode(cpu: &Cpu, dtype: DType, heads: Heads, n: usize) {
    let bytes = dtype.bytes_for(2 * n * heads.n_kv_heads * heads.head_dim).expect("whole blocks");
    let layers: Vec<_> =
        (0..(PASS_BYTES / bytes).clamp(1, 64)).map(|_| filled(cpu, dtype, heads, n, 1)).collect();
    let mut y = cpu.zeros(DType::F32, &[1, heads.n_heads * heads.head_dim]).expect("memory");
    let seconds = measure(cpu.options().n_threads, || {
        for (kv, batch, qkv) in &layers {
            cpu.attention(&mut y, qkv, kv, batch, &params(heads), None).expect("attention");
        }
    }) / layers.len() as f64;
    println!("  decode at {n:6} tokens: {:7.1} µs  {:6.1} GB/s", seconds * 1e6, bytes as f64 / seconds / 1e9);
}
