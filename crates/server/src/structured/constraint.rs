//! A grammar in progress, as the engine sees it.

use super::message;
use llguidance::{Matcher, TokenParser};
use realizar_engine::{Constraint, TokenMask};

/// One text's place in its grammar.
pub(super) struct TokenConstraint {
    matcher: Matcher,
    mask: TokenMask,
    /// Whether `mask` belongs to this place.
    current: bool,
}

impl TokenConstraint {
    /// At the beginning of a text. `n_tokens`: size of the vocabulary.
    pub(super) fn new(parser: TokenParser, n_tokens: usize) -> Self {
        Self { matcher: Matcher::new(Ok(parser)), mask: TokenMask::none(n_tokens), current: false }
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
        Box::new(Self { matcher: self.matcher.clone(), mask: self.mask.clone(), current: self.current })
    }
}

fn in_our_words(reason: &str) -> String {
    match reason {
        "NoExtension" | "NoExtensionBias" => "no text of this model's tokens satisfies it".to_owned(),
        reason => reason.to_owned(),
    }
}
