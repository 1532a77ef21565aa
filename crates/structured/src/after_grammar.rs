//! A constraint that begins where a text of another one ends.

use realizar_engine::{Constraint, TokenMask};

/// A text, and after it one with a constraint of its own.
pub(super) struct AfterGrammar {
    /// Until its text is whole.
    first: Option<Box<dyn Constraint>>,
    /// A token that `first` allows where its text may end.
    stop: u32,
    inner: Box<dyn Constraint>,
}

impl AfterGrammar {
    /// `first`: where its text may end, it does.
    pub(super) fn new(first: Box<dyn Constraint>, stop: u32, inner: Box<dyn Constraint>) -> Self {
        Self { first: Some(first), stop, inner }
    }
}

impl Constraint for AfterGrammar {
    fn allowed(&mut self) -> Result<&TokenMask, String> {
        match &mut self.first {
            Some(first) => first.allowed(),
            None => self.inner.allowed(),
        }
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        let Some(first) = &mut self.first else { return self.inner.accept(token) };
        first.accept(token)?;
        if first.allowed()?.contains(self.stop) {
            self.first = None;
        }
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Self {
            first: self.first.as_ref().map(|first| first.fork()),
            stop: self.stop,
            inner: self.inner.fork(),
        })
    }
}
