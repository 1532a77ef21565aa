//! A model that is loaded, with all that belongs to it.

use crate::sizes::Sizes;
use crate::structured::{GrammarError, Grammars};
use crate::tool_calls::Syntax;
use realizar_engine::{SamplingParams, TextEngine};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

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
}

/// What loading a model gives, by what it can do.
#[non_exhaustive]
pub enum LoadedModel {
    /// It generates text.
    Text(TextModel),
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

/// A model that is loaded, and what is computed once for it.
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
    pub(crate) fn new(names: Vec<String>, loaded: LoadedModel) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let LoadedModel::Text(TextModel { engine, facts, sampling }) = loaded;
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
