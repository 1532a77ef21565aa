//! Any bytes as a safetensors file: an error or a model whose every tensor can be read.
//!
//! `cargo +nightly fuzz run safetensors fuzz/corpus/safetensors fuzz/seeds/safetensors -- -malloc_limit_mb=64`
#![no_main]

mod exercise;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use realizar_model::source;

fuzz_target!(|data: &[u8]| {
    let file = Bytes::copy_from_slice(data);
    exercise::exercise(source::open_safetensors_bytes("fuzz.safetensors", b"{}", file));
});
