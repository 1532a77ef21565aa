//! Log-probabilities in the two shapes that OpenAI's API has.

use realizar_engine::TokenInfo;
use realizar_model::tokenizer::Tokenizer;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

/// Log-probabilities of a chat answer's tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct ChatLogprobs {
    /// One per token.
    pub(crate) content: Vec<TokenLogprob>,
    /// Always null.
    pub(crate) refusal: Option<Vec<TokenLogprob>>,
}

/// A token's log-probability.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct TokenLogprob {
    /// Its text; U+FFFD for bytes that are no text on their own.
    pub(crate) token: String,
    /// Natural logarithm of its probability.
    pub(crate) logprob: f32,
    /// Its text as bytes.
    pub(crate) bytes: Vec<u8>,
    /// The likeliest tokens in its place, likeliest first.
    pub(crate) top_logprobs: Vec<TopLogprob>,
}

/// A token that might have been.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct TopLogprob {
    /// Its text; U+FFFD for bytes that are no text on their own.
    pub(crate) token: String,
    /// Natural logarithm of its probability.
    pub(crate) logprob: f32,
    /// Its text as bytes.
    pub(crate) bytes: Vec<u8>,
}

/// Log-probabilities of a text's tokens: lists of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct CompletionLogprobs {
    /// The tokens' texts.
    pub(crate) tokens: Vec<String>,
    /// Natural logarithms of their probabilities; null for a token that nothing precedes.
    pub(crate) token_logprobs: Vec<Option<f32>>,
    /// The likeliest tokens in each place and their log-probabilities; null where none were asked for.
    #[schema(value_type = Vec<Option<Object>>)]
    pub(crate) top_logprobs: Vec<Option<ByToken>>,
    /// Where each token begins in the text, in characters.
    pub(crate) text_offset: Vec<usize>,
}

/// Log-probabilities by the token's text, likeliest first; an object in JSON.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ByToken(Vec<(String, f32)>);

impl Serialize for ByToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(text, logprob)| (text, logprob)))
    }
}

/// Probabilities of zero have a logarithm that JSON cannot write.
pub(crate) fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

fn text_of(tokenizer: &Tokenizer, id: u32) -> (String, Vec<u8>) {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default().into_owned();
    (String::from_utf8_lossy(&bytes).into_owned(), bytes)
}

impl TokenLogprob {
    /// A generated token whose log-probability was asked for.
    pub(crate) fn new(tokenizer: &Tokenizer, info: &TokenInfo) -> Self {
        let top = info.top_logprobs.iter().map(|&(id, logprob)| {
            let (token, bytes) = text_of(tokenizer, id);
            TopLogprob { token, logprob: finite(logprob), bytes }
        });
        let (token, bytes) = text_of(tokenizer, info.id);
        Self { token, logprob: finite(info.logprob.unwrap_or(0.0)), bytes, top_logprobs: top.collect() }
    }
}

impl CompletionLogprobs {
    /// Adds a token that begins at this character of the text.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, info: &TokenInfo, offset: usize) {
        self.tokens.push(text_of(tokenizer, info.id).0);
        self.token_logprobs.push(info.logprob.map(finite));
        let mut top = ByToken(Vec::new());
        for &(id, logprob) in &info.top_logprobs {
            let text = text_of(tokenizer, id).0;
            // Of several tokens with the same text, the likeliest.
            if top.0.iter().all(|(t, _)| *t != text) {
                top.0.push((text, finite(logprob)));
            }
        }
        self.top_logprobs.push((!info.top_logprobs.is_empty()).then_some(top));
        self.text_offset.push(offset);
    }
    /// Adds what another list has.
    pub(crate) fn append(&mut self, more: Self) {
        self.tokens.extend(more.tokens);
        self.token_logprobs.extend(more.token_logprobs);
        self.top_logprobs.extend(more.top_logprobs);
        self.text_offset.extend(more.text_offset);
    }
}
