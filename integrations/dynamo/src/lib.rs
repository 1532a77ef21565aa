//! A worker for NVIDIA Dynamo that computes with realizar's engine.
//!
//! [`RealizarEngine`] is Dynamo's `LLMEngine`: Dynamo's frontend tokenizes and its router chooses a worker; `request` turns what arrives
//! into the engine's request, `guided` compiles formats, and `answer` turns the engine's events into Dynamo's chunks. `cache_events` and
//! `load` tell the router what the prefix cache holds and how full it is.

mod answer;
mod args;
mod cache_events;
mod engine;
mod error;
mod guided;
mod load;
mod request;

pub use args::Args;
pub use engine::{Options, RealizarEngine};
