//! Any bytes as a GGUF file: an error or a model whose every tensor and value can be read, and the tokenizer in it, if
//! there is one, encodes and decodes any text.
//!
//! `cargo +nightly fuzz run gguf fuzz/corpus/gguf fuzz/seeds/gguf -- -malloc_limit_mb=64 -max_len=8192`
#![no_main]

mod exercise;
mod text;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use realizar_model::source;
use realizar_model::tokenizer::Tokenizer;

fuzz_target!(|data: &[u8]| {
    let file = Bytes::copy_from_slice(data);
    if let Ok(model) = source::open_gguf_bytes("fuzz.gguf", file.clone())
        && let Ok(tokenizer) = Tokenizer::from_gguf(model.metadata())
    {
        text::exercise(tokenizer);
    }
    exercise::exercise(source::open_gguf_bytes("fuzz.gguf", file));
});
