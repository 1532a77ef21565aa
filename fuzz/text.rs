//! What must hold for every tokenizer, however strange its file.

use realizar_model::tokenizer::{EncodeOptions, StreamDecoder, Tokenizer};
use std::sync::Arc;

/// Encodes a text with everything in it, and checks that ids are in range and that streaming decodes to the same text.
pub fn exercise(tokenizer: Tokenizer) {
    let tokenizer = Arc::new(tokenizer);
    for text in ["", "Hello  wörld\n\t<s> 1234 don't ▁x [CLS]\u{0}é 汉字🦊", "    "] {
        for (add_special, parse_special) in [(true, true), (false, false)] {
            let ids = tokenizer.encode(text, EncodeOptions { add_special, parse_special });
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()), "{ids:?}");
            for skip_special in [true, false] {
                let whole = tokenizer.decode(&ids, skip_special);
                let mut stream = StreamDecoder::new(tokenizer.clone(), skip_special);
                let mut pieces: String = ids.iter().map(|&id| stream.push(id)).collect();
                pieces += &stream.finish();
                assert_eq!(pieces, whole);
            }
        }
    }
    let beyond = tokenizer.vocab_size() as u32;
    assert_eq!(tokenizer.token_bytes(beyond), None);
    let _ = tokenizer.decode(&[0, beyond, u32::MAX, 1, 2], false);
}
