//! What can go wrong with the hub.

use std::error::Error;

/// Why a model of the hub could not be had.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct HubError {
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

pub(super) type Result<T> = std::result::Result<T, HubError>;

impl HubError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    pub(super) fn because(message: String, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { message, source: Some(source.into()) }
    }

    /// The message and what is behind it, in a line.
    pub(super) fn chain(&self) -> String {
        let mut text = self.message.clone();
        let mut next = self.source();
        while let Some(error) = next {
            text += &format!(": {error}");
            next = error.source();
        }
        text
    }
}

/// Says what an error means here.
pub(super) trait Context<T> {
    fn context(self, message: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> Context<T> for std::result::Result<T, E> {
    fn context(self, message: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| HubError::because(message(), error))
    }
}
