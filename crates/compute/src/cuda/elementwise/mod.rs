//! Launches of operations on each element by itself.

use super::common::activation_code;
use super::driver::{Cuda, DevicePtr, Kernel, kernel_args, kernels};
use crate::{Activation, AttentionTemperature, Pooling, Result, Tensor};

kernel_args! {
    in "elementwise_args.cuh";

    struct ElementwiseArgs {
        y: DevicePtr as "float*",
        x: DevicePtr as "const float*",
        /// Which row of x each row of y reads, or null.
        rows: DevicePtr as "const uint32_t*",
        /// Elements of y.
        len: u64,
        /// Of y.
        row_len: u32,
        /// An index past them reads the last row.
        n_x_rows: u32,
        activation: u32,
        factor: f32,
    }

    struct GateColumnsArgs {
        y: DevicePtr as "float*",
        /// The first of the columns to multiply with.
        x: DevicePtr as "const float*",
        /// Elements of y.
        len: u64,
        /// Of y.
        row_len: u32,
        x_row_len: u32,
        activation: u32,
    }

    struct PoolArgs {
        /// [n_seqs, row_len]
        y: DevicePtr as "float*",
        /// [n_tokens, row_len]
        x: DevicePtr as "const float*",
        /// [n_seqs + 1]: first token of each sequence, and the number of tokens
        seq_starts: DevicePtr as "const uint32_t*",
        row_len: u32,
        /// 0: the mean of all tokens, 1: the first, 2: the last
        pooling: u32,
    }

    struct SelectPreviousArgs {
        /// [n_tokens, row_len]
        y: DevicePtr as "float*",
        /// [n_before, row_len]
        before: DevicePtr as "const float*",
        /// [n_tokens, row_len]
        here: DevicePtr as "const float*",
        /// Of each row of y: a row of here + `HERE`, a row of before, or all bits for zeros.
        rows: DevicePtr as "const uint32_t*",
        /// Elements of y.
        len: u64,
        row_len: u32,
        /// An index past them reads the last row.
        n_before: u32,
    }

    struct PositionScaleArgs {
        x: DevicePtr as "float*",
        /// Of each row.
        positions: DevicePtr as "const uint32_t*",
        /// Elements to multiply, in all rows together.
        len: u64,
        row_len: u32,
        /// Elements to multiply in a row, the first.
        n: u32,
        period: u32,
        beta: f32,
    }
}

kernels! {
    /// Kernels of elementwise.cu.
    pub(in crate::cuda) struct Kernels in elementwise {
        pub(in crate::cuda) add: ElementwiseArgs,
        pub(in crate::cuda) add_rows: ElementwiseArgs,
        pub(in crate::cuda) select_rows: ElementwiseArgs,
        pub(in crate::cuda) gated: ElementwiseArgs,
        pub(in crate::cuda) activate: ElementwiseArgs,
        pub(in crate::cuda) softcap: ElementwiseArgs,
        pub(in crate::cuda) scale: ElementwiseArgs,
        pub(in crate::cuda) gate_rows: ElementwiseArgs,
        pub(in crate::cuda) sigmoid_gate: ElementwiseArgs,
        pub(in crate::cuda) scale_columns: ElementwiseArgs,
        pub(in crate::cuda) add_columns: ElementwiseArgs,
        gate_columns: GateColumnsArgs,
        scale_by_position: PositionScaleArgs,
        pool: PoolArgs,
        select_previous: SelectPreviousArgs,
    }
}

pub(in crate::cuda) fn kernels(cuda: &Cuda) -> &Kernels {
    cuda.room()
}

fn launch(cuda: &Cuda, f: Kernel<ElementwiseArgs>, args: &ElementwiseArgs) -> Result<()> {
    launch_of(cuda, f, args, 1)
}

/// With so many elements to a thread.
fn launch_of(cuda: &Cuda, f: Kernel<ElementwiseArgs>, args: &ElementwiseArgs, per_thread: u64) -> Result<()> {
    let blocks = usize::try_from(args.len.div_ceil(256 * per_thread)).expect("a tensor's length fits usize");
    // SAFETY: `y` has `len` elements, and the callers checked that x and rows have what the operation reads.
    unsafe { cuda.launch(f, [blocks, 1, 1], 256, args) }
}

/// `y = f(y, x)` for every element.
pub(in crate::cuda) fn each(
    cuda: &Cuda,
    f: Kernel<ElementwiseArgs>,
    y: &mut Tensor<Cuda>,
    x: Option<&Tensor<Cuda>>,
    activation: Option<Activation>,
    factor: f32,
) -> Result<()> {
    launch(cuda, f, &args_of(y, x, activation, factor))
}

fn args_of(
    y: &mut Tensor<Cuda>,
    x: Option<&Tensor<Cuda>>,
    activation: Option<Activation>,
    factor: f32,
) -> ElementwiseArgs {
    ElementwiseArgs {
        y: y.ptr(),
        x: x.map_or(DevicePtr::NULL, Tensor::ptr),
        rows: DevicePtr::NULL,
        len: y.len() as u64,
        row_len: y.row_len() as u32,
        n_x_rows: 0,
        activation: activation.map_or(0, activation_code),
        factor,
    }
}

/// `x = factor · x`
pub(in crate::cuda) fn scale(cuda: &Cuda, x: &mut Tensor<Cuda>, factor: f32) -> Result<()> {
    launch_of(cuda, kernels(cuda).scale, &args_of(x, None, None, factor), 4)
}

/// As [`activate`](crate::Ops::activate), of the first `len` elements of a buffer that has as many.
pub(in crate::cuda) fn activate(cuda: &Cuda, y: DevicePtr, len: usize, activation: Activation) -> Result<()> {
    let args = ElementwiseArgs {
        y,
        x: DevicePtr::NULL,
        rows: DevicePtr::NULL,
        len: len as u64,
        row_len: len as u32,
        n_x_rows: 0,
        activation: activation_code(activation),
        factor: 0.0,
    };
    launch(cuda, kernels(cuda).activate, &args)
}

/// As [`gate_columns`](crate::Ops::gate_columns).
pub(in crate::cuda) fn gate_columns(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    x: &Tensor<Cuda>,
    start: usize,
    activation: Activation,
) -> Result<()> {
    assert_eq!(y.rows(), x.rows());
    assert!(start + y.row_len() <= x.row_len(), "{} columns from {start} on of {x:?}", y.row_len());
    let args = GateColumnsArgs {
        y: y.ptr(),
        x: x.ptr().offset(4 * start),
        len: y.len() as u64,
        row_len: y.row_len() as u32,
        x_row_len: x.row_len() as u32,
        activation: activation_code(activation),
    };
    let blocks = y.len().div_ceil(256);
    // SAFETY: y has `len` elements, and x as many rows with these columns, as asserted above.
    unsafe { cuda.launch(kernels(cuda).gate_columns, [blocks, 1, 1], 256, &args) }
}

/// As [`scale_by_position`](crate::Ops::scale_by_position), with `positions` `u32` [rows of x].
pub(in crate::cuda) fn scale_by_position(
    cuda: &Cuda,
    x: &mut Tensor<Cuda>,
    n: usize,
    positions: DevicePtr,
    temperature: AttentionTemperature,
) -> Result<()> {
    assert!(n <= x.row_len(), "{n} of {} columns", x.row_len());
    let args = PositionScaleArgs {
        x: x.ptr(),
        positions,
        len: (x.rows() * n) as u64,
        row_len: x.row_len() as u32,
        n: n as u32,
        // No position is larger.
        period: u32::try_from(temperature.period).unwrap_or(u32::MAX),
        beta: temperature.beta,
    };
    let blocks = (x.rows() * n).div_ceil(256);
    // SAFETY: x has `len / n` rows of `row_len` ≥ n elements, and each has a position, as the caller checked.
    unsafe { cuda.launch(kernels(cuda).scale_by_position, [blocks, 1, 1], 256, &args) }
}

/// As [`pool`](crate::Ops::pool), with `seq_starts` `u32` [rows of y + 1], which end with the rows of x.
pub(in crate::cuda) fn pool(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    x: &Tensor<Cuda>,
    seq_starts: DevicePtr,
    pooling: Pooling,
) -> Result<()> {
    assert_eq!(y.row_len(), x.row_len());
    let pooling = match pooling {
        Pooling::Mean => 0,
        Pooling::First => 1,
        Pooling::Last => 2,
    };
    let args = PoolArgs { y: y.ptr(), x: x.ptr(), seq_starts, row_len: y.row_len() as u32, pooling };
    // SAFETY: y has a row for each sequence and x one for each token that `seq_starts` names, as the caller checked.
    unsafe { cuda.launch(kernels(cuda).pool, [y.row_len().div_ceil(32), y.rows(), 1], 256, &args) }
}

/// As [`select_previous`](crate::Ops::select_previous), with `rows` `u32` [rows of y] as
/// [`StagedBatch::previous`](super::batch::StagedBatch) has them.
pub(in crate::cuda) fn select_previous(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    before: &Tensor<Cuda>,
    here: &Tensor<Cuda>,
    rows: DevicePtr,
) -> Result<()> {
    assert_eq!([before.row_len(), here.row_len(), here.rows()], [y.row_len(), y.row_len(), y.rows()]);
    assert!(before.max_rows() > 0, "rows of nothing");
    let args = SelectPreviousArgs {
        y: y.ptr(),
        before: before.ptr(),
        here: here.ptr(),
        rows,
        len: y.len() as u64,
        row_len: y.row_len() as u32,
        n_before: before.max_rows() as u32,
    };
    // SAFETY: y and here have `len` elements and before has `n_before` rows; the batch names only rows of here that exist.
    unsafe { cuda.launch(kernels(cuda).select_previous, [y.len().div_ceil(256), 1, 1], 256, &args) }
}

/// `y += x`, of the same shape.
pub(in crate::cuda) fn add(cuda: &Cuda, y: &mut Tensor<Cuda>, x: &Tensor<Cuda>) -> Result<()> {
    launch_of(cuda, kernels(cuda).add, &args_of(y, Some(x), None, 0.0), 4)
}

/// `y[i] = f(y[i], x[rows[i]])` for every row, `rows` `u32` [rows of y].
pub(in crate::cuda) fn rows(
    cuda: &Cuda,
    f: Kernel<ElementwiseArgs>,
    y: &mut Tensor<Cuda>,
    x: &Tensor<Cuda>,
    rows: DevicePtr,
) -> Result<()> {
    assert_eq!(y.row_len(), x.row_len());
    assert!(x.rows() > 0 || y.is_empty(), "rows of nothing");
    let args = ElementwiseArgs {
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
