//! A message of a conversation.

use serde_json::{Value, json};

/// A message of a conversation, for [`Model::chat`](crate::Model::chat).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, or another role that the model's chat template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message with any role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }

    /// Instructions for the whole conversation. Most templates want them first.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// What the user says.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// What the model has answered.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }
}

/// The conversation as chat templates take it.
pub(crate) fn conversation(messages: &[Message]) -> Value {
    let messages: Vec<Value> =
        messages.iter().map(|m| json!({ "role": m.role, "content": m.content })).collect();
    json!({ "messages": messages })
}
