//! A tensor: a backend's buffer with an element type and a row-major shape.

use crate::{DType, Device};
use std::fmt;

/// Dimensions of a tensor, outermost first; at most four.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    dims: [usize; 4],
    rank: usize,
}

impl Shape {
    /// # Panics
    /// With more than four dimensions, which no tensor of ours has.
    pub fn new(dims: &[usize]) -> Self {
        assert!(dims.len() <= 4, "a shape of {dims:?}");
        let mut d = [1; 4];
        d[..dims.len()].copy_from_slice(dims);
        Self { dims: d, rank: dims.len() }
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.dims().iter().product()
    }

    /// Whether some dimension is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

/// A row-major tensor in a backend's memory.
///
/// Activations are made once for the largest batch; each step sets how many of their rows are in use ([`Tensor::set_rows`]).
pub struct Tensor<B: Device> {
    buffer: B::Buffer,
    dtype: DType,
    shape: Shape,
    max_rows: usize,
    max_row_len: usize,
}

impl<B: Device> Tensor<B> {
    /// For backends: `buffer` holds `shape` elements of `dtype`.
    pub fn from_buffer(buffer: B::Buffer, dtype: DType, shape: &[usize]) -> Self {
        let shape = Shape::new(shape);
        let max_row_len = shape.dims[1..].iter().product();
        Self { buffer, dtype, shape, max_rows: shape.dims[0], max_row_len }
    }

    /// Uses only the first `n` rows (outermost dimension) from now on.
    ///
    /// # Panics
    /// If the tensor was made with fewer rows.
    pub fn set_rows(&mut self, n: usize) {
        assert!(n <= self.max_rows, "{n} rows of a tensor made for {}", self.max_rows);
        self.shape.dims[0] = n;
    }

    /// Makes the rows of a matrix `n` elements long from now on. They lie one after the other, so what the rows held is lost.
    ///
    /// # Panics
    /// If the tensor is no matrix, or was made with shorter rows.
    pub fn set_row_len(&mut self, n: usize) {
        assert!(self.shape.rank == 2 && n <= self.max_row_len, "rows of {n} elements in {self:?}");
        self.shape.dims[1] = n;
    }

    /// Takes the elements in use, which lie one after the other, as rows of `n` from now on.
    ///
    /// # Panics
    /// If the tensor is no matrix, or its elements do not fill such rows.
    pub fn regroup(&mut self, n: usize) {
        let len = self.len();
        assert!(self.shape.rank == 2 && len.is_multiple_of(n), "{self:?} in rows of {n}");
        self.shape.dims[..2].copy_from_slice(&[len / n, n]);
    }

    /// Rows that the tensor was made with.
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Rows in use: the outermost dimension.
    pub fn rows(&self) -> usize {
        self.shape.dims[0]
    }

    /// Elements in one row: the product of all other dimensions.
    pub fn row_len(&self) -> usize {
        self.shape.dims[1..].iter().product()
    }

    /// Shape, outermost dimension first.
    pub fn shape(&self) -> &[usize] {
        self.shape.dims()
    }

    /// Elements in use.
    pub fn len(&self) -> usize {
        self.shape.len()
    }

    /// Whether no element is in use.
    pub fn is_empty(&self) -> bool {
        self.shape.is_empty()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The backend's buffer; it may be larger than the rows in use.
    pub fn buffer(&self) -> &B::Buffer {
        &self.buffer
    }

    /// The backend's buffer, to write to.
    pub fn buffer_mut(&mut self) -> &mut B::Buffer {
        &mut self.buffer
    }
}

impl<B: Device> fmt::Debug for Tensor<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}
