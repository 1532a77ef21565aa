//! Model files, tokenizers, chat templates and the forward pass.
#![deny(unsafe_code)]

mod error;
pub mod gguf;
pub mod metadata;
mod mmap;
mod safetensors;
pub mod source;
pub mod tokenizer;

pub use error::{Error, Result};
