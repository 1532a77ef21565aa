//! Launches of operations on each element by itself.

use super::Cuda;
use super::buffer::Buffer;
use super::driver::{DevicePtr, Function};
use crate::{Activation, Result, Tensor};

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    y: DevicePtr,
    x: DevicePtr,
    rows: DevicePtr,
    len: u64,
    row_len: u32,
    n_x_rows: u32,
    activation: u32,
    factor: f32,
}

/// The number that the kernels know a function by.
pub(super) fn code(f: Activation) -> u32 {
    match f {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
        Activation::GeluErf => 2,
        Activation::ReluSquared => 3,
        Activation::Relu => 4,
    }
}

/// Words that fit the arguments of a kernel.
const PUT_WORDS: usize = 1000;

#[derive(Clone, Copy)]
#[repr(C)]
struct PutArgs {
    y: DevicePtr,
    n: u32,
    words: [u32; PUT_WORDS],
}

/// Writes `words` at the start of `to`: as arguments of a kernel, if they are few, since a copy would make the device wait for its copy
/// engine.
pub(super) fn put(cuda: &Cuda, to: &mut Buffer, words: &[u32]) -> Result<()> {
    assert!(4 * words.len() <= to.bytes(), "{} words in {} bytes", words.len(), to.bytes());
    if words.len() > PUT_WORDS {
        return to.write(0, bytemuck::cast_slice(words));
    }
    let mut args = PutArgs { y: to.ptr(), n: words.len() as u32, words: [0; PUT_WORDS] };
    args.words[..words.len()].copy_from_slice(words);
    // SAFETY: the buffer has room, as was checked.
    unsafe { cuda.launch(cuda.kernels.put, [1, 1, 1], 256, &args) }
}

fn launch(cuda: &Cuda, f: Function, args: &Args) -> Result<()> {
    let blocks = usize::try_from(args.len.div_ceil(256)).expect("a tensor's length fits usize");
    // SAFETY: `y` has `len` elements, and the callers checked that x and rows have what the operation reads.
    unsafe { cuda.launch(f, [blocks, 1, 1], 256, args) }
}

/// `y = f(y, x)` for every element.
pub(super) fn each(
    cuda: &Cuda,
    f: Function,
    y: &mut Tensor<Cuda>,
    x: Option<&Tensor<Cuda>>,
    activation: Option<Activation>,
    factor: f32,
) -> Result<()> {
    let args = Args {
        y: y.ptr(),
        x: x.map_or(DevicePtr::NULL, Tensor::ptr),
        rows: DevicePtr::NULL,
        len: y.len() as u64,
        row_len: y.row_len() as u32,
        n_x_rows: 0,
        activation: activation.map_or(0, code),
        factor,
    };
    launch(cuda, f, &args)
}

/// As [`gated`](crate::Backend::gated), on `n_rows` rows at plain addresses.
pub(super) fn gated_rows(
    cuda: &Cuda,
    y: DevicePtr,
    x: DevicePtr,
    n_rows: usize,
    row_len: usize,
    activation: Activation,
) -> Result<()> {
    let args = Args {
        y,
        x,
        rows: DevicePtr::NULL,
        len: (n_rows * row_len) as u64,
        row_len: row_len as u32,
        n_x_rows: 0,
        activation: code(activation),
        factor: 0.0,
    };
    launch(cuda, cuda.kernels.gated, &args)
}

/// `y[i] = f(y[i], x[rows[i]])` for every row, `rows` `u32` [rows of y].
pub(super) fn rows(
    cuda: &Cuda,
    f: Function,
    y: &mut Tensor<Cuda>,
    x: &Tensor<Cuda>,
    rows: DevicePtr,
) -> Result<()> {
    assert_eq!(y.row_len(), x.row_len());
    assert!(x.rows() > 0 || y.is_empty(), "rows of nothing");
    let args = Args {
        y: y.ptr(),
        x: x.ptr(),
        rows,
        len: y.len() as u64,
        row_len: y.row_len() as u32,
        n_x_rows: x.rows() as u32,
        activation: 0,
        factor: 0.0,
    };
    launch(cuda, f, &args)
}
