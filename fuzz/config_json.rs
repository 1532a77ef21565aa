//! Any bytes as a `config.json`: an error or metadata whose every value can be read.
//!
//! `cargo +nightly fuzz run config_json fuzz/corpus/config_json fuzz/seeds/config_json -- -malloc_limit_mb=64`
#![no_main]

mod exercise;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use realizar_model::source;

/// A safetensors file without tensors.
const EMPTY: &[u8] = b"\x02\0\0\0\0\0\0\0{}";

fuzz_target!(|data: &[u8]| {
    exercise::exercise(source::open_safetensors_bytes("fuzz", data, Bytes::from_static(EMPTY)));
});
