//! Decoding token by token, for text that is shown while it is generated.

use super::Tokenizer;
use super::decoder::Decoding;
use std::sync::Arc;

/// Turns ids into text as they come.
///
/// Each `push` returns the text that has become certain: whole characters, without the space that SentencePiece puts at
/// the beginning. All pushes and `finish` together give what `Tokenizer::decode` gives for the whole list.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    tokenizer: Arc<Tokenizer>,
    decoding: Decoding,
    skip_special: bool,
    shown: Vec<u32>,
}

impl StreamDecoder {
    /// A stream at the beginning of a text; `skip_special` leaves out control tokens.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        let decoding = Decoding::new(&tokenizer.decoders);
        StreamDecoder { tokenizer, decoding, skip_special, shown: Vec::new() }
    }

    /// A stream that goes on after a token of the same text: the space that SentencePiece puts at the beginning of texts is not taken
    /// from what follows.
    pub fn after(mut self, id: u32) -> Self {
        let mut primed = self.clone();
        // A token without a text of its own, such as a control token, leaves the stream at the beginning.
        if !primed.push(id).is_empty() {
            self.decoding = primed.decoding;
        }
        self
    }

    /// Writes these control tokens as the vocabulary does, though it leaves out the others.
    pub fn showing(mut self, tokens: &[u32]) -> Self {
        self.shown = tokens.to_vec();
        self
    }

    /// The text that `id` completes; empty while a character is unfinished.
    pub fn push(&mut self, id: u32) -> String {
        let mut out = String::new();
        let skip_special = self.skip_special && !self.shown.contains(&id);
        self.tokenizer.decode_into(id, skip_special, &mut self.decoding, &mut out);
        out
    }

    /// The text that was kept back, with U+FFFD for bytes that never became a character. The stream begins anew.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.decoding.finish(&self.tokenizer.decoders, &mut out);
        out
    }
}
