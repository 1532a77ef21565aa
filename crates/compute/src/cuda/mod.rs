//! The NVIDIA GPU as a backend: every operation as kernels on one stream.
//!
//! `mod.rs` checks and dispatches; an operation's launcher `<op>.rs` and its kernels `<op>.cu` lie side by side. The kernels are
//! compiled ahead of time (`tools/kernels`) and embedded. [`driver::Driver`] is the seam to CUDA, through which the tests run the
//! same launchers and kernels on a machine that has no GPU.

mod attention;
mod batch;
mod buffer;
mod decode_attention;
pub mod driver;
mod elementwise;
mod embed;
mod few;
mod gemm;
mod gpu;
mod gpu_link;
mod kernels;
mod matmul;
mod matrix;
mod matvec;
mod moe;
mod nccl;
mod norm;
mod prefill_attention;
mod ranks;
mod rope;
mod sample;
mod skinny;

pub use batch::StagedBatch;
pub use buffer::Buffer;
pub use matrix::Matrix;
pub use ranks::MAX_RANKS;
pub use sample::Choices;

use crate::sampling::Samplers;
use crate::{
    Activation, AttentionParams, Backend, Batch, BatchLimits, Chosen, DType, DeviceMemory, Error, GraphKey,
    Heads, KvLayer, MatrixPart, MoeParams, MoeScratch, Norm, OutProduct, Profiler, QkvPrep, Rank, Result,
    Tensor,
};
use buffer::Scratch;
use driver::{DevicePtr, Driver, Function, Graph, Grid};
use gemm::{Input, Output};
use kernels::Kernels;
use matmul::Way;
use matrix::Codebooks;
use matvec::Epilogue;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// Largest head that the attention kernels hold.
const MAX_HEAD_DIM: usize = 256;

/// Recorded sequences of operations at most. Steps of guesses have many shapes, most of which come up rarely; when there are so many,
/// all are recorded anew.
const MAX_GRAPHS: usize = 512;

/// How a GPU is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaOptions {
    /// Number of the GPU, as the driver counts.
    pub device: usize,
    /// Whether every sum is taken in one order, so that a row's result does not depend on the batch, and nothing is rounded to fewer
    /// bits than it is stored in. Slower.
    pub exact: bool,
}

/// One NVIDIA GPU, or one queue of its work: threads may use it at the same time, and each gets what it would get alone.
pub struct Cuda {
    // Freed before the driver goes: graphs, then memory.
    graphs: Mutex<HashMap<(ThreadId, GraphKey), Recorded>>,
    scratch: Scratch,
    codebooks: Codebooks,
    kernels: Kernels,
    driver: Arc<dyn Driver>,
    exact: bool,
    profiler: Profiler,
    product_before: matvec::ProductBefore,
    /// Where several GPUs share a model.
    member: Option<ranks::Member>,
}

/// What is known about a sequence of operations that repeats.
enum Recorded {
    /// It ran once, which made all scratch memory that it wants.
    Ran,
    /// It can be replayed.
    Graph(Graph),
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cuda {
    /// Opens the driver and a GPU.
    ///
    /// Errors: `Device` with the reason in one line: no driver, one that is too old, no such GPU, a GPU that is too old.
    pub fn new(options: CudaOptions) -> Result<Self> {
        Self::with_driver(Self::open_driver(options.device)?, options.exact)
    }

    /// The GPU's driver by itself, which tests put others in front of.
    ///
    /// Errors: as [`Cuda::new`].
    pub fn open_driver(device: usize) -> Result<Arc<dyn Driver>> {
        Ok(Arc::new(gpu::Gpu::open(device)?))
    }

    /// The backend on another driver than the GPU's; for tests.
    pub fn with_driver(driver: Arc<dyn Driver>, exact: bool) -> Result<Self> {
        Self::with_member(driver, exact, None)
    }

    fn with_member(driver: Arc<dyn Driver>, exact: bool, member: Option<ranks::Member>) -> Result<Self> {
        Ok(Self {
            graphs: Mutex::default(),
            scratch: Scratch::default(),
            codebooks: Codebooks::default(),
            kernels: Kernels::load(&*driver)?,
            driver,
            exact,
            profiler: Profiler::default(),
            product_before: matvec::ProductBefore::default(),
            member,
        })
    }

    fn forget_all<K>(&self, graphs: &mut HashMap<K, Recorded>) {
        for (_, recorded) in graphs.drain() {
            if let Recorded::Graph(graph) = recorded {
                // SAFETY: the graph is out of the table. The driver waits for its last run.
                unsafe { self.driver.forget(graph) }
            }
        }
    }

    /// Adds a block's last product to `y`: what `multiply` writes or adds, as it is told, or every rank's.
    fn add_product(
        &self,
        y: &mut Tensor<Self>,
        out: OutProduct<'_, Self>,
        multiply: impl FnOnce(Output, Epilogue) -> Result<()>,
    ) -> Result<()> {
        assert_eq!((out.x.row_len(), y.row_len(), out.x.rows()), (out.w.n_in, out.w.n_out, y.rows()));
        if !out.is_part {
            return multiply(Output::Floats(y.ptr()), Epilogue::Add);
        }
        assert_eq!(out.product.shape(), y.shape());
        multiply(Output::Floats(out.product.ptr()), Epilogue::Store)?;
        ranks::all_reduce_add(self, y, out.product)
    }

    /// The same for tiles `x` of many rows.
    fn multiply_tiles(&self, y: &mut Tensor<Self>, x: DevicePtr, out: OutProduct<'_, Self>) -> Result<()> {
        let (w, bias, m) = (out.w, out.bias, y.rows());
        self.add_product(y, out, |y, epilogue| gemm::matmul(self, y, Input::Tiles(x), w, bias, m, epilogue))
    }

    /// Enqueues a kernel with its arguments.
    ///
    /// # Safety
    /// `args` is the struct that the kernel takes, and its pointers are valid for what the kernel reads and writes.
    unsafe fn launch<A: Copy>(&self, f: Function, blocks: [usize; 3], threads: u32, args: &A) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { self.launch_shared(f, blocks, threads, 0, args) }
    }

    /// As `launch`, with dynamic shared memory.
    ///
    /// # Safety
    /// As for `launch`; `shared_bytes` is what the kernel needs.
    unsafe fn launch_shared<A: Copy>(
        &self,
        f: Function,
        blocks: [usize; 3],
        threads: u32,
        shared_bytes: usize,
        args: &A,
    ) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { self.launch_clusters(f, blocks, 1, threads, shared_bytes, args) }
    }

    /// As `launch_shared`, with `cluster` neighbouring blocks that see each other's shared memory.
    ///
    /// # Safety
    /// As for `launch_shared`.
    unsafe fn launch_clusters<A: Copy>(
        &self,
        f: Function,
        blocks: [usize; 3],
        cluster: usize,
        threads: u32,
        shared_bytes: usize,
        args: &A,
    ) -> Result<()> {
        if blocks.contains(&0) {
            return Ok(());
        }
        let blocks = blocks.map(|n| u32::try_from(n).expect("a grid's blocks fit 32 bits"));
        assert!(blocks[1] < 1 << 16 && blocks[2] < 1 << 16, "a grid of {blocks:?}");
        let grid = Grid { blocks, threads, shared_bytes: shared_bytes as u32, cluster: cluster as u32 };
        self.product_before.forget();
        // SAFETY: by this function's contract.
        unsafe { self.driver.launch(f, grid, std::ptr::from_ref(args).cast()) }
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.forget_all(&mut lock(&self.graphs));
    }
}

impl Backend for Cuda {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Batch = StagedBatch;
    type Choices = Choices;

    fn name(&self) -> &'static str {
        "cuda"
    }

    fn describe(&self) -> String {
        format!("{}{}", self.driver.describe(), if self.exact { ", exact" } else { "" })
    }

    fn memory(&self) -> DeviceMemory {
        self.driver.memory()
    }

    fn memory_bandwidth(&self) -> Option<u64> {
        self.driver.memory_bandwidth()
    }

    fn rank(&self) -> Rank {
        self.member.as_ref().map_or(Rank::ALONE, |m| m.rank)
    }

    fn is_exact(&self) -> bool {
        self.exact
    }

    fn scratch_bytes(&self) -> usize {
        // Slabs of decoded weights, activations in 16 bits, sums that blocks leave to others, kernels.
        if self.driver.is_hopper() { 872 << 20 } else { 384 << 20 }
    }

    fn check_heads(&self, heads: Heads) -> Result<()> {
        let dim = heads.head_dim;
        if (1..=MAX_HEAD_DIM).contains(&dim) {
            return Ok(());
        }
        Err(Error::UnsupportedSize {
            op: "attention",
            what: format!("heads of {dim} elements; up to {MAX_HEAD_DIM} can be"),
            backend: self.name(),
        })
    }

    fn zeros(&self, dtype: DType, shape: &[usize]) -> Result<Tensor<Self>> {
        Ok(Tensor::from_buffer(Buffer::zeros(&self.driver, dtype, shape)?, dtype, shape))
    }

    fn upload(&self, shape: &[usize], values: &[f32]) -> Result<Tensor<Self>> {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "{shape:?}");
        let mut t = self.zeros(DType::F32, shape)?;
        t.buffer_mut().write(0, bytemuck::cast_slice(values))?;
        Ok(t)
    }

    fn download(&self, out: &mut [f32], x: &Tensor<Self>) -> Result<()> {
        assert_eq!(out.len(), x.len());
        // SAFETY: the tensor holds this many floats.
        unsafe { self.driver.read(bytemuck::cast_slice_mut(out), x.ptr()) }
    }

    fn matrix(&self, parts: Vec<MatrixPart>) -> Result<Matrix> {
        Matrix::new(self, parts)
    }

    fn matrix_bytes(&self, w: &Matrix) -> usize {
        w.bytes()
    }

    fn new_batch(&self, limits: BatchLimits) -> Result<StagedBatch> {
        StagedBatch::new(&self.driver, limits)
    }

    fn stage(&self, staged: &mut StagedBatch, batch: &Batch) -> Result<()> {
        staged.set(self, batch)
    }

    fn kv_layer(
        &self,
        dtype: DType,
        n_blocks: usize,
        block_size: usize,
        heads: Heads,
    ) -> Result<KvLayer<Self>> {
        self.check_heads(heads)?;
        self.kernels.of_cache(dtype)?;
        let shape = [n_blocks, heads.n_kv_heads, block_size, heads.head_dim];
        Ok(KvLayer { k: self.zeros(dtype, &shape)?, v: self.zeros(dtype, &shape)? })
    }

    fn copy_block(&self, kv: &mut KvLayer<Self>, to: usize, from: usize) -> Result<()> {
        for t in [&mut kv.k, &mut kv.v] {
            let bytes = t.dtype().bytes_for(t.row_len()).expect("a cache was made of whole blocks");
            assert!(to < t.rows() && from < t.rows(), "block {from} over {to} of {}", t.rows());
            if to != from {
                let start = t.buffer().ptr();
                // SAFETY: both blocks are in the cache, and they differ.
                unsafe { self.driver.copy(start.offset(to * bytes), start.offset(from * bytes), bytes)? };
            }
        }
        Ok(())
    }

    fn embed(&self, y: &mut Tensor<Self>, table: &Matrix, batch: &StagedBatch, scale: f32) -> Result<()> {
        embed::embed(self, y, table, batch, scale)
    }

    fn add_positions(&self, x: &mut Tensor<Self>, table: &Tensor<Self>, batch: &StagedBatch) -> Result<()> {
        assert_eq!(x.rows(), batch.n_tokens());
        elementwise::rows(self, self.kernels.add_rows, x, table, batch.positions())
    }

    fn rope_angles(
        &self,
        y: &mut Tensor<Self>,
        f: &Tensor<Self>,
        batch: &StagedBatch,
        scale: f32,
    ) -> Result<()> {
        rope::angles(self, y, f, batch, scale)
    }

    fn norm(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, norm: &Norm<Self>) -> Result<()> {
        assert_eq!(y.shape(), x.shape());
        norm::norm(self, y.ptr(), x, norm, false)
    }

    fn norm_in_place(&self, x: &mut Tensor<Self>, norm: &Norm<Self>) -> Result<()> {
        norm::norm(self, x.ptr(), x, norm, false)
    }

    fn add_norm(&self, y: &mut Tensor<Self>, x: &mut Tensor<Self>, norm: &Norm<Self>) -> Result<()> {
        assert_eq!(y.shape(), x.shape());
        norm::norm(self, y.ptr(), x, norm, true)
    }

    fn add(&self, y: &mut Tensor<Self>, x: &Tensor<Self>) -> Result<()> {
        assert_eq!(y.shape(), x.shape());
        elementwise::each(self, self.kernels.add, y, Some(x), None, 0.0)
    }

    fn matmul(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        w: &Matrix,
        bias: Option<&Tensor<Self>>,
    ) -> Result<()> {
        matmul::matmul(self, y, x, w, bias)
    }

    fn norm_matmul(
        &self,
        y: &mut Tensor<Self>,
        normed: &mut Tensor<Self>,
        x: &Tensor<Self>,
        norm: &Norm<Self>,
        w: &Matrix,
        bias: Option<&Tensor<Self>>,
    ) -> Result<()> {
        assert_eq!((x.row_len(), y.row_len(), x.rows()), (w.n_in, w.n_out, y.rows()));
        let store = Epilogue::Store;
        match matmul::way(self, w, x.rows()) {
            Way::Matvec(plan) if matvec::can_fuse(norm, w) => {
                plan.run(self, y.ptr(), x.ptr(), Some(norm), bias, store)
            }
            Way::Few(plan) if matvec::can_fuse(norm, w) => {
                plan.run(self, y.ptr(), x.ptr(), Some(norm), bias, store)
            }
            Way::Skinny(plan) if matvec::can_fuse(norm, w) => {
                plan.run(self, Output::Floats(y.ptr()), Input::Floats(x.ptr(), Some(norm)), bias, store)
            }
            Way::Gemm => {
                let (y, x, m) = (Output::Floats(y.ptr()), Input::Floats(x.ptr(), Some(norm)), x.rows());
                gemm::matmul(self, y, x, w, bias, m, store)
            }
            _ => {
                self.norm(normed, x, norm)?;
                self.matmul(y, normed, w, bias)
            }
        }
    }

    fn matmul_add(&self, y: &mut Tensor<Self>, out: OutProduct<'_, Self>) -> Result<()> {
        let (x, w, bias, m) = (out.x.ptr(), out.w, out.bias, y.rows());
        match matmul::way(self, w, m) {
            Way::Matvec(plan) if out.is_part && plan.can_add_ranks(self) => {
                self.member.as_ref().map_or(Ok(()), ranks::Member::check)?;
                assert_eq!((out.x.row_len(), y.row_len(), out.x.rows()), (w.n_in, w.n_out, m));
                plan.run(self, y.ptr(), x, None, bias, Epilogue::AddRanks)
            }
            Way::Matvec(plan) => {
                self.add_product(y, out, |y, epilogue| plan.run(self, y.ptr(), x, None, bias, epilogue))
            }
            Way::Few(plan) => {
                self.add_product(y, out, |y, epilogue| plan.run(self, y.ptr(), x, None, bias, epilogue))
            }
            Way::Skinny(plan) => self
                .add_product(y, out, |y, epilogue| plan.run(self, y, Input::Floats(x, None), bias, epilogue)),
            Way::Gemm => self.add_product(y, out, |y, epilogue| {
                gemm::matmul(self, y, Input::Floats(x, None), w, bias, m, epilogue)
            }),
            Way::Plain => {
                self.matmul(out.product, out.x, w, bias)?;
                match out.is_part {
                    true => self.all_reduce_add(y, out.product),
                    false => self.add(y, out.product),
                }
            }
        }
    }

    fn norm_gated_matmul(
        &self,
        y: &mut Tensor<Self>,
        normed: &mut Tensor<Self>,
        gate_up: &mut Tensor<Self>,
        x: &Tensor<Self>,
        norm: &Norm<Self>,
        w: &Matrix,
        activation: Activation,
    ) -> Result<()> {
        assert_eq!((x.row_len(), 2 * y.row_len(), x.rows()), (w.n_in, w.n_out, y.rows()));
        let gate = Epilogue::Gate(activation);
        match matmul::gated_way(self, w, x.rows()) {
            Way::Matvec(plan) if matvec::can_fuse(norm, w) => {
                plan.run(self, y.ptr(), x.ptr(), Some(norm), None, gate)
            }
            Way::Few(plan) if matvec::can_fuse(norm, w) => {
                plan.run(self, y.ptr(), x.ptr(), Some(norm), None, gate)
            }
            Way::Skinny(plan) if matvec::can_fuse(norm, w) => {
                plan.run(self, Output::Floats(y.ptr()), Input::Floats(x.ptr(), Some(norm)), None, gate)
            }
            Way::Gemm => {
                let (y, x, m) = (Output::Floats(y.ptr()), Input::Floats(x.ptr(), Some(norm)), x.rows());
                gemm::matmul(self, y, x, w, None, m, gate)
            }
            _ => {
                self.norm(normed, x, norm)?;
                self.matmul(gate_up, normed, w, None)?;
                self.gated(y, gate_up, activation)
            }
        }
    }

    fn store_kv(
        &self,
        qkv: &mut Tensor<Self>,
        kv: &mut KvLayer<Self>,
        batch: &StagedBatch,
        prep: QkvPrep<'_, Self>,
    ) -> Result<()> {
        rope::store_kv(self, qkv, kv, batch, &prep, 0)
    }

    fn attention(
        &self,
        y: &mut Tensor<Self>,
        qkv: &Tensor<Self>,
        kv: &KvLayer<Self>,
        batch: &StagedBatch,
        params: &AttentionParams,
    ) -> Result<()> {
        attention::attention(self, y, qkv, kv, batch, params)
    }

    fn store_and_attend(
        &self,
        y: &mut Tensor<Self>,
        qkv: &mut Tensor<Self>,
        kv: &mut KvLayer<Self>,
        batch: &StagedBatch,
        prep: QkvPrep<'_, Self>,
        params: &AttentionParams,
    ) -> Result<()> {
        if decode_attention::can(self, kv, batch, params) {
            return self.timed("attention", || {
                decode_attention::attention(self, y, 0, qkv, kv, batch, prep, params)
            });
        }
        if prefill_attention::can(self, kv, batch, params) {
            let y = Output::Floats(y.ptr());
            return prefill_attention::store_and_attend(self, y, qkv, kv, batch, &prep, params);
        }
        self.timed("store_kv", || self.store_kv(qkv, kv, batch, prep))?;
        self.timed("attention", || self.attention(y, qkv, kv, batch, params))
    }

    fn attention_block(
        &self,
        y: &mut Tensor<Self>,
        qkv: &mut Tensor<Self>,
        kv: &mut KvLayer<Self>,
        batch: &StagedBatch,
        prep: QkvPrep<'_, Self>,
        params: &AttentionParams,
        out: OutProduct<'_, Self>,
    ) -> Result<()> {
        if let Way::Skinny(o) = matmul::way(self, out.w, y.rows())
            && let Some(x) = o.packed_tiles_in(out.x)
            && decode_attention::can(self, kv, batch, params)
            && decode_attention::can_tiles(self, batch, params.heads)
        {
            let attend =
                || decode_attention::attention(self, out.x, o.tile_rows(), qkv, kv, batch, prep, params);
            self.timed("attention", attend)?;
            let (x, bias) = (Input::Tiles(x), out.bias);
            return self.timed("o_proj", || {
                self.add_product(y, out, |y, epilogue| o.run(self, y, x, bias, epilogue))
            });
        }
        let tiles = gemm::tiles_for(self, out.w, out.x);
        let Some(x) = tiles.filter(|_| prefill_attention::can(self, kv, batch, params)) else {
            self.store_and_attend(out.x, qkv, kv, batch, prep, params)?;
            return self.timed("o_proj", || self.matmul_add(y, out));
        };
        prefill_attention::store_and_attend(self, Output::Tiles(x), qkv, kv, batch, &prep, params)?;
        self.timed("o_proj", || self.multiply_tiles(y, x, out))
    }

    fn gated_block(
        &self,
        y: &mut Tensor<Self>,
        normed: &mut Tensor<Self>,
        gate_up: &mut Tensor<Self>,
        norm: &Norm<Self>,
        w: &Matrix,
        activation: Activation,
        out: OutProduct<'_, Self>,
    ) -> Result<()> {
        let m = y.rows();
        assert_eq!((y.row_len(), 2 * out.x.row_len(), m), (w.n_in, w.n_out, out.x.rows()));
        let gate = Epilogue::Gate(activation);
        let of_norm = Input::Floats(y.ptr(), Some(norm));
        if let (Way::Skinny(_), Way::Skinny(down)) =
            (matmul::gated_way(self, w, m), matmul::way(self, out.w, m))
            && let Some(x) = down.tiles_in(out.x)
            && let Some(plan) = skinny::tiles_plan(self, w, &down, activation)
            && matvec::can_fuse(norm, w)
        {
            self.timed("gate_up_proj", || plan.run(self, Output::Tiles(x), of_norm, None, gate))?;
            let (x, bias) = (Input::Tiles(x), out.bias);
            return self.timed("down_proj", || {
                self.add_product(y, out, |y, epilogue| down.run(self, y, x, bias, epilogue))
            });
        }
        let can = matches!(matmul::gated_way(self, w, m), Way::Gemm) && gemm::can_gate_tiles(w, activation);
        let Some(x) = gemm::tiles_for(self, out.w, out.x).filter(|_| can) else {
            self.timed("gate_up_proj", || {
                self.norm_gated_matmul(out.x, normed, gate_up, y, norm, w, activation)
            })?;
            return self.timed("down_proj", || self.matmul_add(y, out));
        };
        self.timed("gate_up_proj", || gemm::matmul(self, Output::Tiles(x), of_norm, w, None, m, gate))?;
        self.timed("down_proj", || self.multiply_tiles(y, x, out))
    }

    fn gated(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, f: Activation) -> Result<()> {
        assert_eq!((x.row_len(), x.rows()), (2 * y.row_len(), y.rows()));
        elementwise::each(self, self.kernels.gated, y, Some(x), Some(f), 0.0)
    }

    fn activate(&self, x: &mut Tensor<Self>, f: Activation) -> Result<()> {
        elementwise::each(self, self.kernels.activate, x, None, Some(f), 0.0)
    }

    fn moe(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        router: &Tensor<Self>,
        gate_up: &Matrix,
        down: &Matrix,
        params: &MoeParams,
        scratch: &mut MoeScratch<Self>,
    ) -> Result<()> {
        moe::moe(self, y, x, router, gate_up, down, params, scratch)
    }

    fn select_rows(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, batch: &StagedBatch) -> Result<()> {
        assert_eq!(y.rows(), batch.n_logits());
        elementwise::rows(self, self.kernels.select_rows, y, x, batch.logit_tokens())
    }

    fn choose_likeliest(&self, batch: &mut StagedBatch, logits: &Tensor<Self>) -> Result<()> {
        sample::likeliest(self, batch, logits)
    }

    fn stage_samplers(&self, batch: &mut StagedBatch, samplers: &Samplers) -> Result<()> {
        batch.set_samplers(self, samplers)
    }

    fn sample(&self, batch: &mut StagedBatch, logits: &mut Tensor<Self>) -> Result<()> {
        sample::sample(self, batch, logits)
    }

    fn fetch_choices(&self, batch: &mut StagedBatch) -> Result<Choices> {
        sample::fetch(&*self.driver, batch)
    }

    fn wait_for_choices(&self, choices: Choices, out: &mut Vec<Chosen>) -> Result<()> {
        sample::wait(&*self.driver, choices, out)
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn profiler(&self) -> Option<&Profiler> {
        Some(&self.profiler)
    }

    fn all_reduce(&self, x: &mut Tensor<Self>) -> Result<()> {
        ranks::all_reduce(self, x)
    }

    fn all_reduce_add(&self, y: &mut Tensor<Self>, x: &mut Tensor<Self>) -> Result<()> {
        ranks::all_reduce_add(self, y, x)
    }

    fn all_gather(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, starts: &[usize]) -> Result<()> {
        ranks::all_gather(self, y, x, starts)
    }

    fn leave(&self) {
        if let Some(member) = &self.member {
            member.leave();
        }
    }

    fn softcap(&self, x: &mut Tensor<Self>, cap: f32) -> Result<()> {
        elementwise::each(self, self.kernels.softcap, x, None, None, cap)
    }

    fn scale_columns(&self, x: &mut Tensor<Self>, factors: &Tensor<Self>) -> Result<()> {
        assert_eq!(x.row_len(), factors.len());
        elementwise::each(self, self.kernels.scale_columns, x, Some(factors), None, 0.0)
    }

    fn scale(&self, x: &mut Tensor<Self>, factor: f32) -> Result<()> {
        elementwise::each(self, self.kernels.scale, x, None, None, factor)
    }

    fn captured<E: From<Error>>(
        &self,
        key: GraphKey,
        mut f: impl FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if let Some(member) = &self.member {
            member.check()?;
        }
        // A graph uses the scratch memory of the thread that recorded it.
        let key = (thread::current().id(), key);
        let mut graphs = lock(&self.graphs);
        if graphs.len() >= MAX_GRAPHS && !graphs.contains_key(&key) {
            self.forget_all(&mut graphs);
        }
        match graphs.get(&key) {
            None => {
                f()?;
                graphs.insert(key, Recorded::Ran);
            }
            Some(Recorded::Ran) => {
                let mut outcome = Ok(());
                let graph = self.driver.record(&mut || outcome = f());
                match (outcome, graph) {
                    (Ok(()), Ok(Some(graph))) => {
                        // SAFETY: the caller keeps what its operations use for as long as it uses this key.
                        let replayed = unsafe { self.driver.replay(&graph) };
                        graphs.insert(key, Recorded::Graph(graph));
                        replayed?;
                    }
                    (Ok(()), Ok(None)) => f()?,
                    (Ok(()), Err(error)) => return Err(error.into()),
                    (Err(error), graph) => {
                        if let Ok(Some(graph)) = graph {
                            // SAFETY: the graph lacks a part and was never used.
                            unsafe { self.driver.forget(graph) };
                        }
                        return Err(error);
                    }
                }
            }
            // SAFETY: as above.
            Some(Recorded::Graph(graph)) => unsafe { self.driver.replay(graph)? },
        }
        Ok(())
    }

    fn forget(&self, owner: u64) {
        let gone = lock(&self.graphs).extract_if(|(_, key), _| key.owner == owner).collect::<Vec<_>>();
        for (_, recorded) in gone {
            if let Recorded::Graph(graph) = recorded {
                // SAFETY: the graph is out of the table. The driver waits for its last run.
                unsafe { self.driver.forget(graph) }
            }
        }
    }

    fn synchronize(&self) -> Result<()> {
        self.driver.synchronize()?;
        self.member.as_ref().map_or(Ok(()), ranks::Member::check)
    }
}
