//! What a forked process must not touch.

use crate::error::RealizarError;
use pyo3::PyResult;
use std::process;

/// Something that needs threads of the process that made it. `fork` copies the memory but no threads, so a child would wait for them forever:
/// there, using it is an error, and nothing of it is dropped.
pub(crate) struct Owned<T> {
    process: u32,
    value: Option<T>,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { process: process::id(), value: Some(value) }
    }

    /// Errors: `RealizarError` in a forked process.
    pub(crate) fn check(&self) -> PyResult<()> {
        match self.process == process::id() {
            true => Ok(()),
            false => Err(RealizarError::new_err(
                "this LLM was loaded before the process was forked and cannot be used in the child; load it there, or start processes \
                 with multiprocessing's method \"spawn\"",
            )),
        }
    }

    /// Errors: as [`Owned::check`].
    pub(crate) fn get(&self) -> PyResult<&T> {
        self.check()?;
        Ok(self.value.as_ref().expect("only a drop takes the value"))
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.check().is_err() {
            std::mem::forget(self.value.take());
        }
    }
}
