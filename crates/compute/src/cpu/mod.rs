//! The CPU backend: every operation on host memory, on all cores, with the processor's vector instructions.
//!
//! `mod.rs` checks and dispatches; the work is in the file of each operation. Weights are packed once by [`matmul`]; activations and
//! caches are plain arrays.

mod activation;
mod argmax;
mod attention;
pub mod bandwidth;
mod buffer;
mod cgroup;
mod embed;
mod host_memory;
pub mod isa;
mod latent;
pub mod matmul;
mod memory;
mod moe;
mod norm;
mod parallel;
mod recurrent;
mod rope;
pub(crate) mod simd;
pub mod threads;
pub mod topology;

pub use buffer::Buffer;

use crate::ranks::{HostGroup, place_columns};
use crate::sampling::Samplers;
use crate::{
    Activation, AttentionParams, AttentionTemperature, Batch, BatchLimits, Blocks, CacheShape, Capture,
    Chosen, Collectives, DType, DeltaInput, DeltaShape, Device, DeviceMemory, Experts, GatedNorm, HostBatch,
    InputObserver, KvLayer, LatentPrep, MatmulInput, MatrixPart, MoeScratch, Norm, Ops, Pooling, PreviousRow,
    Profile, Profiler, QkvPrep, Rank, Result, ShortConv, SsmInput, SsmShape, Tensor,
};
use isa::Isa;
use matmul::{Activations, Group, Matrix, MatrixOptions, Operands};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use threads::Pool;

/// How the CPU is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads that compute, the caller's among them.
    pub n_threads: usize,
    /// Instructions to use.
    pub isa: Isa,
    /// Whether matmuls take activations as they are, and not rounded to 8 bits.
    pub exact: bool,
    /// Whether weights are copied into the layout that matmuls read fastest; otherwise they stay in the mapped file.
    pub repack: bool,
}

impl Default for CpuOptions {
    /// All cores, the best instructions, fast matmuls, packed weights.
    fn default() -> Self {
        Self { n_threads: threads::default_threads(), isa: Isa::best(), exact: false, repack: true }
    }
}

/// The processor that this program runs on.
pub struct Cpu {
    options: CpuOptions,
    pool: Arc<Pool>,
    /// Sees the inputs of matmuls, where somebody asked for it.
    observer: Option<Arc<dyn InputObserver>>,
    /// Inputs of matmuls in the layouts that their weights need; one matmul runs at a time.
    activations: Mutex<Activations>,
    profiler: Profiler,
    rank: Rank,
    group: Arc<HostGroup>,
}

impl Cpu {
    /// Starts the threads.
    ///
    /// Panics if the processor does not have `options.isa`.
    pub fn new(options: CpuOptions) -> Self {
        Self::member(options, Rank::ALONE, Arc::new(HostGroup::new(1)))
    }

    /// As many ranks of a group, which share the threads among them.
    pub fn group(count: usize, options: CpuOptions) -> Vec<Self> {
        let group = Arc::new(HostGroup::new(count));
        let options = CpuOptions { n_threads: (options.n_threads / count.max(1)).max(1), ..options };
        (0..count).map(|index| Self::member(options, Rank { index, count }, group.clone())).collect()
    }

    fn member(options: CpuOptions, rank: Rank, group: Arc<HostGroup>) -> Self {
        assert!(options.isa.is_available(), "this processor has no {} instructions", options.isa);
        let pool = Arc::new(Pool::new(options.n_threads));
        let options = CpuOptions { n_threads: pool.n_threads(), ..options };
        Self {
            options,
            pool,
            observer: None,
            activations: Mutex::default(),
            profiler: Profiler::default(),
            rank,
            group,
        }
    }

    /// Shows the inputs of all products with weights to `observer`, as they are before they are rounded.
    pub fn observed_by(self, observer: Arc<dyn InputObserver>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// How the CPU is used.
    pub fn options(&self) -> CpuOptions {
        self.options
    }

    fn multiply(&self, y: &mut [f32], operands: Operands<'_>) {
        if self.observer.is_some() {
            let Operands { x, sources, w, groups, .. } = operands;
            let mut inputs = Vec::new();
            for Group { expert, rows } in groups {
                let row = |i: usize| &x[sources.map_or(i, |s| s[i] as usize) * w.n_in()..][..w.n_in()];
                inputs.clear();
                rows.clone().for_each(|i| inputs.extend_from_slice(row(i)));
                self.show(w, *expert, &inputs);
            }
        }
        let mut activations = self.activations.lock().unwrap_or_else(PoisonError::into_inner);
        matmul::matmul(&self.pool, y, operands, &mut activations);
    }

    /// Shows an input to the observer, if there is one.
    fn show(&self, w: &Matrix, expert: usize, x: &[f32]) {
        if let Some(observer) = &self.observer {
            let (names, n_experts, n_in) = (w.names(), w.n_experts(), w.n_in());
            observer.observe(MatmulInput { names, n_experts, expert, x, n_in });
        }
    }
}

impl Device for Cpu {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Batch = HostBatch;
    type Choices = Vec<Chosen>;
    type Operand = Infallible;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn describe(&self) -> String {
        let CpuOptions { n_threads, isa, exact, .. } = self.options;
        format!("CPU, {isa}, {n_threads} threads{}", if exact { ", exact" } else { "" })
    }

    fn memory(&self) -> DeviceMemory {
        host_memory::host_memory()
    }

    fn joins_exactly(&self) -> bool {
        self.options.exact
    }

    fn zeros(&self, dtype: DType, shape: &[usize]) -> Result<Tensor<Self>> {
        Ok(Tensor::from_buffer(Buffer::zeros(dtype, shape)?, dtype, shape))
    }

    fn upload(&self, shape: &[usize], values: &[f32]) -> Result<Tensor<Self>> {
        let mut t = self.zeros(DType::F32, shape)?;
        t.floats_mut().copy_from_slice(values);
        Ok(t)
    }

    fn download(&self, out: &mut [f32], x: &Tensor<Self>) -> Result<()> {
        out.copy_from_slice(x.floats());
        Ok(())
    }

    fn matrix(&self, parts: Vec<MatrixPart>) -> Result<Matrix> {
        let CpuOptions { isa, exact, repack, .. } = self.options;
        Matrix::new(parts, MatrixOptions { repack, isa, exact }, &self.pool)
    }

    fn table(&self, part: MatrixPart) -> Result<Matrix> {
        let CpuOptions { isa, exact, .. } = self.options;
        Matrix::new(vec![part], MatrixOptions { repack: false, isa, exact }, &self.pool)
    }

    fn matrix_memory(&self, dtype: DType, shape: [usize; 3]) -> usize {
        let CpuOptions { isa, exact, repack, .. } = self.options;
        matmul::packed_bytes(dtype, shape, MatrixOptions { repack, isa, exact })
    }

    fn table_memory(&self, _: DType, _: [usize; 3]) -> usize {
        0
    }

    fn matrix_bytes(&self, w: &Matrix) -> usize {
        w.bytes()
    }

    fn copy_block(&self, kv: &mut KvLayer<Self>, to: usize, from: usize) -> Result<()> {
        for t in kv.tensors_mut() {
            let n = t.dtype().bytes_for(t.row_len()).expect("a cache was made of whole blocks");
            t.buffer_mut().bytes_mut().copy_within(from * n..(from + 1) * n, to * n);
        }
        Ok(())
    }

    fn cache_format(&self) -> String {
        let CpuOptions { isa, exact, repack, .. } = self.options;
        format!("CPU, {isa}, exact: {exact}, repack: {repack}")
    }

    fn read_row(&self, out: &mut [u8], x: &Tensor<Self>, row: usize) -> Result<()> {
        let n = self.row_bytes(x);
        out.copy_from_slice(&x.buffer().bytes()[row * n..(row + 1) * n]);
        Ok(())
    }

    fn write_row(&self, x: &mut Tensor<Self>, row: usize, bytes: &[u8]) -> Result<()> {
        let n = self.row_bytes(x);
        x.buffer_mut().bytes_mut()[row * n..(row + 1) * n].copy_from_slice(bytes);
        Ok(())
    }

    fn new_batch(&self, limits: BatchLimits, cache: CacheShape) -> Result<HostBatch> {
        Ok(HostBatch::new(limits, cache))
    }

    fn stage(&self, staged: &mut HostBatch, batch: &Batch) -> Result<()> {
        staged.set(batch)?;
        staged.set_deferred();
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        self.group.check()
    }
}

impl Ops for Cpu {
    fn embed(&self, y: &mut Tensor<Self>, table: &Matrix, batch: &HostBatch, scale: f32) -> Result<()> {
        embed::embed(&self.pool, y, table, batch.tokens(), scale);
        Ok(())
    }

    fn add_positions(&self, x: &mut Tensor<Self>, table: &Tensor<Self>, batch: &HostBatch) -> Result<()> {
        embed::add_rows(&self.pool, x, table, batch.positions());
        Ok(())
    }

    fn add_token_types(&self, x: &mut Tensor<Self>, table: &Tensor<Self>, batch: &HostBatch) -> Result<()> {
        embed::add_rows(&self.pool, x, table, batch.token_types());
        Ok(())
    }

    fn rope_angles(
        &self,
        y: &mut Tensor<Self>,
        f: &Tensor<Self>,
        batch: &HostBatch,
        scale: f32,
    ) -> Result<()> {
        rope::angles(&self.pool, y, f.floats(), batch.positions(), scale);
        Ok(())
    }

    fn norm(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, norm: &Norm<Self>) -> Result<()> {
        norm::norm(&self.pool, self.options.isa, y, x, norm);
        Ok(())
    }

    fn norm_columns(&self, x: &mut Tensor<Self>, start: usize, norm: &Norm<Self>) -> Result<()> {
        norm::norm_columns(&self.pool, self.options.isa, x, start, norm);
        Ok(())
    }

    fn add(&self, y: &mut Tensor<Self>, x: &Tensor<Self>) -> Result<()> {
        assert_eq!(y.shape(), x.shape());
        let x = x.floats();
        parallel::pieces(&self.pool, y.floats_mut(), |start, y| {
            y.iter_mut().zip(&x[start..]).for_each(|(y, x)| *y += x);
        });
        Ok(())
    }

    fn matmul(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        w: &Matrix,
        bias: Option<&Tensor<Self>>,
    ) -> Result<()> {
        assert_eq!((x.row_len(), y.row_len(), x.rows()), (w.n_in(), w.n_out(), y.rows()));
        let bias = bias.map(|b| b.floats());
        let groups = &[Group { expert: 0, rows: 0..x.rows() }];
        self.multiply(y.floats_mut(), Operands { x: x.floats(), sources: None, w, groups, bias });
        Ok(())
    }

    fn store_kv(
        &self,
        qkv: &mut Tensor<Self>,
        kv: &mut KvLayer<Self>,
        batch: &HostBatch,
        prep: QkvPrep<'_, Self>,
    ) -> Result<()> {
        rope::store_kv(&self.pool, self.options.isa, qkv, kv, batch, prep)
    }

    fn store_latent(
        &self,
        queries: &mut Tensor<Self>,
        q: &Tensor<Self>,
        latent: &Tensor<Self>,
        kv: &mut KvLayer<Self>,
        batch: &HostBatch,
        prep: LatentPrep<'_, Self>,
    ) -> Result<()> {
        latent::store_latent(self, queries, q, latent, kv, batch, prep)
    }

    fn head_matmul(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, w: &Matrix) -> Result<()> {
        latent::head_matmul(self, y, x, w);
        Ok(())
    }

    fn attention(
        &self,
        y: &mut Tensor<Self>,
        qkv: &Tensor<Self>,
        kv: &KvLayer<Self>,
        batch: &HostBatch,
        params: &AttentionParams,
        sinks: Option<&Tensor<Self>>,
    ) -> Result<()> {
        attention::attention(self, y, qkv, kv, batch, params, sinks)
    }

    fn short_conv(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        conv: ShortConv<'_, Self>,
        state: &mut Tensor<Self>,
        batch: &HostBatch,
    ) -> Result<()> {
        recurrent::short_conv(&self.pool, self.options.isa, y, x, conv, state, batch);
        Ok(())
    }

    fn delta_rule(
        &self,
        y: &mut Tensor<Self>,
        input: DeltaInput<'_, Self>,
        state: &mut Tensor<Self>,
        batch: &HostBatch,
        shape: &DeltaShape,
    ) -> Result<()> {
        recurrent::delta_rule(&self.pool, self.options.isa, y, input, state, batch, shape);
        Ok(())
    }

    fn ssm_scan(
        &self,
        y: &mut Tensor<Self>,
        input: SsmInput<'_, Self>,
        state: &mut Tensor<Self>,
        batch: &HostBatch,
        shape: &SsmShape,
    ) -> Result<()> {
        recurrent::ssm_scan(&self.pool, self.options.isa, y, input, state, batch, shape);
        Ok(())
    }

    fn gated_norm(
        &self,
        x: &mut Tensor<Self>,
        gate: &Tensor<Self>,
        start: usize,
        norm: GatedNorm<'_, Self>,
    ) -> Result<()> {
        recurrent::gated_norm(&self.pool, self.options.isa, x, gate, start, norm);
        Ok(())
    }

    fn sigmoid_gate(&self, x: &mut Tensor<Self>, gate: &Tensor<Self>) -> Result<()> {
        recurrent::sigmoid_gate(&self.pool, self.options.isa, x, gate);
        Ok(())
    }

    fn gated(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, f: Activation) -> Result<()> {
        activation::gated(&self.pool, self.options.isa, y, x, f);
        Ok(())
    }

    fn gate_columns(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        start: usize,
        f: Activation,
    ) -> Result<()> {
        activation::gate_columns(&self.pool, self.options.isa, y, x, start, f);
        Ok(())
    }

    fn activate(&self, x: &mut Tensor<Self>, f: Activation) -> Result<()> {
        activation::activate(&self.pool, self.options.isa, x, f);
        Ok(())
    }

    fn moe(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        router: &Tensor<Self>,
        experts: &Experts<'_, Self>,
        scratch: &mut MoeScratch<Self>,
    ) -> Result<()> {
        moe::moe(self, y, x, router, experts, scratch)
    }

    fn select_rows(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, batch: &HostBatch) -> Result<()> {
        let n = x.row_len();
        let (x, tokens) = (x.floats(), batch.logit_tokens());
        assert_eq!(y.rows(), tokens.len());
        parallel::rows(&self.pool, y.floats_mut(), n, |i, y| {
            y.copy_from_slice(&x[tokens[i] as usize * n..][..n]);
        });
        Ok(())
    }

    fn select_previous(
        &self,
        y: &mut Tensor<Self>,
        before: &Tensor<Self>,
        here: &Tensor<Self>,
        batch: &HostBatch,
    ) -> Result<()> {
        let n = y.row_len();
        let (before, here) = (before.floats(), here.floats());
        assert_eq!(y.rows(), batch.tokens().len());
        for (y, previous) in y.floats_mut().chunks_exact_mut(n).zip(batch.previous()) {
            match previous {
                PreviousRow::Unknown => y.fill(0.0),
                PreviousRow::Before(row) => y.copy_from_slice(&before[row as usize * n..][..n]),
                PreviousRow::Here(row) => y.copy_from_slice(&here[row as usize * n..][..n]),
            }
        }
        Ok(())
    }

    fn pool(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        batch: &HostBatch,
        pooling: Pooling,
    ) -> Result<()> {
        let (n, seqs) = (x.row_len(), batch.seqs());
        assert_eq!((x.rows(), y.rows(), y.row_len()), (batch.tokens().len(), seqs.len(), n));
        let x = x.floats();
        parallel::rows(&self.pool, y.floats_mut(), n, |i, y| {
            let tokens = seqs[i].tokens.clone();
            let row = |t: usize| &x[t * n..][..n];
            match pooling {
                Pooling::First => y.copy_from_slice(row(tokens.start)),
                Pooling::Last => y.copy_from_slice(row(tokens.end - 1)),
                Pooling::Mean => {
                    let share = 1.0 / tokens.len() as f32;
                    y.fill(0.0);
                    tokens.for_each(|t| y.iter_mut().zip(row(t)).for_each(|(y, x)| *y += x));
                    y.iter_mut().for_each(|y| *y *= share);
                }
            }
        });
        Ok(())
    }

    fn argmax(&self, batch: &mut HostBatch, logits: &Tensor<Self>) -> Result<()> {
        assert_eq!(logits.rows(), batch.logit_tokens().len());
        let chosen = argmax::argmax(&self.pool, self.options.isa, logits.floats(), logits.row_len());
        batch.set_chosen(chosen.into_iter());
        Ok(())
    }

    fn stage_samplers(&self, batch: &mut HostBatch, samplers: &Samplers) -> Result<()> {
        assert_eq!(samplers.rows.len(), batch.logit_tokens().len());
        batch.set_samplers(samplers);
        Ok(())
    }

    fn sample(&self, batch: &mut HostBatch, logits: &mut Tensor<Self>) -> Result<()> {
        assert_eq!(logits.rows(), batch.logit_tokens().len());
        batch.sample(logits.floats(), logits.row_len());
        Ok(())
    }

    fn fetch_choices(&self, batch: &mut HostBatch) -> Result<Vec<Chosen>> {
        Ok(batch.chosen().to_vec())
    }

    fn wait_for_choices(&self, choices: Vec<Chosen>, out: &mut Vec<Chosen>) -> Result<()> {
        out.extend(choices);
        Ok(())
    }

    fn softcap(&self, x: &mut Tensor<Self>, cap: f32) -> Result<()> {
        activation::softcap(&self.pool, self.options.isa, x, cap);
        Ok(())
    }

    fn scale_by_position(
        &self,
        x: &mut Tensor<Self>,
        n: usize,
        batch: &HostBatch,
        temperature: AttentionTemperature,
    ) -> Result<()> {
        let row_len = x.row_len();
        parallel::rows(&self.pool, x.floats_mut(), row_len, |i, row| {
            let factor = temperature.factor(batch.positions()[i]);
            if factor != 1.0 {
                row[..n].iter_mut().for_each(|x| *x *= factor);
            }
        });
        Ok(())
    }

    fn scale_columns(&self, x: &mut Tensor<Self>, factors: &Tensor<Self>) -> Result<()> {
        let n = x.row_len();
        assert_eq!(n, factors.len());
        parallel::rows(&self.pool, x.floats_mut(), n, |_, row| {
            row.iter_mut().zip(factors.floats()).for_each(|(x, f)| *x *= f);
        });
        Ok(())
    }

    fn add_columns(&self, x: &mut Tensor<Self>, summands: &Tensor<Self>) -> Result<()> {
        let n = x.row_len();
        assert_eq!(n, summands.len());
        parallel::rows(&self.pool, x.floats_mut(), n, |_, row| {
            row.iter_mut().zip(summands.floats()).for_each(|(x, s)| *x += s);
        });
        Ok(())
    }

    fn gate_rows(&self, x: &mut Tensor<Self>, gate: &Tensor<Self>) -> Result<()> {
        activation::gate_rows(&self.pool, x, gate);
        Ok(())
    }

    fn scale(&self, x: &mut Tensor<Self>, factor: f32) -> Result<()> {
        parallel::pieces(&self.pool, x.floats_mut(), |_, x| x.iter_mut().for_each(|x| *x *= factor));
        Ok(())
    }
}

impl Collectives for Cpu {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn all_reduce(&self, x: &mut Tensor<Self>) -> Result<()> {
        let mut sum = vec![0.0; x.len()];
        self.group.exchange(self.rank.index, x.floats(), |rank, x| match rank {
            0 => sum.copy_from_slice(x),
            _ => sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x),
        })?;
        x.floats_mut().copy_from_slice(&sum);
        Ok(())
    }

    fn all_gather(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, starts: &[usize]) -> Result<()> {
        let (n, index) = (y.row_len(), self.rank.index);
        assert_eq!((starts.len(), starts.last()), (self.rank.count + 1, Some(&n)));
        assert_eq!((y.rows(), x.row_len()), (x.rows(), starts[index + 1] - starts[index]));
        let y = y.floats_mut();
        self.group.exchange(index, x.floats(), |rank, part| {
            place_columns(y, n, part, starts[rank], starts[rank + 1]);
        })
    }

    fn leave(&self) {
        self.group.leave();
    }
}

impl Profile for Cpu {
    fn profiler(&self) -> Option<&Profiler> {
        Some(&self.profiler)
    }
}

impl Capture for Cpu {}

impl Blocks for Cpu {
    fn read_operand(&self, _: &mut Tensor<Self>, operand: Infallible) -> Result<()> {
        match operand {}
    }
}
