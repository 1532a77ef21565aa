//! A device: its memory, and what it keeps there.

use crate::{
    Batch, BatchLimits, CacheShape, DType, DeltaShape, ExpertsKind, Heads, LatentShape, Result, SsmShape,
    Tensor,
};
use bytes::Bytes;
use std::sync::Arc;

/// One weight matrix, or a stack of one per expert, as it stands in a file.
#[derive(Clone, Debug)]
pub struct MatrixPart {
    /// The tensor that it is, or is a part of.
    pub name: Arc<str>,
    /// Element type.
    pub dtype: DType,
    /// Experts; 1 for a plain matrix.
    pub n_experts: usize,
    /// Output features (rows).
    pub n_out: usize,
    /// Input features (columns).
    pub n_in: usize,
    /// Row-major `[n_experts, n_out, n_in]`; may be a range of a mapped file, with no alignment.
    pub bytes: Bytes,
}

/// Keys and values of one layer, in blocks.
#[derive(Debug)]
pub struct KvLayer<B: Device> {
    /// `[n_blocks, n_kv_heads, block_size, head_dim]`, so that one head's pass over a block is one contiguous read. In which order
    /// the numbers of one head lie in its part of a block is the backend's own business.
    pub k: Tensor<B>,
    /// As `k`. `None`: a value is the beginning of its key (latent attention).
    pub v: Option<Tensor<B>>,
}

impl<B: Device> KvLayer<B> {
    /// What values are read from.
    pub fn values(&self) -> &Tensor<B> {
        self.v.as_ref().unwrap_or(&self.k)
    }

    /// All tensors of the layer.
    pub fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Tensor<B>> {
        std::iter::once(&mut self.k).chain(&mut self.v)
    }
}

/// Recurrent state of one layer, in slots: slot `s` of each tensor belongs to one sequence at one position.
#[derive(Debug)]
pub struct StateLayer<B: Device> {
    /// Inputs of the convolution at the last tokens, oldest first: `[n_slots, width - 1, n_channels]`.
    pub conv: Tensor<B>,
    /// A matrix for each head, `[n_slots, n_v_heads, k_dim, v_dim]` of the delta rule, `[n_slots, n_heads, state_dim, head_dim]` of a
    /// state-space scan; `None` for a layer that only convolves. In which order the numbers of one head lie is the backend's own business.
    pub matrix: Option<Tensor<B>>,
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Not in use by anybody.
    pub free: usize,
    /// All.
    pub total: usize,
}

/// A device that holds weights, activations and caches.
///
/// Shapes that contradict each other are a mistake of the caller and panic with both shapes, here and in all operations: everything that
/// comes from a file was checked when it was loaded.
pub trait Device: Sized + Send + Sync + 'static {
    /// Memory of a tensor.
    type Buffer: Send + Sync;
    /// A weight matrix in the layout that the device's matmuls read.
    type Matrix: Send + Sync;
    /// A step's batch where the device can read it.
    type Batch: Send;
    /// Tokens that were chosen, on their way to the host.
    type Choices: Send;
    /// Rows of activations as matrices read them, in memory that something else owns.
    type Operand: Copy + Send;

    /// Short name, such as `cpu`.
    fn name(&self) -> &'static str;

    /// The device in words, for people: model, instruction set or compute capability, threads.
    fn describe(&self) -> String;

    /// Memory of the device now.
    fn memory(&self) -> DeviceMemory;

    /// Bytes per second that the device's memory delivers by its clock and width, where the device tells them.
    fn memory_bandwidth(&self) -> Option<u64> {
        None
    }

    /// Whether several devices that share a model have the bits of one: each computes whole sums, and they join their outputs.
    fn joins_exactly(&self) -> bool {
        false
    }

    /// Memory that operations take besides their tensors, about: what does not fit should be refused before it is loaded.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// Whether attention with such heads can run here.
    ///
    /// Errors: `UnsupportedSize`.
    fn check_heads(&self, _heads: Heads) -> Result<()> {
        Ok(())
    }

    /// Whether the delta rule with such heads can run here.
    ///
    /// Errors: `UnsupportedSize`.
    fn check_delta_rule(&self, _shape: &DeltaShape) -> Result<()> {
        Ok(())
    }

    /// Whether latent attention of such sizes can run here.
    ///
    /// Errors: `UnsupportedSize`.
    fn check_latent(&self, _shape: &LatentShape) -> Result<()> {
        Ok(())
    }

    /// Whether a state-space scan with such heads can run here.
    ///
    /// Errors: `UnsupportedSize`.
    fn check_ssm_scan(&self, _shape: &SsmShape) -> Result<()> {
        Ok(())
    }

    /// Whether such a mixture of experts can run here.
    ///
    /// Errors: `UnsupportedSize`.
    fn check_experts(&self, _kind: &ExpertsKind) -> Result<()> {
        Ok(())
    }

    /// Whether operations only enqueue work for the device. Their failure may show when something is waited for.
    fn is_asynchronous(&self) -> bool {
        false
    }

    /// Waits until everything enqueued so far is done and reports its failure.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    /// A tensor of zeros.
    fn zeros(&self, dtype: DType, shape: &[usize]) -> Result<Tensor<Self>>;

    /// An `F32` tensor with these values.
    fn upload(&self, shape: &[usize], values: &[f32]) -> Result<Tensor<Self>>;

    /// Reads an `F32` tensor back; `out` has its length.
    fn download(&self, out: &mut [f32], x: &Tensor<Self>) -> Result<()>;

    /// One matrix from parts stacked along their outputs: `[sum of n_out, n_in]`. All parts have one `n_in` and `n_experts`.
    ///
    /// Errors: `WrongSize` or `PartialBlock` where a part's bytes are not what its type and shape say.
    fn matrix(&self, parts: Vec<MatrixPart>) -> Result<Self::Matrix>;

    /// A matrix of which only rows are looked up ([`Ops::embed`](crate::Ops::embed)), left in the mapped file where the device reads it.
    ///
    /// Errors: as [`Device::matrix`].
    fn table(&self, part: MatrixPart) -> Result<Self::Matrix> {
        self.matrix(vec![part])
    }

    /// Bytes of the device's memory that [`Device::matrix`] takes for a part of such a type and of `[n_experts, n_out, n_in]`, known before
    /// it is made; 0 where it stays in the mapped file.
    fn matrix_memory(&self, dtype: DType, [n_experts, n_out, n_in]: [usize; 3]) -> usize {
        let row_bytes = dtype.bytes_for(n_in).unwrap_or(usize::MAX);
        n_experts.saturating_mul(n_out).saturating_mul(row_bytes)
    }

    /// The same of [`Device::table`].
    fn table_memory(&self, dtype: DType, shape: [usize; 3]) -> usize {
        self.matrix_memory(dtype, shape)
    }

    /// Bytes of the matrix: on the device, or where it reads them from a mapped file.
    fn matrix_bytes(&self, w: &Self::Matrix) -> usize;

    /// Keys and values for `n_blocks · block_size` tokens.
    fn kv_layer(
        &self,
        dtype: DType,
        n_blocks: usize,
        block_size: usize,
        heads: Heads,
    ) -> Result<KvLayer<Self>> {
        let shape = [n_blocks, heads.n_kv_heads, block_size, heads.head_dim];
        Ok(KvLayer { k: self.zeros(dtype, &shape)?, v: Some(self.zeros(dtype, &shape)?) })
    }

    /// Keys of latent attention, whose values are a part of them, for `n_blocks · block_size` tokens.
    fn latent_layer(
        &self,
        dtype: DType,
        n_blocks: usize,
        block_size: usize,
        shape: &LatentShape,
    ) -> Result<KvLayer<Self>> {
        Ok(KvLayer { k: self.zeros(dtype, &[n_blocks, 1, block_size, shape.key_dim()])?, v: None })
    }

    /// Copies one block of keys and values over another.
    fn copy_block(&self, kv: &mut KvLayer<Self>, to: usize, from: usize) -> Result<()>;

    /// What the bytes of caches mean: where they were computed, as far as results depend on it, and how they lie. A device can go on from
    /// the bytes of another of the same format.
    fn cache_format(&self) -> String {
        self.describe()
    }

    /// Bytes of one row (outermost dimension) of a tensor.
    fn row_bytes(&self, x: &Tensor<Self>) -> usize {
        x.dtype().bytes_for(x.row_len()).expect("rows are whole blocks")
    }

    /// Waits for everything enqueued so far, and reads the bytes of one row back; `out` has [`Device::row_bytes`].
    fn read_row(&self, out: &mut [u8], x: &Tensor<Self>, row: usize) -> Result<()>;

    /// Writes the bytes of one row, as [`Device::read_row`] read them.
    fn write_row(&self, x: &mut Tensor<Self>, row: usize, bytes: &[u8]) -> Result<()>;

    /// Room for a batch within `limits` that names the blocks, positions and slots of `cache`.
    fn new_batch(&self, limits: BatchLimits, cache: CacheShape) -> Result<Self::Batch>;

    /// Hands a step's batch to the device.
    ///
    /// Errors: `BatchTooLarge`, or `InvalidBatch` where it contradicts itself or names what does not exist.
    fn stage(&self, staged: &mut Self::Batch, batch: &Batch) -> Result<()>;
}
