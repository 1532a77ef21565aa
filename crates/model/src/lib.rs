//! Model files, tokenizers, chat templates and the forward pass.
#![deny(unsafe_code)]

mod error;
pub mod gguf;
pub mod metadata;
mod mmap;
pub mod quant_mix;
mod safetensors;
pub mod source;
pub mod synth;

pub use error::{Error, Result};
