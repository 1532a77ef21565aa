//! Model files, tokenizers, chat templates and the forward pass.
#![deny(unsafe_code)]
