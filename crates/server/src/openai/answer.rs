//! The envelope of an answer, whole or in pieces, around the choices of either endpoint.

use super::{PromptReport, Timings, Usage};
use serde::Serialize;
use utoipa::ToSchema;

/// A whole answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Answer<C> {
    /// Names this answer.
    pub(crate) id: String,
    /// chat.completion or text_completion.
    pub(crate) object: &'static str,
    /// In seconds since 1970.
    pub(crate) created: u64,
    /// The model's name.
    pub(crate) model: String,
    /// All continuations of the first prompt, then those of the second, and so on.
    pub(crate) choices: Vec<C>,
    pub(crate) usage: Usage,
    pub(crate) timings: Timings,
    #[serde(flatten)]
    pub(crate) prompt: PromptReport,
}

/// A piece of a streamed answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Chunk<C> {
    /// Names the answer; the same in all its pieces.
    pub(crate) id: String,
    /// chat.completion.chunk or text_completion.
    pub(crate) object: &'static str,
    /// In seconds since 1970.
    pub(crate) created: u64,
    /// The model's name.
    pub(crate) model: String,
    /// What is new; nothing in the piece that carries the usage.
    pub(crate) choices: Vec<C>,
    /// If it was asked for: that of the whole request in the last piece, null in all others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub(crate) usage: Option<Option<Usage>>,
    /// Of a choice in its last piece; of the whole request beside its usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<Timings>,
    /// In the first piece.
    #[serde(flatten)]
    pub(crate) prompt: PromptReport,
}

/// One event of a streamed answer, for the OpenAPI document.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) struct ServerSentEvent {
    /// A chunk as JSON: a `Chunk_ChatPiece` or a `Chunk_CompletionChoice`, by endpoint. `[DONE]` in the last event; an `ErrorBody` in
    /// the one before it if the answer broke off.
    pub(crate) data: String,
}
