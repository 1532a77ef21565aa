//! Matmuls of activations with weights of any element type.
//!
//! A [`Matrix`] is made once from the rows of a file: types with kernels of their own are interleaved 16 rows at a time (one
//! `Layout` for any number of activation rows and any processor), the others stay as they are and are decoded as they
//! are used. [`matmul`] brings the activations into the layout that the kernel needs (8-bit integers for quantized weights) and
//! shares the panels of rows among the threads.
//!
//! Every output element is computed by the same operations in the same order whatever the number of rows, of threads, or of
//! neighbours in the batch, and whether weights were packed ahead or not.
//!
//! ```text
//! gemm ─▶ matrix ─▶ layouts/<type> ─▶ blocks32, codes, float, k_scales ─▶ int8, layout ─▶ activations, sums
//! ```

mod activations;
mod blocks32;
mod codebook;
mod codes;
mod float;
mod gemm;
mod int8;
mod k_scales;
mod layout;
mod layouts;
mod matrix;
mod sums;
#[cfg(test)]
mod tests;

pub use activations::Activations;
pub use gemm::{Group, Operands, matmul};
pub use matrix::{Matrix, MatrixOptions, packed_bytes};
