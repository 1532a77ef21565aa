//! Any bytes as a `tokenizer.json`: an error of one line, or a tokenizer that encodes and decodes without a panic.
//!
//! `cargo +nightly fuzz run tokenizer_json fuzz/corpus/tokenizer_json crates/model/tests/data/tokenizers -- -malloc_limit_mb=512`
#![no_main]

use libfuzzer_sys::fuzz_target;
use realizar_model::tokenizer::{EncodeOptions, StreamDecoder, Tokenizer};
use std::sync::Arc;

const TEXT: &str = "The fox didn't say 12345\r\n  狐狸 🦊 e\u{301} <|user|></s> \u{0}";

fuzz_target!(|data: &[u8]| {
    let tokenizer = match Tokenizer::from_hf(data, None, None) {
        Ok(tokenizer) => Arc::new(tokenizer),
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains(char::is_control), "{message:?}");
            return;
        }
    };
    for parse_special in [false, true] {
        let ids = tokenizer.encode(TEXT, EncodeOptions { add_special: true, parse_special });
        let text = tokenizer.decode(&ids, parse_special);
        let mut stream = StreamDecoder::new(tokenizer.clone(), parse_special);
        let mut streamed: String = ids.iter().map(|&id| stream.push(id)).collect();
        streamed.push_str(&stream.finish());
        assert_eq!(streamed, text);
    }
});
