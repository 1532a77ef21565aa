//! The GPU's implementation of the backend's traits; `blocks.rs` has the blocks of a layer.

use super::attention::AttentionInput;
use super::batch::StagedBatch;
use super::common::Tiles;
use super::driver::{Buffer, Cuda, Mode};
use super::matmul::{self, Matrix};
use super::sampling::{self, Choices};
use super::{attention, elementwise, experts, norm, ranks, recurrent};
use crate::sampling::Samplers;
use crate::{
    Activation, AttentionParams, AttentionTemperature, Batch, BatchLimits, CacheShape, Capture, Chosen,
    Collectives, DType, DeltaInput, DeltaShape, Device, DeviceMemory, Error, Experts, ExpertsKind, GatedNorm,
    GraphKey, Heads, KvLayer, LatentPrep, LatentShape, MatrixPart, MoeScratch, Norm, Ops, Pooling, Profile,
    Profiler, QkvPrep, Rank, Result, ShortConv, SsmInput, SsmShape, Tensor,
};

impl Device for Cuda {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Batch = StagedBatch;
    type Choices = Choices;
    type Operand = Tiles;

    fn name(&self) -> &'static str {
        "cuda"
    }

    fn describe(&self) -> String {
        format!(
            "{}{}",
            self.driver.describe(),
            match self.mode {
                Mode::Fast => "",
                Mode::Deterministic => ", deterministic",
                Mode::Exact => ", exact",
            }
        )
    }

    fn memory(&self) -> DeviceMemory {
        self.driver.memory()
    }

    fn memory_bandwidth(&self) -> Option<u64> {
        self.driver.memory_bandwidth()
    }

    fn joins_exactly(&self) -> bool {
        self.mode != Mode::Fast
    }

    fn scratch_bytes(&self) -> usize {
        // Slabs of decoded weights, activations in 16 bits, sums that blocks leave to others, kernels.
        if self.driver.is_hopper() { 872 << 20 } else { 384 << 20 }
    }

    fn check_heads(&self, heads: Heads) -> Result<()> {
        attention::check_heads(heads)
    }

    fn check_ssm_scan(&self, shape: &SsmShape) -> Result<()> {
        recurrent::check_ssm_scan(shape)
    }

    fn check_delta_rule(&self, shape: &DeltaShape) -> Result<()> {
        recurrent::check_delta_rule(shape)
    }

    fn check_latent(&self, shape: &LatentShape) -> Result<()> {
        attention::check_latent(shape)
    }

    fn check_experts(&self, kind: &ExpertsKind) -> Result<()> {
        experts::check(kind)
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn synchronize(&self) -> Result<()> {
        self.driver.synchronize()?;
        self.check_ranks()
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

    fn matrix_memory(&self, dtype: DType, [n_experts, n_out, n_in]: [usize; 3]) -> usize {
        let row_bytes = matmul::packed_row_bytes(dtype, n_in).or(dtype.bytes_for(n_in)).unwrap_or(usize::MAX);
        n_experts.saturating_mul(n_out).saturating_mul(row_bytes)
    }

    fn matrix_bytes(&self, w: &Matrix) -> usize {
        w.bytes()
    }

    fn kv_layer(
        &self,
        dtype: DType,
        n_blocks: usize,
        block_size: usize,
        heads: Heads,
    ) -> Result<KvLayer<Self>> {
        self.check_heads(heads)?;
        attention::check_cache_type(dtype)?;
        let shape = [n_blocks, heads.n_kv_heads, block_size, heads.head_dim];
        Ok(KvLayer { k: self.zeros(dtype, &shape)?, v: Some(self.zeros(dtype, &shape)?) })
    }

    fn latent_layer(
        &self,
        dtype: DType,
        n_blocks: usize,
        block_size: usize,
        shape: &LatentShape,
    ) -> Result<KvLayer<Self>> {
        self.check_latent(shape)?;
        attention::check_cache_type(dtype)?;
        Ok(KvLayer { k: self.zeros(dtype, &[n_blocks, 1, block_size, shape.key_dim()])?, v: None })
    }

    fn copy_block(&self, kv: &mut KvLayer<Self>, to: usize, from: usize) -> Result<()> {
        for t in kv.tensors_mut() {
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

    fn read_row(&self, out: &mut [u8], x: &Tensor<Self>, row: usize) -> Result<()> {
        let bytes = self.row_bytes(x);
        assert!(out.len() == bytes && row < x.rows(), "{} bytes of row {row} of {x:?}", out.len());
        // SAFETY: the row is in the tensor and has this many bytes.
        unsafe { self.driver.read(out, x.buffer().ptr().offset(row * bytes)) }
    }

    fn write_row(&self, x: &mut Tensor<Self>, row: usize, bytes: &[u8]) -> Result<()> {
        assert_eq!(bytes.len(), self.row_bytes(x), "bytes of a row of {x:?}");
        x.buffer_mut().write(row * bytes.len(), bytes)
    }

    fn new_batch(&self, limits: BatchLimits, cache: CacheShape) -> Result<StagedBatch> {
        StagedBatch::new(&self.driver, limits, cache)
    }

    fn stage(&self, staged: &mut StagedBatch, batch: &Batch) -> Result<()> {
        staged.set(self, batch)
    }
}

impl Ops for Cuda {
    fn embed(&self, y: &mut Tensor<Self>, table: &Matrix, batch: &StagedBatch, scale: f32) -> Result<()> {
        matmul::embed(self, y, table, batch, scale)
    }

    fn add_positions(&self, x: &mut Tensor<Self>, table: &Tensor<Self>, batch: &StagedBatch) -> Result<()> {
        assert_eq!(x.rows(), batch.n_tokens());
        elementwise::rows(self, elementwise::kernels(self).add_rows, x, table, batch.positions())
    }

    fn add_token_types(&self, x: &mut Tensor<Self>, table: &Tensor<Self>, batch: &StagedBatch) -> Result<()> {
        assert_eq!(x.rows(), batch.n_token_types());
        elementwise::rows(self, elementwise::kernels(self).add_rows, x, table, batch.token_types())
    }

    fn scale_by_position(
        &self,
        x: &mut Tensor<Self>,
        n: usize,
        batch: &StagedBatch,
        temperature: AttentionTemperature,
    ) -> Result<()> {
        assert_eq!(x.rows(), batch.n_tokens());
        elementwise::scale_by_position(self, x, n, batch.positions(), temperature)
    }

    fn rope_angles(
        &self,
        y: &mut Tensor<Self>,
        f: &Tensor<Self>,
        batch: &StagedBatch,
        scale: f32,
    ) -> Result<()> {
        attention::angles(self, y, f, batch, scale)
    }

    fn norm(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, norm: &Norm<Self>) -> Result<()> {
        assert_eq!(y.shape(), x.shape());
        norm::norm(self, y.ptr(), x, norm, false)
    }

    fn norm_columns(&self, x: &mut Tensor<Self>, start: usize, norm: &Norm<Self>) -> Result<()> {
        norm::norm_columns(self, x, start, norm)
    }

    fn add(&self, y: &mut Tensor<Self>, x: &Tensor<Self>) -> Result<()> {
        assert_eq!(y.shape(), x.shape());
        elementwise::add(self, y, x)
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

    fn store_kv(
        &self,
        qkv: &mut Tensor<Self>,
        kv: &mut KvLayer<Self>,
        batch: &StagedBatch,
        prep: QkvPrep<'_, Self>,
    ) -> Result<()> {
        attention::store_kv(self, qkv, kv, batch, &prep, 0)
    }

    fn store_latent(
        &self,
        queries: &mut Tensor<Self>,
        q: &Tensor<Self>,
        latent: &Tensor<Self>,
        kv: &mut KvLayer<Self>,
        batch: &StagedBatch,
        prep: LatentPrep<'_, Self>,
    ) -> Result<()> {
        attention::store_latent(self, queries, q, latent, kv, batch, prep)
    }

    fn head_matmul(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, w: &Matrix) -> Result<()> {
        matmul::head_matmul(self, y, x, w)
    }

    fn attention(
        &self,
        y: &mut Tensor<Self>,
        qkv: &Tensor<Self>,
        kv: &KvLayer<Self>,
        batch: &StagedBatch,
        params: &AttentionParams,
        sinks: Option<&Tensor<Self>>,
    ) -> Result<()> {
        attention::attention(self, y, AttentionInput { qkv, kv, batch, params, sinks })
    }

    fn short_conv(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        conv: ShortConv<'_, Self>,
        state: &mut Tensor<Self>,
        batch: &StagedBatch,
    ) -> Result<()> {
        recurrent::short_conv(self, y, x, conv, state, batch)
    }

    fn delta_rule(
        &self,
        y: &mut Tensor<Self>,
        input: DeltaInput<'_, Self>,
        state: &mut Tensor<Self>,
        batch: &StagedBatch,
        shape: &DeltaShape,
    ) -> Result<()> {
        recurrent::delta_rule(self, y, input, state, batch, shape, None)
    }

    fn ssm_scan(
        &self,
        y: &mut Tensor<Self>,
        input: SsmInput<'_, Self>,
        state: &mut Tensor<Self>,
        batch: &StagedBatch,
        shape: &SsmShape,
    ) -> Result<()> {
        recurrent::ssm_scan(self, y, input, state, batch, shape)
    }

    fn gated_norm(
        &self,
        x: &mut Tensor<Self>,
        gate: &Tensor<Self>,
        start: usize,
        norm: GatedNorm<'_, Self>,
    ) -> Result<()> {
        recurrent::gated_norm(self, x, gate, start, norm)
    }

    fn sigmoid_gate(&self, x: &mut Tensor<Self>, gate: &Tensor<Self>) -> Result<()> {
        assert_eq!(x.shape(), gate.shape());
        elementwise::each(self, elementwise::kernels(self).sigmoid_gate, x, Some(gate), None, 0.0)
    }

    fn gated(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, f: Activation) -> Result<()> {
        assert_eq!((x.row_len(), x.rows()), (2 * y.row_len(), y.rows()));
        elementwise::each(self, elementwise::kernels(self).gated, y, Some(x), Some(f), 0.0)
    }

    fn gate_columns(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        start: usize,
        f: Activation,
    ) -> Result<()> {
        elementwise::gate_columns(self, y, x, start, f)
    }

    fn activate(&self, x: &mut Tensor<Self>, f: Activation) -> Result<()> {
        elementwise::each(self, elementwise::kernels(self).activate, x, None, Some(f), 0.0)
    }

    fn moe(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        router: &Tensor<Self>,
        experts: &Experts<'_, Self>,
        scratch: &mut MoeScratch<Self>,
    ) -> Result<()> {
        experts::moe(self, y, x, router, experts, scratch)
    }

    fn softcap(&self, x: &mut Tensor<Self>, cap: f32) -> Result<()> {
        elementwise::each(self, elementwise::kernels(self).softcap, x, None, None, cap)
    }

    fn scale_columns(&self, x: &mut Tensor<Self>, factors: &Tensor<Self>) -> Result<()> {
        assert_eq!(x.row_len(), factors.len());
        elementwise::each(self, elementwise::kernels(self).scale_columns, x, Some(factors), None, 0.0)
    }

    fn add_columns(&self, x: &mut Tensor<Self>, summands: &Tensor<Self>) -> Result<()> {
        assert_eq!(x.row_len(), summands.len());
        elementwise::each(self, elementwise::kernels(self).add_columns, x, Some(summands), None, 0.0)
    }

    fn gate_rows(&self, x: &mut Tensor<Self>, gate: &Tensor<Self>) -> Result<()> {
        assert_eq!((gate.row_len(), gate.rows()), (1, x.rows()));
        elementwise::each(self, elementwise::kernels(self).gate_rows, x, Some(gate), None, 0.0)
    }

    fn scale(&self, x: &mut Tensor<Self>, factor: f32) -> Result<()> {
        elementwise::scale(self, x, factor)
    }

    fn select_rows(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, batch: &StagedBatch) -> Result<()> {
        assert_eq!(y.rows(), batch.n_logits());
        elementwise::rows(self, elementwise::kernels(self).select_rows, y, x, batch.logit_tokens())
    }

    fn select_previous(
        &self,
        y: &mut Tensor<Self>,
        before: &Tensor<Self>,
        here: &Tensor<Self>,
        batch: &StagedBatch,
    ) -> Result<()> {
        assert_eq!((y.rows(), y.rows()), (batch.n_tokens(), batch.n_previous()));
        elementwise::select_previous(self, y, before, here, batch.previous())
    }

    fn pool(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        batch: &StagedBatch,
        pooling: Pooling,
    ) -> Result<()> {
        elementwise::pool(self, y, x, batch.seq_starts(), pooling)
    }

    fn argmax(&self, batch: &mut StagedBatch, logits: &Tensor<Self>) -> Result<()> {
        sampling::argmax(self, batch, logits)
    }

    fn stage_samplers(&self, batch: &mut StagedBatch, samplers: &Samplers) -> Result<()> {
        batch.set_samplers(self, samplers)
    }

    fn sample(&self, batch: &mut StagedBatch, logits: &mut Tensor<Self>) -> Result<()> {
        sampling::sample(self, batch, logits)
    }

    fn fetch_choices(&self, batch: &mut StagedBatch) -> Result<Choices> {
        sampling::fetch(&*self.driver, batch)
    }

    fn wait_for_choices(&self, choices: Choices, out: &mut Vec<Chosen>) -> Result<()> {
        sampling::wait(&*self.driver, choices, out)
    }
}

impl Collectives for Cuda {
    fn rank(&self) -> Rank {
        self.member.as_ref().map_or(Rank::ALONE, |m| m.rank)
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
}

impl Profile for Cuda {
    fn profiler(&self) -> Option<&Profiler> {
        Some(&self.profiler)
    }
}

impl Capture for Cuda {
    fn captured<E: From<Error>>(
        &self,
        key: GraphKey,
        mut f: impl FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.captured_dyn(key, &mut f)
    }

    fn forget(&self, owner: u64) {
        self.forget_graphs(owner);
    }
}
