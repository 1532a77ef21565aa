//! The wire types: what clients send and get, field by field, as OpenAI's API has it; extensions are marked as such.
//!
//! Fields that no type knows are passed over, as other servers do.

mod answer;
mod chat;
mod completions;
mod format;
mod logprobs;
mod params;
mod sampling;
mod usage;

pub(crate) use answer::*;
pub(crate) use chat::*;
pub(crate) use completions::*;
pub(crate) use format::*;
pub(crate) use logprobs::*;
pub(crate) use params::*;
pub(crate) use sampling::*;
pub(crate) use usage::*;
