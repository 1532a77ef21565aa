//! Run GGUF and safetensors language models from a Rust program.
//!
//! ```no_run
//! use realizar::{Model, Options, TextParams};
//!
//! let model = Model::load("Llama-3.2-1B-Instruct-Q4_K_M.gguf".as_ref(), &Options::default())?;
//! let params = TextParams { max_tokens: Some(100), ..TextParams::default() };
//! let answer = model.chat("Why is the sky blue?", &params, |text| {
//!     print!("{text}");
//!     true // false would stop here
//! })?;
//! println!("\n{} tokens", answer.tokens.len());
//! # Ok::<(), realizar::Error>(())
//! ```
//!
//! A [`Model`] owns its device and may be shared between threads: generations that run at the same time share its steps.
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::Arc;

pub use realizar_engine::load::{CacheSize, Device, LoadError, LoadOptions as Options};
pub use realizar_engine::speculative::{DraftModel, Ngram, Proposer};
pub use realizar_engine::{
    Completion, EngineConfig, FinishReason, SamplingParams, TextEngine, TextParams, Timings, TokenInfo, Usage,
};
use realizar_engine::{Engine, load};
use realizar_model::chat_template::{ChatTemplate, Timestamp};
use realizar_model::source::{self, TensorSource};
use realizar_model::tokenizer::Tokenizer;
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
    Generate(#[from] realizar_engine::Error),
}

impl From<realizar_model::Error> for Error {
    fn from(error: realizar_model::Error) -> Self {
        Self::Load(error.into())
    }
}

/// A model on its device, with its tokenizer and chat template.
pub struct Model {
    engine: TextEngine,
    config: ModelConfig,
    device: String,
    weights: WeightBytes,
    cache_bytes: usize,
    load_time: std::time::Duration,
}

impl Model {
    /// Loads a `.gguf` file or a Hugging Face folder.
    ///
    /// Errors: the file cannot be read or is not a model; the device cannot run it.
    pub fn load(path: &Path, options: &Options) -> Result<Self, Error> {
        Self::from_source(&*source::open(path)?, options)
    }

    /// Loads a model that is already open.
    pub fn from_source(source: &dyn TensorSource, options: &Options) -> Result<Self, Error> {
        Self::speculating(source, options, None, EngineConfig::default())
    }

    /// Loads a model that is already open, together with somebody who guesses how texts go on, if anybody: that changes no text and
    /// may save time. The steps' sizes in `config` follow those in `options`.
    pub fn speculating(
        source: &dyn TensorSource,
        options: &Options,
        proposer: Option<Box<dyn Proposer>>,
        config: EngineConfig,
    ) -> Result<Self, Error> {
        let tokenizer = Arc::new(Tokenizer::from_source(source)?);
        let template = ChatTemplate::from_source(source, &tokenizer)?;
        let loaded = load::load(source, options)?;
        let max_seqs = loaded.runner.info().limits.n_seqs;
        let config = EngineConfig { step_tokens: options.step_tokens, max_seqs, ..config };
        let client = Engine::start_speculating(loaded.runner, proposer, config)?;
        let engine = TextEngine::new(client, tokenizer, template);
        Ok(Self {
            engine,
            config: loaded.config,
            device: loaded.device,
            weights: loaded.weights,
            cache_bytes: loaded.memory.cache,
            load_time: loaded.load_time,
        })
    }

    /// Continues a text. `on_text` gets each piece as soon as it is certain; false stops within one token.
    ///
    /// An empty prompt, where the tokenizer adds nothing to it either, has an empty continuation.
    pub fn generate(
        &self,
        prompt: &str,
        params: &TextParams,
        on_text: impl FnMut(&str) -> bool,
    ) -> Result<Completion, Error> {
        match self.engine.complete(prompt, params) {
            Err(realizar_engine::Error::EmptyPrompt) => Ok(Completion::empty()),
            stream => first(stream?.run(on_text)?),
        }
    }

    /// Answers one message by the model's chat template.
    ///
    /// Errors: the model has no template; as [`Model::generate`].
    pub fn chat(
        &self,
        message: &str,
        params: &TextParams,
        on_text: impl FnMut(&str) -> bool,
    ) -> Result<Completion, Error> {
        let conversation = serde_json::json!({ "messages": [{ "role": "user", "content": message }] });
        first(self.engine.chat(&conversation, now(), params)?.run(on_text)?)
    }

    /// Continues many prompts side by side, each with its own parameters; results are in their order, and each is what its prompt
    /// would have got alone.
    pub fn generate_batch(&self, prompts: &[(&str, TextParams)]) -> Vec<Result<Completion, Error>> {
        let prompts: Vec<_> =
            prompts.iter().map(|(text, params)| (self.engine.encode_prompt(text), params.clone())).collect();
        self.engine.generate_batch(&prompts).into_iter().map(|r| r.map_err(Error::from)).collect()
    }

    /// Streams, conversations with tools, token ids: everything that the plain calls leave out.
    pub fn engine(&self) -> &TextEngine {
        &self.engine
    }

    /// Writes conversations by this template instead of the model's own.
    pub fn set_chat_template(&mut self, template: ChatTemplate) {
        self.engine.set_template(template);
    }

    /// The model's description.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The device in words.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Sizes of the weights on the device.
    pub fn weights(&self) -> WeightBytes {
        self.weights
    }

    /// Size of the cache of keys and values on the device, in bytes.
    pub fn cache_bytes(&self) -> usize {
        self.cache_bytes
    }

    /// How long loading took.
    pub fn load_time(&self) -> std::time::Duration {
        self.load_time
    }
}

fn first(choices: Vec<Completion>) -> Result<Completion, Error> {
    // A request for one continuation has one, or an error that was returned already.
    choices.into_iter().next().ok_or(Error::Generate(realizar_engine::Error::ShuttingDown))
}

/// The time that templates may print, in UTC.
pub fn now() -> Timestamp {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_unix(since_1970.as_secs() as i64, 0)
}
