//! The wire types: what clients send and get, field by field, as OpenAI's API has it; extensions are marked as such.
//!
//! [`FIELDS`] lists every field that clients are known to send, and what is done with it.

mod answer;
mod chat;
mod completions;
mod conversation;
mod fields;
mod format;
mod logprobs;
mod sampling;
mod tokens;
mod tools;
mod usage;

pub(crate) use answer::*;
pub(crate) use chat::*;
pub(crate) use completions::*;
pub(crate) use fields::*;
pub(crate) use format::*;
pub(crate) use logprobs::*;
pub(crate) use sampling::*;
pub(crate) use tokens::*;
pub(crate) use tools::*;
pub(crate) use usage::*;
