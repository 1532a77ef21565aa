//! What a model continues.

use realizar_engine::TextEngine;

/// What a model continues: a text or token ids. Strings and slices of ids turn into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt<'a> {
    /// A text. It is encoded as by [`Model::encode`](crate::Model::encode).
    Text(&'a str),
    /// Token ids, used as they are.
    Tokens(&'a [u32]),
}

impl Prompt<'_> {
    pub(crate) fn tokens(self, engine: &TextEngine) -> Vec<u32> {
        match self {
            Self::Text(text) => engine.encode_prompt(text),
            Self::Tokens(tokens) => tokens.to_vec(),
        }
    }
}

impl<'a> From<&'a str> for Prompt<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Prompt<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a [u32]> for Prompt<'a> {
    fn from(tokens: &'a [u32]) -> Self {
        Self::Tokens(tokens)
    }
}

impl<'a, const N: usize> From<&'a [u32; N]> for Prompt<'a> {
    fn from(tokens: &'a [u32; N]) -> Self {
        Self::Tokens(tokens)
    }
}

impl<'a> From<&'a Vec<u32>> for Prompt<'a> {
    fn from(tokens: &'a Vec<u32>) -> Self {
        Self::Tokens(tokens)
    }
}
