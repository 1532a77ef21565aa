//! Launches that decode rows of weights: the embedding, and slabs for products.

use super::driver::{DevicePtr, Function};
use super::matrix::{Layout, Matrix, Part};
use super::{Cuda, StagedBatch};
use crate::{Result, Tensor};

fn decoder(cuda: &Cuda, part: &Part) -> Function {
    match part.layout {
        Layout::Blocks => cuda.kernels.of_type(part.dtype).dequantize,
        Layout::Packed => cuda.kernels.of_packed(part.dtype).dequantize,
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    y: DevicePtr,
    w: DevicePtr,
    codebook: DevicePtr,
    rows: DevicePtr,
    sources: DevicePtr,
    chosen: DevicePtr,
    row_bytes: u64,
    n: u32,
    n_w_rows: u32,
    scale: f32,
}

pub(super) fn embed(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    table: &Matrix,
    batch: &StagedBatch,
    scale: f32,
) -> Result<()> {
    let [part] = &table.parts[..] else { panic!("an embedding of {} parts", table.parts.len()) };
    assert_eq!((y.rows(), y.row_len()), (batch.n_tokens(), table.n_in));
    let args = Args {
        y: y.ptr(),
        w: part.weights.ptr(),
        codebook: part.codebook,
        rows: batch.tokens(),
        sources: batch.sources(),
        chosen: batch.chosen(),
        row_bytes: part.row_bytes as u64,
        n: table.n_in as u32,
        n_w_rows: part.n_out as u32,
        scale,
    };
    let f = decoder(cuda, part);
    // SAFETY: y has a row for each token of the batch; the kernel keeps to the rows of the table.
    unsafe { cuda.launch(f, [y.rows(), table.n_in.div_ceil(1024), 1], 128, &args) }
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
    assert!(first + n_rows <= part.n_out);
    let args = Args {
        y,
        w: part.weights.ptr().offset(first * part.row_bytes),
        codebook: part.codebook,
        rows: DevicePtr::NULL,
        sources: DevicePtr::NULL,
        chosen: DevicePtr::NULL,
        row_bytes: part.row_bytes as u64,
        n: n_in as u32,
        n_w_rows: n_rows as u32,
        scale: 1.0,
    };
    let f = decoder(cuda, part);
    // SAFETY: the caller's y has room for the rows, which the part has.
    unsafe { cuda.launch(f, [n_rows, n_in.div_ceil(1024), 1], 128, &args) }
}
