//! The CPU backend.

pub mod isa;
pub mod matmul;
mod simd;
pub mod threads;
