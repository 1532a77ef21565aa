//! Which tokens an answer may have, without a grammar: those that the request lists, and none that ends it too early.

use crate::error::{ApiError, Result};
use realizar_engine::{Constraint, TokenMask};
use std::sync::Arc;

/// What a request says about tokens.
pub(crate) struct TokenRules<'a> {
    /// The only tokens that may be generated; `None` allows all.
    pub(crate) allowed: Option<&'a [u32]>,
    /// Tokens before which the answer cannot end.
    pub(crate) min_tokens: usize,
    /// Tokens that end it.
    pub(crate) ends: &'a [u32],
    pub(crate) vocab_size: usize,
}

/// One answer's place among its first tokens.
#[derive(Clone)]
struct TokenLimits {
    n_tokens: usize,
    min_tokens: usize,
    /// What is allowed as one of the first `min_tokens`, and after them.
    early: Arc<TokenMask>,
    late: Arc<TokenMask>,
}

impl TokenRules<'_> {
    /// The rules as a constraint; `None` if they allow everything.
    ///
    /// Errors: tokens that do not exist, or none that may come first.
    pub(crate) fn constraint(&self) -> Result<Option<Box<dyn Constraint>>> {
        if self.allowed.is_none() && self.min_tokens == 0 {
            return Ok(None);
        }
        let n = self.vocab_size;
        let refuse = |message| Err(ApiError::invalid_param("allowed_token_ids", message));
        if let Some(id) = self.allowed.and_then(|ids| ids.iter().find(|&&id| id as usize >= n)) {
            return refuse(format!("allowed_token_ids names token {id} but the vocabulary has {n} tokens"));
        }
        let mask = |is_allowed: &dyn Fn(u32) -> bool| {
            let mut mask = TokenMask::none(n);
            match self.allowed {
                Some(ids) => ids.iter().copied().filter(|&id| is_allowed(id)).for_each(|id| mask.allow(id)),
                None => (0..n as u32).filter(|&id| is_allowed(id)).for_each(|id| mask.allow(id)),
            }
            mask
        };
        let late = mask(&|_| true);
        let early = mask(&|id| !self.ends.contains(&id));
        let first = if self.min_tokens > 0 { &early } else { &late };
        if first.words().iter().all(|&word| word == 0) {
            return refuse("allowed_token_ids has no token with which the answer may begin".to_owned());
        }
        let (early, late) = (Arc::new(early), Arc::new(late));
        Ok(Some(Box::new(TokenLimits { n_tokens: 0, min_tokens: self.min_tokens, early, late })))
    }
}

impl Constraint for TokenLimits {
    fn allowed(&mut self) -> std::result::Result<&TokenMask, String> {
        Ok(if self.n_tokens < self.min_tokens { &self.early } else { &self.late })
    }

    fn accept(&mut self, _: u32) -> std::result::Result<(), String> {
        self.n_tokens += 1;
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_allowed_after_the_first_tokens_only() {
        let rules = TokenRules { allowed: Some(&[1, 3, 39]), min_tokens: 2, ends: &[3], vocab_size: 40 };
        let mut limits = rules.constraint().expect("rules").expect("a constraint");
        let allowed = |limits: &mut Box<dyn Constraint>| {
            let mask = limits.allowed().expect("a mask");
            (0..40).filter(|&id| mask.contains(id)).collect::<Vec<u32>>()
        };
        assert_eq!(allowed(&mut limits), [1, 39]);
        limits.accept(1).expect("allowed");
        let mut fork = limits.fork();
        fork.accept(39).expect("allowed");
        assert_eq!((allowed(&mut limits), allowed(&mut fork)), (vec![1, 39], vec![1, 3, 39]));
    }

    #[test]
    fn rules_that_nothing_satisfies_are_refused() {
        let rules = |allowed, min_tokens| TokenRules { allowed, min_tokens, ends: &[3], vocab_size: 40 };
        assert!(rules(None, 0).constraint().expect("rules").is_none());
        for (ids, min_tokens) in [(&[][..], 0), (&[40][..], 0), (&[3][..], 1)] {
            let error = rules(Some(ids), min_tokens).constraint().map(|_| ()).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some("allowed_token_ids"));
        }
        assert!(rules(Some(&[3]), 0).constraint().is_ok());
    }
}
