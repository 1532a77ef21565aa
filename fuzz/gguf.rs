//! Any bytes as a GGUF file: an error or a model whose every tensor and value can be read.
//!
//! `cargo +nightly fuzz run gguf fuzz/corpus/gguf fuzz/seeds/gguf -- -malloc_limit_mb=64 -max_len=4096`
#![no_main]

mod exercise;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use realizar_model::source;

fuzz_target!(|data: &[u8]| exercise::exercise(source::open_gguf_bytes("fuzz.gguf", Bytes::copy_from_slice(data))));
