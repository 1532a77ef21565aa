//! Any bytes as a `tokenizer.json`: an error, or a tokenizer that encodes and decodes any text.
//!
//! `cargo +nightly fuzz run tokenizer_json fuzz/corpus/tokenizer_json fuzz/seeds/tokenizer_json -- -malloc_limit_mb=64`
#![no_main]

use libfuzzer_sys::fuzz_target;
use realizar_model::tokenizer::Tokenizer;

mod text;

fuzz_target!(|data: &[u8]| {
    match Tokenizer::from_hf(data, None, None) {
        Ok(tokenizer) => text::exercise(tokenizer),
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains(char::is_control), "{message:?}");
        }
    }
});
