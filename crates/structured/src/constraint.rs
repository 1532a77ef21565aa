//! A grammar in progress, as the engine sees it.

use super::message;
use llguidance::{Matcher, TokenParser};
use realizar_engine::{Constraint, TokenMask};

/// One text's place in its grammar.
pub(crate) struct TokenConstraint {
    matcher: Matcher,
    /// What its lexer takes, about.
    n_bytes: usize,
    mask: TokenMask,
    /// Whether `mask` belongs to this place.
    current: bool,
}

impl TokenConstraint {
    /// At the beginning of a text. `n_tokens`: size of the vocabulary.
    pub(super) fn new(parser: TokenParser, n_tokens: usize) -> Self {
        let n_bytes = parser.parser.lexer_stats().num_bytes + n_tokens;
        let matcher = Matcher::new(Ok(parser));
        Self { matcher, n_bytes, mask: TokenMask::none(n_tokens), current: false }
    }

    /// The same place with a lexer of its own.
    pub(super) fn separate(&self) -> Self {
        let (matcher, mask) = (self.matcher.deep_clone(), self.mask.clone());
        Self { matcher, n_bytes: self.n_bytes, mask, current: self.current }
    }

    /// Bytes that it takes, about.
    pub(super) fn n_bytes(&self) -> usize {
        2 * self.n_bytes
    }
}

impl Constraint for TokenConstraint {
    fn allowed(&mut self) -> Result<&TokenMask, String> {
        if !self.current {
            // A complete text that nothing may follow leaves only the stop tokens.
            let mask = self.matcher.compute_mask_or_eos().map_err(|error| in_our_words(&message(&error)))?;
            let words = self.mask.words_mut();
            words.copy_from_slice(&mask.as_slice()[..words.len()]);
            self.current = true;
        }
        Ok(&self.mask)
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.current = false;
        self.matcher.consume_token(token).map_err(|error| in_our_words(&message(&error)))
    }

    fn fork(&self) -> Box<dyn Constraint> {
        let (matcher, mask) = (self.matcher.clone(), self.mask.clone());
        Box::new(Self { matcher, n_bytes: self.n_bytes, mask, current: self.current })
    }
}

fn in_our_words(reason: &str) -> String {
    match reason {
        "NoExtension" | "NoExtensionBias" => "no text of this model's tokens satisfies it".to_owned(),
        reason => reason.to_owned(),
    }
}
