//! Products of heads, each with its own matrix: the kernel for each part is chosen here.

use super::matrix::{Matrix, Part};
use super::shape::{MatrixShape, Target};
use super::{head_gemm, simt};
use crate::cuda::driver::{Cuda, DevicePtr};
use crate::{Result, Tensor};

/// Rows of heads that are multiplied.
#[derive(Clone, Copy)]
pub(super) struct HeadRows {
    pub(super) m: usize,
    /// Elements from one head to the next in the rows of x.
    pub(super) x_head: usize,
    /// The same in the rows of y.
    pub(super) y_head: usize,
}

/// A part of the matrices of all heads, and what it multiplies.
#[derive(Clone, Copy)]
pub(super) struct HeadPart<'a> {
    /// The whole matrix.
    pub(super) w: &'a MatrixShape,
    pub(super) part: &'a Part,
    /// The part's outputs of the first head.
    pub(super) y: DevicePtr,
    pub(super) x: DevicePtr,
    pub(super) rows: HeadRows,
}

/// As [`Ops::head_matmul`](crate::Ops::head_matmul).
pub(in crate::cuda) fn head_matmul(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    x: &Tensor<Cuda>,
    w: &Matrix,
) -> Result<()> {
    let shape = &w.shape;
    let n_heads = shape.n_experts;
    let rows = HeadRows { m: x.rows(), x_head: x.row_len() / n_heads, y_head: y.row_len() / n_heads };
    let HeadRows { m, x_head, y_head } = rows;
    assert_eq!((x.row_len(), y.row_len(), y.rows()), (x_head * n_heads, y_head * n_heads, m));
    assert!(
        shape.n_in <= x_head && shape.n_out <= y_head,
        "{y:?} of {x:?}, [{}, {}]",
        shape.n_out,
        shape.n_in
    );
    let target = Target::of(cuda);
    for part in &w.parts {
        let op = HeadPart { w: shape, part, y: y.ptr().offset(4 * part.shape.first_out), x: x.ptr(), rows };
        match head_gemm::plan(&target, shape, &part.shape, rows) {
            Some(plan) => plan.run(cuda, &op)?,
            None => simt::head_gemv(cuda, &op)?,
        }
    }
    Ok(())
}
