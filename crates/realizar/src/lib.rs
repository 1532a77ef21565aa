//! Run GGUF and safetensors language models from a Rust program.
//!
//! ```no_run
//! use realizar::{Message, Model, TextEvent};
//!
//! let model = Model::load("Llama-3.2-1B-Instruct-Q4_K_M.gguf")?;
//! let messages = [Message::system("Answer in one sentence."), Message::user("Why is the sky blue?")];
//! for event in model.chat(&messages, &model.default_params())? {
//!     if let TextEvent::Delta { text, .. } = event? {
//!         print!("{text}");
//!     }
//! }
//! # Ok::<(), realizar::Error>(())
//! ```
//!
//! # Contents
//!
//! | to | use |
//! |---|---|
//! | load a model | [`Model::load`], [`Model::builder`] |
//! | answer a conversation | [`Model::chat`] with [`Message`]s |
//! | continue a text or token ids | [`Model::generate`], [`Model::generate_batch`] |
//! | read text as it is generated | [`TextStream`], an iterator and an async stream of [`TextEvent`]s |
//! | choose how tokens are sampled | [`TextParams`], [`Model::default_params`] |
//! | work with tokens | [`Model::encode`], [`Model::decode`], [`Model::tokenizer`] |
//! | get logits or probabilities | [`Model::logits`], [`Model::log_probs`], [`Model::score`], [`TextParams::n_logprobs`] |
//! | get JSON of a schema, or text of a grammar | `Model::structured` with a `Format` |
//! | turn texts into vectors | [`Embedder`] |
//! | speed up generation by guesses | [`ModelBuilder::draft_model`], [`ModelBuilder::proposer`] |
//! | do anything else that the engine can | [`Model::engine`]: conversations with tools, [`Request`]s with a [`Constraint`] |
//!
//! The folder `examples` has a program for each of chat, streams, tokens, JSON and embeddings.
//!
//! # Threads
//!
//! A [`Model`] owns its device and a thread that computes. It is `Sync`: calls that run at the same time share steps, and the results of one
//! do not depend on the others (on a GPU bit for bit only with [`Options::deterministic`] or [`Options::exact`]). Methods block; a [`TextStream`] can also be polled by any
//! async runtime.
//!
//! # Features
//!
//! - `cuda` (default): NVIDIA GPUs. It needs no CUDA toolkit; without a GPU the CPU is used.
//! - `structured` (default): answers of a given form, with `Model::structured`.
//! - `hub`: downloads models from the Hugging Face hub, with `hub::Hub` and `Model::from_hub`.
#![forbid(unsafe_code)]

mod builder;
mod embedder;
#[cfg(feature = "hub")]
pub mod hub;
mod message;
mod model;
mod prompt;
#[cfg(feature = "structured")]
mod structured;

pub use builder::ModelBuilder;
pub use embedder::Embedder;
pub use message::Message;
pub use model::{Model, now};
pub use prompt::Prompt;
#[cfg(feature = "structured")]
pub use structured::{Format, GrammarError, Structured, reasoning};

pub use realizar_compute::DType;
pub use realizar_engine::load::{CacheSize, Device, LoadError, LoadOptions as Options};
pub use realizar_engine::speculative::{DraftModel, DraftWanted, Ngram, Proposer};
pub use realizar_engine::{
    Completion, Constraint, EngineConfig, Error as GenerateError, Fault, FinishReason, Request,
    SamplingParams, TextEngine, TextEvent, TextParams, TextStream, Timings, TokenInfo, TokenMask, Usage,
};
pub use realizar_model::chat_template::{ChatTemplate, Timestamp};
pub use realizar_model::source::{TensorSource, open, open_gguf_bytes};
pub use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
pub use realizar_model::{ModelConfig, WeightBytes};

/// Why a model could not be loaded or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file, or its way to the device.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The request, or the device while it computed.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// An [`Embedder`] was asked for, and the model scores texts.
    #[error("the model is a reranker ({arch}): it scores texts against a query and makes no vectors")]
    Reranker {
        /// Its architecture.
        arch: &'static str,
    },
    /// The form that answers should have.
    #[cfg(feature = "structured")]
    #[error(transparent)]
    Format(#[from] GrammarError),
    /// The Hugging Face hub, or the way to it.
    #[cfg(feature = "hub")]
    #[error(transparent)]
    Hub(#[from] hub::HubError),
}

impl From<realizar_model::Error> for Error {
    fn from(error: realizar_model::Error) -> Self {
        Self::Load(error.into())
    }
}
