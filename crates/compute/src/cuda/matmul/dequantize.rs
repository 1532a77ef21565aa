//! Launches that decode rows of weights to floats: the embedding, and slabs for matmuls.

use super::matrix::{Matrix, Part};
use super::packed_types::{PACKED, packed_index};
use super::shape::Layout;
use crate::cuda::batch::StagedBatch;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, kernel_args, kernel_image};
use crate::quant::QUANTS;
use crate::{Result, Tensor};

kernel_args! {
    in "dequantize_args.cuh";

    struct DequantizeArgs {
        /// [n_rows, n], one row per blockIdx.x
        y: DevicePtr as "float*",
        /// rows of `row_bytes`
        w: DevicePtr as "const uint8_t*",
        codebook: DevicePtr as "const void*",
        /// which row of w; null: row blockIdx.x
        rows: DevicePtr as "const uint32_t*",
        /// null, or: which of `chosen` says the row instead, where it is not NONE
        sources: DevicePtr as "const uint32_t*",
        chosen: DevicePtr as "const uint32_t*",
        row_bytes: u64,
        n: u32,
        /// rows of w; an index past them reads the last
        n_w_rows: u32,
        scale: f32,
    }
}

/// Kernels of dequantize.cu.
pub(in crate::cuda) struct Kernels {
    /// Indexed by element type.
    blocks: Vec<Kernel<DequantizeArgs>>,
    /// In the order of [`PACKED`].
    packed: Vec<Kernel<DequantizeArgs>>,
}

impl Kernels {
    pub(in crate::cuda) fn load(driver: &dyn Driver) -> Result<Self> {
        let image = kernel_image!(dequantize);
        let blocks = QUANTS.iter().map(|s| image.kernel(driver, &format!("dequantize_{}", s.name), 0));
        let packed =
            PACKED.iter().map(|t| image.kernel(driver, &format!("dequantize_Packed_{}", t.dtype), 0));
        Ok(Self { blocks: blocks.collect::<Result<_>>()?, packed: packed.collect::<Result<_>>()? })
    }

    fn get(&self, part: &Part) -> Kernel<DequantizeArgs> {
        match part.shape.layout {
            Layout::Blocks => self.blocks[part.shape.dtype as usize],
            Layout::Packed => self.packed[packed_index(part.shape.dtype)],
        }
    }
}

pub(in crate::cuda) fn embed(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    table: &Matrix,
    batch: &StagedBatch,
    scale: f32,
) -> Result<()> {
    let [part] = &table.parts[..] else { panic!("an embedding of {} parts", table.parts.len()) };
    assert_eq!((y.rows(), y.row_len()), (batch.n_tokens(), table.shape.n_in));
    let args = DequantizeArgs {
        y: y.ptr(),
        w: part.weights.ptr(),
        codebook: part.codebook,
        rows: batch.tokens(),
        sources: batch.sources(),
        chosen: batch.chosen(),
        row_bytes: part.shape.row_bytes as u64,
        n: table.shape.n_in as u32,
        n_w_rows: part.shape.n_out as u32,
        scale,
    };
    let f = cuda.room::<Kernels>().get(part);
    // SAFETY: y has a row for each token of the batch; the kernel keeps to the rows of the table.
    unsafe { cuda.launch(f, [y.rows(), table.shape.n_in.div_ceil(1024), 1], 128, &args) }
}

/// Writes rows `first` to `first + n_rows` of a part to `y`, `F32` [n_rows, n_in].
pub(super) fn dequantize(
    cuda: &Cuda,
    y: DevicePtr,
    part: &Part,
    n_in: usize,
    first: usize,
    n_rows: usize,
) -> Result<()> {
    assert!(first + n_rows <= part.shape.n_out);
    let args = DequantizeArgs {
        y,
        w: part.weights.ptr().offset(first * part.shape.row_bytes),
        codebook: part.codebook,
        rows: DevicePtr::NULL,
        sources: DevicePtr::NULL,
        chosen: DevicePtr::NULL,
        row_bytes: part.shape.row_bytes as u64,
        n: n_in as u32,
        n_w_rows: n_rows as u32,
        scale: 1.0,
    };
    let f = cuda.room::<Kernels>().get(part);
    // SAFETY: the caller's y has room for the rows, which the part has.
    unsafe { cuda.launch(f, [n_rows, n_in.div_ceil(1024), 1], 128, &args) }
}
