//! The HTTP server, compatible with the APIs of OpenAI, Anthropic, Ollama and llama.cpp.
//!
//! [`Server::bind`] puts [`Models`] behind an address, [`Server::run`] answers until the process is told to stop. A request
//! passes `routes` (one file or folder per endpoint; OpenAI's wire types in `openai`), becomes a `generation` in the engine, and comes back whole or as
//! server-sent events through `sse`. What an answer must look like, and what the model thinks before it, is in [`realizar_structured`], what it means for tools in [`tool_calls`]. `connections` keeps clients to their time limits. `kv_events` tells routers what is in the prefix cache. This crate reads no arguments, environment
//! or terminal: everything is in [`Config`].
#![forbid(unsafe_code)]

mod access;
mod app;
mod auth;
mod bodies;
mod config;
mod connections;
mod conversation;
mod embedding;
mod error;
mod fields;
mod fim;
mod format_pool;
mod generation;
mod hosts;
mod json;
mod kv_events;
mod loading;
mod models;
mod openai;
mod params;
mod request_id;
mod response_store;
mod routes;
mod seal;
mod server;
mod sizes;
mod spans;
mod sse;
mod token_limits;
pub mod tool_calls;
mod totals;
mod turn;
mod watchdog;

pub use config::Config;
pub use kv_events::{KvEvents, KvEventsError};
pub use models::{
    EncoderModel, KeepAlive, LoadError, LoadedModel, ModelEntry, ModelFacts, ModelLimits, ModelLoader,
    Models, TextModel,
};
pub use server::{Ended, Error, Handle, Server};

#[doc(no_inline)]
pub use realizar_engine::TextEngine;
