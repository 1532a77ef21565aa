//! Every operation on every backend, against [`Reference`], by normalized squared error.
//!
//! A [`Case`] makes its inputs from a seed, runs one operation on any backend and returns what it wrote. [`check`] runs each
//! case on the reference and on every path of every backend, and compares. Outputs start as NaN and are made a few rows too
//! long, so that an element that is not written, or one too many, is seen. [`rows_do_not_depend_on_the_batch`] asks for
//! more: a row alone equals the same row in a batch, bit by bit.
//!
//! The benchmark `ops` times the same cases at the sizes of real models.

mod attention;
mod blocks;
mod elementwise;
#[cfg(feature = "cuda")]
#[path = "../../cuda-emulation/emulation.rs"]
mod emulation;
mod graphs;
mod heads;
#[cfg(feature = "cuda")]
mod hopper;
mod latent;
mod matrices;
pub(crate) mod perf;
mod ranks;
mod recurrent;
mod sampling;
mod ssm_scan;

use realizar_compute::cpu::isa::Isa;
use realizar_compute::cpu::{Cpu, CpuOptions};
#[cfg(feature = "cuda")]
use realizar_compute::cuda::{Arch, Cuda, CudaOptions, Mode};
use realizar_compute::quant::QUANTS;
use realizar_compute::{
    Backend, Batch, BatchLimits, CacheShape, DType, Device, Heads, HostBatch, Ops, Reference, StateWrite,
    Tensor,
};
use std::fmt::Debug;
use std::sync::OnceLock;

/// How a backend takes sums and rounds their operands.
#[derive(Clone, Copy)]
enum Sums {
    /// In F32, of what is stored.
    Exact,
    FastCpu,
    FastGpu,
}

/// Largest normalized squared error `Σ (got - want)² / Σ want²` per element type of the weights: `(type, exact, fast on CPUs, fast on
/// GPUs)`. Types without a line have [`OTHERS`].
#[rustfmt::skip]
const TOLERANCES: &[(DType, [f64; 3])] = &[
    // Products: sums in f32, and where they are fast, activations rounded to 8 bits in blocks of 32 or 256, to F16 or to BF16. CPUs
    // round F16 weights to BF16, too.
    (DType::F32,  [1e-11, 1e-11, 1e-11]),
    (DType::F16,  [1e-11, 2e-5, 1e-6]),
    (DType::BF16, [1e-11, 1e-5, 1e-5]),
    (DType::Q8_0, [1e-11, 1e-4, 1e-4]),
    (DType::Q4_0, [1e-11, 1e-4, 1e-4]),
    (DType::Q4_K, [1e-11, 2e-4, 2e-4]),
    (DType::Q5_K, [1e-11, 2e-4, 2e-4]),
    (DType::Q6_K, [1e-11, 2e-4, 2e-4]),
    (DType::Q5_0, [1e-11, 3e-4, 2e-4]),
    (DType::IQ4_NL, [1e-11, 3e-4, 2e-4]),
    (DType::IQ4_XS, [1e-11, 3e-4, 2e-4]),
    (DType::MXFP4, [1e-11, 3e-4, 2e-4]),
    (DType::NVFP4, [1e-11, 3e-4, 2e-4]),
];

/// The tolerance of the other types. Activations are rounded to 8 bits, except where GPUs decode the weights first.
const OTHERS: [f64; 3] = [1e-11, 3e-4, 2e-4];

/// The tolerance of attention per element type of the cache. Where a norm or a rotation precedes the cache, a last bit may
/// tip a rounding. Where it is fast and the cache has less than full precision, queries, keys, weights and values may be
/// rounded to BF16.
#[rustfmt::skip]
const CACHE_TOLERANCES: &[(DType, f64, f64)] = &[
    (DType::F32,  1e-11, 1e-11),
    (DType::F16,  1e-9,  3e-5),
    (DType::BF16, 1e-8,  3e-5),
    (DType::Q8_0, 1e-8,  3e-5),
];

/// Types that GPUs repack when they are loaded.
fn packed_types() -> Vec<DType> {
    #[cfg(feature = "cuda")]
    let is_packed = |dtype: DType| {
        let kernel = realizar_compute::cuda::kernel_for(Arch::Sm80, dtype, 256, 256, 2, false);
        kernel == Some("small_m_i8")
    };
    #[cfg(not(feature = "cuda"))]
    let is_packed = |dtype: DType| dtype.block_len() > 1;
    QUANTS.iter().map(|spec| spec.dtype).filter(|&dtype| is_packed(dtype)).collect()
}

/// What operations without weights may lose.
const ELEMENTWISE: f64 = 1e-11;

/// Which options of a backend matter to a case.
#[derive(Clone, Copy, PartialEq)]
enum Paths {
    /// Instruction sets.
    Instructions,
    /// And how numbers are multiplied.
    Precision,
    /// And how weights are packed.
    Weights,
}

/// One operation with its inputs.
trait Case: Debug {
    const PATHS: Paths = Paths::Instructions;

    /// What the operation wrote: name and values of each output.
    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)>;

    /// Largest normalized squared error.
    fn tolerance(&self, sums: Sums) -> f64;

    /// Whether this emulated GPU, which takes up to seconds for a case, has a path for it that it has for no smaller case and that no other
    /// emulated GPU has.
    fn is_worth(&self, _on: Emulated) -> bool {
        true
    }
}

/// The emulated GPUs.
#[derive(Clone, Copy, PartialEq)]
enum Emulated {
    /// One that takes the kernels that all GPUs run.
    Portable,
    /// The same with exact sums.
    Exact,
    Hopper,
}

impl Emulated {
    const ALL: [Self; 3] = [Self::Portable, Self::Exact, Self::Hopper];

    fn name(self) -> &'static str {
        match self {
            Self::Portable => "the emulated GPU",
            Self::Exact => "the exact emulated GPU",
            Self::Hopper => "the emulated Hopper GPU",
        }
    }
}

/// Whether products of these types with so many rows are worth being emulated. With exact sums a block has 4 outputs of up to 8 rows, whatever
/// the matrix, and more blocks do the same. Hopper has no kernel of its own for F32.
fn is_worth_products(on: Emulated, dtypes: &[DType], rows: usize) -> bool {
    match on {
        Emulated::Portable => true,
        Emulated::Exact => rows <= 40,
        Emulated::Hopper => dtypes.iter().any(|&dtype| dtype != DType::F32),
    }
}

fn tolerance(dtype: DType, sums: Sums) -> f64 {
    TOLERANCES.iter().find(|t| t.0 == dtype).map_or(OTHERS, |t| t.1)[sums as usize]
}

/// Every path of the CPU: each instruction set that this machine has, exact and fast, weights packed and as they are.
fn cpus(paths: Paths) -> impl Iterator<Item = &'static Cpu> {
    static ALL: OnceLock<Vec<Cpu>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let isas = Isa::available().iter();
        isas.flat_map(|&isa| {
            [(false, true), (true, true), (false, false), (true, false)]
                // Three threads share rows unevenly.
                .map(|(exact, repack)| Cpu::new(CpuOptions { n_threads: 3, isa, exact, repack }))
        })
        .collect()
    });
    all.iter().filter(move |cpu| {
        let CpuOptions { exact, repack, .. } = cpu.options();
        match paths {
            Paths::Instructions => !exact && repack,
            Paths::Precision => repack,
            Paths::Weights => true,
        }
    })
}

/// The GPU, or else the emulated one that runs the same kernels on the CPU; exact and fast. What is not there is reported. Tests on
/// several threads share them.
#[cfg(feature = "cuda")]
#[allow(clippy::print_stderr)]
fn gpus() -> &'static [(&'static str, bool, Cuda)] {
    static ALL: OnceLock<Vec<(&'static str, bool, Cuda)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = Vec::new();
        for exact in [false, true] {
            let mode = if exact { Mode::Exact } else { Mode::Fast };
            match Cuda::new(CudaOptions { device: 0, mode }) {
                Ok(gpu) => all.push((if exact { "the exact GPU" } else { "the GPU" }, exact, gpu)),
                Err(e) => eprintln!("SKIPPED: operations are not tested on a GPU: {e}"),
            }
        }
        if !all.is_empty() {
            return all;
        }
        if let Some(driver) = emulation::Emulation::build() {
            for exact in [false, true] {
                let mode = if exact { Mode::Exact } else { Mode::Fast };
                let gpu = Cuda::with_driver(driver.clone(), mode).unwrap();
                let on = if exact { Emulated::Exact } else { Emulated::Portable };
                all.push((on.name(), exact, gpu));
            }
        }
        // Exact sums take no kernels of Hopper's own.
        if let Some(driver) = emulation::Emulation::build_hopper() {
            let gpu = Cuda::with_driver(driver, Mode::Fast).unwrap();
            all.push((Emulated::Hopper.name(), false, gpu));
        }
        all
    })
}

/// As [`gpus`], in the deterministic mode.
#[cfg(feature = "cuda")]
#[allow(clippy::print_stderr)]
fn deterministic_gpus() -> &'static [(&'static str, Cuda)] {
    static ALL: OnceLock<Vec<(&'static str, Cuda)>> = OnceLock::new();
    ALL.get_or_init(|| match Cuda::new(CudaOptions { device: 0, mode: Mode::Deterministic }) {
        Ok(gpu) => vec![("the deterministic GPU", gpu)],
        Err(e) => {
            eprintln!("SKIPPED: the deterministic mode is not tested on a GPU: {e}");
            let open = |driver| Cuda::with_driver(driver, Mode::Deterministic).unwrap();
            let portable = emulation::Emulation::build().map(|d| ("the deterministic emulated GPU", open(d)));
            let hopper = emulation::Emulation::build_hopper();
            let hopper = hopper.map(|d| ("the deterministic emulated Hopper GPU", open(d)));
            portable.into_iter().chain(hopper).collect()
        }
    })
}

#[cfg(not(feature = "cuda"))]
fn deterministic_gpus() -> &'static [(&'static str, Reference)] {
    &[]
}

#[cfg(not(feature = "cuda"))]
fn gpus() -> &'static [(&'static str, bool, Reference)] {
    &[]
}

/// Compares each case on every backend with the reference.
fn check<C: Case>(cases: &[C]) {
    check_grid(1, cases);
}

/// The same for all combinations of some sizes. Emulated GPUs, which take minutes for them, get one of each `n` in a row, and another one of the
/// next: with as many as the innermost size has values, each of these meets the others in turn.
fn check_grid<C: Case>(n: usize, cases: &[C]) {
    for (i, case) in cases.iter().enumerate() {
        let want = case.run(&Reference);
        assert!(want.iter().any(|(_, values)| !values.is_empty()), "{case:?} has no output");
        for cpu in cpus(C::PATHS) {
            let sums = if cpu.options().exact { Sums::Exact } else { Sums::FastCpu };
            compare(case, &format!("{:?}", cpu.options()), &case.run(cpu), &want, case.tolerance(sums));
        }
        compare_on_gpus(case, &want, (i + i / n).is_multiple_of(n));
    }
}

/// The same on GPUs only, for sizes that matter to nothing else.
fn check_on_gpus<C: Case>(cases: &[C]) {
    for case in cases {
        compare_on_gpus(case, &case.run(&Reference), true);
    }
}

fn compare_on_gpus<C: Case>(case: &C, want: &[(&str, Vec<f32>)], emulated: bool) {
    for (path, exact, gpu) in gpus() {
        let on = Emulated::ALL.into_iter().find(|on| on.name() == *path);
        if on.is_some_and(|on| !emulated || !case.is_worth(on)) {
            continue;
        }
        let sums = if *exact { Sums::Exact } else { Sums::FastGpu };
        compare(case, path, &case.run(gpu), want, case.tolerance(sums));
    }
}

fn compare<C: Case>(
    case: &C,
    path: &str,
    got: &[(&str, Vec<f32>)],
    want: &[(&str, Vec<f32>)],
    tolerance: f64,
) {
    assert_eq!(got.len(), want.len());
    for ((name, got), (_, want)) in got.iter().zip(want) {
        assert_eq!(got.len(), want.len(), "{name} of {case:?} on {path}");
        let nan = (0..want.len()).find(|&i| got[i].is_nan() != want[i].is_nan());
        assert_eq!(nan, None, "{name} of {case:?} on {path}: a number that is wrongly (not) written");
        let error = normalized_squared_error(got, want);
        assert!(
            error <= tolerance,
            "{name} of {case:?} on {path}: error {error:.2e} exceeds {tolerance:.0e}"
        );
    }
}

/// `Σ (got - want)² / Σ want²` over the elements that are numbers.
fn normalized_squared_error(got: &[f32], want: &[f32]) -> f64 {
    let pairs = got.iter().zip(want).filter(|(_, w)| !w.is_nan());
    let (noise, signal) = pairs.fold((0.0, 0.0), |(noise, signal), (&g, &w)| {
        (noise + (f64::from(g) - f64::from(w)).powi(2), signal + f64::from(w).powi(2))
    });
    if noise == 0.0 { 0.0 } else { noise / signal }
}

/// Reproducible numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Roughly normal: the sum of 12 uniform numbers.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.next() >> 40) as f32 / (1 << 24) as f32).sum::<f32>() - 6.0
    }

    fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// Rows that an output has beyond those in use.
const SPARE_ROWS: usize = 2;

/// An output of `[rows, len]`, all NaN.
fn poisoned<B: Backend>(b: &B, rows: usize, len: usize) -> Tensor<B> {
    let shape = [rows + SPARE_ROWS, len];
    let mut t = b.upload(&shape, &vec![f32::NAN; shape[0] * len]).unwrap();
    t.set_rows(rows);
    t
}

/// An input of `[rows, len]`, with rows of NaN after those in use.
fn rows_of<B: Backend>(b: &B, values: &[f32], len: usize) -> Tensor<B> {
    let rows = values.len() / len;
    let mut values = values.to_vec();
    values.resize((rows + SPARE_ROWS) * len, f32::NAN);
    let mut t = b.upload(&[rows + SPARE_ROWS, len], &values).unwrap();
    t.set_rows(rows);
    t
}

/// The rows in use, after seeing that the spare rows were left alone.
fn read<B: Backend>(b: &B, t: &mut Tensor<B>) -> Vec<f32> {
    let used = t.len();
    let rows = t.rows();
    t.set_rows(rows + SPARE_ROWS);
    let mut all = vec![0.0; t.len()];
    b.synchronize().unwrap();
    b.download(&mut all, t).unwrap();
    t.set_rows(rows);
    assert!(all[used..].iter().all(|x| x.is_nan()), "rows that are not in use were written");
    all.truncate(used);
    all
}

fn vector<B: Backend>(b: &B, values: &[f32]) -> Tensor<B> {
    b.upload(&[values.len()], values).unwrap()
}

/// Holds whatever a case names.
const ANY_CACHE: CacheShape = CacheShape {
    n_blocks: 1 << 20,
    block_size: 1 << 12,
    n_positions: 1 << 30,
    n_slots: 0,
    n_token_types: 0,
    drafts: false,
    heads: NO_HEADS,
};

/// Of a model without attention over all positions.
const NO_HEADS: Heads = Heads { n_heads: 0, n_kv_heads: 0, head_dim: 0 };

/// A batch on the device.
fn staged<B: Backend>(b: &B, batch: &Batch) -> B::Batch {
    staged_with_heads(b, batch, NO_HEADS)
}

/// The same of a model with such heads.
fn staged_with_heads<B: Backend>(b: &B, batch: &Batch, heads: Heads) -> B::Batch {
    let limits = BatchLimits {
        n_tokens: batch.tokens.len(),
        n_seqs: batch.seqs.len(),
        n_blocks: batch.block_tables.len(),
        n_logits: batch.n_logits(),
    };
    let n_token_types = batch.token_types.iter().map(|&t| t as usize + 1).max().unwrap_or(0);
    let drafts = !batch.previous.is_empty();
    // Not more than the sequences need: a batch on a GPU has room for histories as long as all of its blocks.
    let end = batch.seqs.iter().map(|s| s.start + s.tokens.len()).max().unwrap_or(0);
    let block_size = end.max(ANY_CACHE.block_size);
    let cache = CacheShape { block_size, n_token_types, drafts, heads, ..ANY_CACHE };
    let mut staged = b.new_batch(limits, cache).unwrap();
    b.stage(&mut staged, batch).unwrap();
    staged
}

/// A batch of these tokens at these positions, each a sequence of its own, with logits of those listed.
fn batch_of(tokens: &[(u32, usize, bool)]) -> Batch {
    let mut batch = Batch::default();
    for &(token, position, logits) in tokens {
        batch.push(&[token], position, &[0], usize::from(logits));
    }
    batch
}

#[test]
fn a_batch_larger_than_its_limits_is_refused() {
    fn run<B: Backend>(b: &B) {
        let limits = BatchLimits { n_tokens: 2, n_seqs: 2, n_blocks: 2, n_logits: 2 };
        let mut staged = b.new_batch(limits, ANY_CACHE).unwrap();
        let mut batch = batch_of(&[(1, 0, true), (2, 0, true)]);
        b.stage(&mut staged, &batch).unwrap();
        batch.push(&[3], 0, &[0], 0);
        let error = b.stage(&mut staged, &batch).unwrap_err();
        assert_eq!(error.to_string(), "a batch of 3 tokens exceeds the limit of 2");
    }
    run(&Reference);
    cpus(Paths::Instructions).for_each(run);
    gpus().iter().for_each(|g| run(&g.2));
}

#[test]
fn a_batch_that_names_what_does_not_exist_is_refused() {
    let limits = BatchLimits { n_tokens: 8, n_seqs: 4, n_blocks: 8, n_logits: 8 };
    let cache = CacheShape {
        n_blocks: 4,
        block_size: 4,
        n_positions: 14,
        n_slots: 0,
        n_token_types: 2,
        drafts: true,
        heads: NO_HEADS,
    };
    // Two sequences: positions 0 to 2, and 4 to 6 of one that has a block before these.
    let mut right = Batch::default();
    right.push(&[1, 2, 3], 0, &[0], 1);
    right.push(&[4, 5, 6], 4, &[1, 3], 1);
    right.token_types = vec![0, 0, 1, 0, 1, 1];
    type Fault = fn(&mut Batch);
    let faults: [(Fault, &str); 16] = [
        (|b| b.seqs[1].start = 6, "sequence 1 has 2 blocks of 4 for 9 positions"),
        (|b| b.seqs[1].blocks = 1..2, "sequence 1 has 1 blocks of 4 for 7 positions"),
        (|b| b.seqs[1].blocks = 1..4, "sequence 1 has table entries 1..4 of 3"),
        (|b| b.block_tables[2] = 4, "sequence 1 names block 4 of 4"),
        (|b| b.seqs[1].start = 12, "sequence 1 ends at position 15 of 14"),
        (|b| b.seqs[1].start = usize::MAX, "sequence 1 ends at position 18446744073709551615 of 14"),
        (|b| b.seqs[1].tokens = 2..6, "sequence 1 has tokens 2..6 after 3 tokens"),
        (|b| b.tokens.push(7), "6 of 7 tokens have a sequence"),
        (|b| b.seqs[0].n_logits = 4, "sequence 0 wants 4 rows of logits of 3 tokens"),
        (|b| b.deferred = vec![(6, 0)], "token 6 of 6 is that of row 0 of the 2 before"),
        (|b| b.deferred = vec![(0, 2)], "token 0 of 6 is that of row 2 of the 2 before"),
        (|b| b.token_types.clear(), "0 token types for 6 tokens with one"),
        (|b| b.token_types[4] = 2, "token 4 is of type 2 of 2"),
        (|b| b.previous = vec![None], "1 rows of the step before for 2 sequences"),
        (|b| b.previous = vec![None, Some(8)], "row 8 of the 8 that the step before can have"),
        (|b| b.push_state(None, &[]), "1 states for 0 sequences with one"),
    ];
    let run = |stage: &mut dyn FnMut(&Batch) -> realizar_compute::Result<()>| {
        stage(&right).unwrap();
        for (fault, expected) in faults {
            let mut wrong = right.clone();
            fault(&mut wrong);
            let error = stage(&wrong).unwrap_err().to_string();
            assert_eq!(error, format!("a batch is not valid: {expected}"));
        }
        stage(&right).unwrap();
    };
    fn with<B: Backend>(
        b: &B,
        limits: BatchLimits,
        cache: CacheShape,
        run: impl Fn(&mut dyn FnMut(&Batch) -> realizar_compute::Result<()>),
    ) {
        let mut staged = b.new_batch(limits, cache).unwrap();
        run(&mut |batch| b.stage(&mut staged, batch));
    }
    with(&Reference, limits, cache, run);
    cpus(Paths::Instructions).for_each(|cpu| with(cpu, limits, cache, run));
    gpus().iter().for_each(|g| with(&g.2, limits, cache, run));
}

#[test]
fn a_batch_whose_states_contradict_each_other_is_refused() {
    let limits = BatchLimits { n_tokens: 8, n_seqs: 4, n_blocks: 8, n_logits: 4 };
    let cache = CacheShape {
        n_blocks: 4,
        block_size: 4,
        n_positions: 16,
        n_slots: 5,
        n_token_types: 0,
        drafts: false,
        heads: NO_HEADS,
    };
    let mut batch = HostBatch::new(limits, cache);
    let write = |n_tokens, slot| StateWrite { n_tokens, slot };
    // One begins and leaves a snapshot after two tokens; two go on from one snapshot.
    let states = |first: &[StateWrite], from: [Option<u32>; 3], second: u32| {
        let mut b = Batch::default();
        b.push(&[1, 2, 3], 0, &[0], 1);
        b.push_state(from[0], first);
        for (from, slot) in [(from[1], second), (from[2], 2)] {
            b.push(&[4], 4, &[1, 3], 1);
            b.push_state(from, &[write(1, slot)]);
        }
        b
    };
    let (first, from) = ([write(2, 4), write(3, 0)], [None, Some(3), Some(3)]);
    batch.set(&states(&first, from, 1)).unwrap();
    batch.set(&states(&first, [None, Some(1), Some(3)], 1)).unwrap();
    batch.set(&states(&[write(3, 4), write(3, 0)], from, 1)).unwrap();
    for (wrong, expected) in [
        (states(&[write(3, 4), write(2, 0)], from, 1), "sequence 0 writes its state after 2 of 3 tokens"),
        (states(&[write(0, 4)], from, 1), "sequence 0 writes its state after 0 of 3 tokens"),
        (states(&[write(4, 4)], from, 1), "sequence 0 writes its state after 4 of 3 tokens"),
        (states(&first, from, 5), "sequence 1 writes slot 5 of 5"),
        (states(&first, from, 2), "slot 2 is written twice"),
        (states(&first, from, 3), "slot 3 is read by one sequence and written by another"),
        (states(&first, [None, Some(5), Some(3)], 1), "sequence 1 reads slot 5 of 5"),
        (states(&first, [Some(3); 3], 1), "sequence 0 starts at 0 with state Some(3)"),
        (states(&first, [None; 3], 1), "sequence 1 starts at 4 with state None"),
    ] {
        let error = batch.set(&wrong).unwrap_err().to_string();
        assert_eq!(error, format!("a batch is not valid: {expected}"));
    }
    let mut wrong = states(&first, from, 1);
    wrong.states.pop();
    let error = batch.set(&wrong).unwrap_err().to_string();
    assert_eq!(error, "a batch is not valid: 2 states for 3 sequences with one");
}

/// Bit patterns, so that -0 is not 0 and NaN is NaN.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}
