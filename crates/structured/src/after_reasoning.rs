//! A constraint that begins where the reasoning ends, which the prompt has begun or the answer may begin.

use crate::reasoning::Tags;
use llguidance::toktrie::{TokEnv, TokTrie};
use realizar_engine::{Constraint, TokenMask};
use std::sync::Arc;

/// What tokens mean in the reasoning and right after it.
pub(super) struct FreeTokens {
    environment: TokEnv,
    tags: &'static Tags,
    /// The token that begins the reasoning.
    open: Option<u32>,
    /// The closing tag, if it is one token.
    close: Option<u32>,
    /// All text, and the closing tag; no token goes on after the tag's end.
    reasoning: TokenMask,
    blanks: TokenMask,
}

impl FreeTokens {
    /// `id_of`: the token that is a tag.
    pub(super) fn new(environment: TokEnv, tags: &'static Tags, id_of: impl Fn(&str) -> Option<u32>) -> Self {
        let (open, close) = (id_of(tags.token), id_of(tags.close));
        let last = tags.close.as_bytes().last();
        let trie = environment.tok_trie();
        let n_tokens = trie.vocab_size();
        let (mut reasoning, mut blanks) = (TokenMask::none(n_tokens), TokenMask::none(n_tokens));
        for id in 0..n_tokens as u32 {
            let bytes = trie.token(id);
            let is_text = bytes.first().is_some_and(|&first| first != TokTrie::SPECIAL_TOKEN_MARKER);
            let goes_on = bytes.iter().position(|b| Some(b) == last).is_some_and(|at| at + 1 < bytes.len());
            if close == Some(id) || is_text && (close.is_some() || !goes_on) {
                reasoning.allow(id);
            }
            if is_text && bytes.iter().all(u8::is_ascii_whitespace) {
                blanks.allow(id);
            }
        }
        Self { environment, tags, open, close, reasoning, blanks }
    }

    fn bytes(&self, token: u32) -> &[u8] {
        match self.close == Some(token) {
            true => self.tags.close.as_bytes(),
            false => self.environment.tok_trie().token(token),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// Before the token that begins the reasoning, or the text.
    Start,
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
    /// `is_begun`: the prompt ends within the reasoning.
    pub(super) fn new(tokens: Arc<FreeTokens>, is_begun: bool, inner: Box<dyn Constraint>) -> Self {
        let mask = tokens.reasoning.clone();
        let place = if is_begun { Place::Reasoning } else { Place::Start };
        Self { tokens, inner, place, tail: Vec::new(), mask }
    }
}

impl Constraint for AfterReasoning {
    fn allowed(&mut self) -> Result<&TokenMask, String> {
        match self.place {
            Place::Start => {
                self.mask.clone_from(self.inner.allowed()?);
                if let Some(open) = self.tokens.open {
                    self.mask.allow(open);
                }
                Ok(&self.mask)
            }
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
            Place::Start if self.tokens.open == Some(token) => {
                self.place = Place::Reasoning;
                Ok(())
            }
            Place::Reasoning => {
                self.tail.extend(self.tokens.bytes(token));
                let close = self.tokens.tags.close.as_bytes();
                if self.tail.ends_with(close) {
                    self.place = Place::Blanks;
                }
                let n_old = self.tail.len().saturating_sub(close.len());
                self.tail.drain(..n_old);
                Ok(())
            }
            Place::Blanks if self.tokens.blanks.contains(token) && !self.inner.allowed()?.contains(token) => {
                Ok(())
            }
            Place::Start | Place::Blanks | Place::Text => {
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
