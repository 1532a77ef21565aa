//! A constraint that begins where the reasoning ends, for answers whose prompt has begun the reasoning.

use realizar_engine::{Constraint, TokenMask};
use std::sync::Arc;

/// Ends the reasoning.
const CLOSE: &[u8] = crate::reasoning::CLOSE.as_bytes();

/// What tokens mean in the reasoning and right after it.
pub(super) struct FreeTokens {
    /// The bytes of each token; of control tokens only the closing tag's.
    pub(super) bytes: Vec<Box<[u8]>>,
    /// All text, and the closing tag; no token goes on after the tag's end.
    pub(super) reasoning: TokenMask,
    /// Blanks.
    pub(super) blanks: TokenMask,
}

impl FreeTokens {
    /// `text`: the bytes of a token in text, nothing for control tokens. `close`: the closing tag if it is one token.
    pub(super) fn new(text: impl Iterator<Item = Vec<u8>>, close: Option<u32>) -> Self {
        let mut bytes: Vec<Box<[u8]>> = text.map(Vec::into_boxed_slice).collect();
        if let Some(id) = close {
            bytes[id as usize] = CLOSE.into();
        }
        let (mut reasoning, mut blanks) = (TokenMask::none(bytes.len()), TokenMask::none(bytes.len()));
        for (id, bytes) in bytes.iter().enumerate().filter(|(_, bytes)| !bytes.is_empty()) {
            let crosses = bytes.iter().position(|&b| b == b'>').is_some_and(|at| at + 1 < bytes.len());
            if close.is_some() || !crosses {
                reasoning.allow(id as u32);
            }
            if bytes.iter().all(u8::is_ascii_whitespace) {
                blanks.allow(id as u32);
            }
        }
        Self { bytes, reasoning, blanks }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Reasoning,
    /// After the tag, where blanks may come before the text.
    Blanks,
    Text,
}

/// Reasoning, its closing tag, blanks, and then a text with a constraint of its own.
pub(super) struct AfterReasoning {
    tokens: Arc<FreeTokens>,
    inner: Box<dyn Constraint>,
    place: Place,
    /// The last bytes, as many as may begin the tag.
    tail: Vec<u8>,
    mask: TokenMask,
}

impl AfterReasoning {
    pub(super) fn new(tokens: Arc<FreeTokens>, inner: Box<dyn Constraint>) -> Self {
        let mask = tokens.reasoning.clone();
        Self { tokens, inner, place: Place::Reasoning, tail: Vec::new(), mask }
    }
}

impl Constraint for AfterReasoning {
    fn allowed(&mut self) -> Result<&TokenMask, String> {
        match self.place {
            Place::Reasoning => Ok(&self.tokens.reasoning),
            Place::Blanks => {
                self.mask.clone_from(self.inner.allowed()?);
                for (word, blanks) in self.mask.words_mut().iter_mut().zip(self.tokens.blanks.words()) {
                    *word |= blanks;
                }
                Ok(&self.mask)
            }
            Place::Text => self.inner.allowed(),
        }
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        match self.place {
            Place::Reasoning => {
                let bytes = self.tokens.bytes.get(token as usize).map_or(&[][..], |bytes| bytes);
                self.tail.extend(bytes);
                if self.tail.ends_with(CLOSE) {
                    self.place = Place::Blanks;
                }
                let n_old = self.tail.len().saturating_sub(CLOSE.len());
                self.tail.drain(..n_old);
                Ok(())
            }
            Place::Blanks if self.tokens.blanks.contains(token) && !self.inner.allowed()?.contains(token) => Ok(()),
            Place::Blanks | Place::Text => {
                self.place = Place::Text;
                self.inner.accept(token)
            }
        }
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Self {
            tokens: self.tokens.clone(),
            inner: self.inner.fork(),
            place: self.place,
            tail: self.tail.clone(),
            mask: self.mask.clone(),
        })
    }
}
