//! A model that is loaded, with all that belongs to it.

use crate::sizes::Sizes;
use crate::tool_calls::Syntax;
use realizar_engine::encoder::{EncoderEngine, TextEncoder};
use realizar_engine::{Health, SamplingParams, TextEngine};
use realizar_structured::{GrammarError, Grammars};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What is known of a model, for clients that ask.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelFacts {
    /// gguf or safetensors.
    pub format: String,
    /// Its architecture, as its files name it.
    pub family: String,
    /// Elements of all weights.
    pub n_parameters: u64,
    /// The element type of most weights.
    pub quantization: String,
    /// Of its files, in bytes.
    pub size: u64,
    /// Of its weights on GPUs, in bytes.
    pub gpu_size: u64,
    /// As its files state it; empty where they do not.
    pub license: String,
}

/// What loading a model gives, by what it can do.
#[non_exhaustive]
pub enum LoadedModel {
    /// It generates text.
    Text(TextModel),
    /// It embeds texts, or scores them against a query.
    Encoder(EncoderModel),
}

/// A model that generates text.
pub struct TextModel {
    /// Runs it.
    pub engine: TextEngine,
    /// What is known of it.
    pub facts: ModelFacts,
    /// How tokens are chosen where a request does not say.
    pub sampling: SamplingParams,
}

/// A model that embeds texts, or scores them against a query.
pub struct EncoderModel {
    /// Runs it.
    pub engine: EncoderEngine,
    /// Its client, with the tokenizer.
    pub encoder: TextEncoder,
    /// What is known of it.
    pub facts: ModelFacts,
}

/// A model in the table, by what it can do.
#[derive(Clone)]
pub(crate) enum Resident {
    Text(Arc<Model>),
    Encoder(Arc<Encoder>),
}

/// An encoder that is loaded.
pub(crate) struct Encoder {
    /// At least one; the first is what metrics call it.
    pub(crate) names: Vec<String>,
    pub(crate) text: TextEncoder,
    pub(crate) facts: ModelFacts,
    /// Ends with the last request that uses it.
    _engine: EncoderEngine,
}

impl Resident {
    pub(super) fn new(names: Vec<String>, loaded: LoadedModel) -> Self {
        match loaded {
            LoadedModel::Text(model) => Self::Text(Arc::new(Model::new(names, model))),
            LoadedModel::Encoder(EncoderModel { engine, encoder, facts }) => {
                tracing::info!(?names, ?facts, info = ?encoder.client().info(), "encoder is ready");
                Self::Encoder(Arc::new(Encoder { names, text: encoder, facts, _engine: engine }))
            }
        }
    }

    /// Its first name.
    pub(crate) fn name(&self) -> &str {
        let names = match self {
            Self::Text(model) => &model.names,
            Self::Encoder(encoder) => &encoder.names,
        };
        names.first().map_or("model", String::as_str)
    }

    pub(crate) fn facts(&self) -> &ModelFacts {
        match self {
            Self::Text(model) => &model.facts,
            Self::Encoder(encoder) => &encoder.facts,
        }
    }

    /// Longest sequence, in tokens.
    pub(crate) fn context(&self) -> usize {
        match self {
            Self::Text(model) => model.context(),
            Self::Encoder(encoder) => encoder.text.client().info().max_tokens,
        }
    }

    /// How its engine is.
    pub(crate) fn health(&self) -> Health {
        match self {
            Self::Text(model) => model.engine.client().health(),
            Self::Encoder(encoder) => encoder.text.client().health(),
        }
    }

    /// Takes no more requests, and finishes those it has for up to `timeout`.
    pub(crate) fn shutdown(&self, timeout: Duration) {
        match self {
            Self::Text(model) => model.engine.client().shutdown(timeout),
            Self::Encoder(encoder) => encoder.text.client().shutdown(timeout),
        }
    }
}

/// A model that generates text, and what is computed once for it.
pub(crate) struct Model {
    /// At least one; the first is what metrics call it.
    pub(crate) names: Vec<String>,
    pub(crate) engine: TextEngine,
    pub(crate) facts: ModelFacts,
    /// How tokens are chosen where a request does not say.
    pub(crate) sampling: SamplingParams,
    /// How it writes tool calls.
    pub(crate) syntax: &'static Syntax,
    /// Lengths of prompts and answers so far.
    pub(crate) sizes: Arc<Sizes>,
    /// No other model, and no other loading of this one, has it.
    serial: u64,
    grammars: OnceLock<Result<Grammars, GrammarError>>,
}

impl Model {
    fn new(names: Vec<String>, loaded: TextModel) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let TextModel { engine, facts, sampling } = loaded;
        let syntax = Syntax::of(engine.template());
        tracing::info!(?names, ?facts, ?sampling, syntax = syntax.name, "model is ready");
        Self {
            names,
            engine,
            facts,
            sampling,
            syntax,
            sizes: Arc::default(),
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            grammars: OnceLock::new(),
        }
    }

    /// Its first name.
    pub(crate) fn name(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }

    /// Longest sequence of prompt and answer, in tokens.
    pub(crate) fn context(&self) -> usize {
        self.engine.client().info().max_seq_len()
    }

    /// Under which a format compiled for this model is kept. `key`: of the format alone.
    pub(crate) fn format_key(&self, key: &str) -> String {
        format!("{} {key}", self.serial)
    }

    /// What compiles grammars for the model. The first call sorts its vocabulary.
    pub(crate) fn grammars(&self) -> Result<&Grammars, GrammarError> {
        let make = || {
            let tokenizer = self.engine.tokenizer();
            Grammars::new(tokenizer, tokenizer.eos_ids())
        };
        self.grammars.get_or_init(make).as_ref().map_err(Clone::clone)
    }
}
