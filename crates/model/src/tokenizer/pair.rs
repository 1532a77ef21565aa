//! Two texts as one, such as a query and a document.

use super::{EncodeOptions, Tokenizer};

/// Token ids of a text, or of two texts as one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// How many of them, from the first, are of token type 0; those behind are of type 1.
    pub n_first: usize,
}

impl From<Vec<u32>> for Encoding {
    fn from(tokens: Vec<u32>) -> Self {
        Self { n_first: tokens.len(), tokens }
    }
}

impl Encoding {
    /// Tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// What stands around and between two texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) before: Vec<u32>,
    pub(super) between: Vec<u32>,
    pub(super) after: Vec<u32>,
    /// How many tokens of `between` are of the first text's type, where the second text has a type of its own.
    pub(super) n_first: Option<usize>,
}

impl Tokenizer {
    /// Token ids of two texts as one, with what the tokenizer puts around and between them. Texts of control tokens stay text.
    ///
    /// `None`: the tokenizer's files do not say how it puts two texts together.
    pub fn encode_pair(&self, first: &str, second: &str) -> Option<Encoding> {
        let Pair { before, between, after, n_first } = self.pair.as_ref()?;
        let encode = |text| self.encode(text, EncodeOptions { add_special: false, parse_special: false });
        let mut tokens = [&before[..], &encode(first)].concat();
        let n_before = tokens.len();
        tokens.extend_from_slice(between);
        tokens.extend(encode(second));
        tokens.extend_from_slice(after);
        Some(Encoding { n_first: n_first.map_or(tokens.len(), |n| n_before + n), tokens })
    }
}
