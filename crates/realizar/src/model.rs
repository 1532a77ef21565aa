//! A language model on its device.

use crate::message::conversation;
use crate::{
    ChatTemplate, Completion, EngineConfig, Error, GenerateError, Message, ModelBuilder, ModelConfig,
    Options, Prompt, Proposer, Request, SamplingParams, TensorSource, TextEngine, TextParams, TextStream,
    Timestamp, Tokenizer, WeightBytes,
};
use realizar_engine::{Engine, Event, load};
use realizar_model::sampling_defaults;
#[cfg(feature = "structured")]
use realizar_structured::{GrammarError, Grammars};
use std::path::Path;
use std::sync::Arc;
#[cfg(feature = "structured")]
use std::sync::OnceLock;
use std::time::Duration;

/// A language model on its device, with its tokenizer and chat template.
pub struct Model {
    engine: TextEngine,
    sampling: SamplingParams,
    config: ModelConfig,
    device: String,
    weights: WeightBytes,
    cache_bytes: usize,
    load_time: Duration,
    #[cfg(feature = "structured")]
    grammars: OnceLock<Result<Grammars, GrammarError>>,
}

impl Model {
    /// Loads a `.gguf` file or a Hugging Face folder with default options.
    ///
    /// Errors: as [`ModelBuilder::load`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder(path).load()
    }

    /// Options to load a `.gguf` file or a Hugging Face folder with.
    pub fn builder(path: impl AsRef<Path>) -> ModelBuilder<'static> {
        ModelBuilder::of_path(path.as_ref())
    }

    /// Options to load a model with that is already open, such as one from memory.
    ///
    /// ```no_run
    /// # const FILE: &[u8] = b"";
    /// // `const FILE: &[u8] = include_bytes!("model.gguf");`
    /// let source = realizar::open_gguf_bytes("built-in model", FILE.into())?;
    /// let model = realizar::Model::builder_from(&*source).load()?;
    /// # Ok::<(), realizar::Error>(())
    /// ```
    pub fn builder_from(source: &dyn TensorSource) -> ModelBuilder<'_> {
        ModelBuilder::of_source(source)
    }

    /// Downloads a model from the Hugging Face hub, unless it is in the cache, and loads it with default options. Its name is
    /// `OWNER/NAME[:FILE-OR-QUANT]`; see [`HubModel`](crate::hub::HubModel).
    ///
    /// Errors: as [`Hub::get`](crate::hub::Hub::get) and [`ModelBuilder::load`].
    #[cfg(feature = "hub")]
    pub fn from_hub(name: &str) -> Result<Self, Error> {
        Self::load(crate::hub::Hub::from_env()?.get(&name.parse()?)?)
    }

    pub(crate) fn start(
        source: &dyn TensorSource,
        options: &Options,
        config: EngineConfig,
        proposer: Option<Box<dyn Proposer>>,
        template: Option<ChatTemplate>,
    ) -> Result<Self, Error> {
        let tokenizer = Arc::new(Tokenizer::from_source(source)?);
        let template = match template {
            Some(template) => Some(template),
            None => ChatTemplate::from_source(source, &tokenizer)?,
        };
        let sampling = sampling_defaults(source)?.params;
        let loaded = load::load(source, options)?;
        let max_seqs = loaded.runner.info().limits.n_seqs;
        let config = EngineConfig { step_tokens: options.step_tokens, max_seqs, ..config };
        let client = Engine::start_speculating(loaded.runner, proposer, config)?;
        Ok(Self {
            engine: TextEngine::new(client, tokenizer, template),
            sampling,
            config: loaded.config,
            device: loaded.device,
            weights: loaded.weights,
            cache_bytes: loaded.memory.cache,
            load_time: loaded.load_time,
            #[cfg(feature = "structured")]
            grammars: OnceLock::new(),
        })
    }

    /// What compiles formats for its vocabulary, which the first call sorts.
    #[cfg(feature = "structured")]
    pub(crate) fn grammars(&self) -> Result<&Grammars, GrammarError> {
        let make = || Grammars::new(self.tokenizer(), self.tokenizer().eos_ids());
        self.grammars.get_or_init(make).as_ref().map_err(Clone::clone)
    }

    /// Answers a conversation, rendered by the model's chat template. The stream delivers text as it is generated;
    /// [`TextStream::completion`] waits for the whole answer.
    ///
    /// ```no_run
    /// # let model = realizar::Model::load("model.gguf")?;
    /// use realizar::Message;
    ///
    /// let answer = model.chat(&[Message::user("Why is the sky blue?")], &model.default_params())?.completion()?;
    /// println!("{}", answer.text);
    /// # Ok::<(), realizar::Error>(())
    /// ```
    ///
    /// Errors: the model has no chat template, or it does not accept the messages; the prompt is longer than the context; a
    /// parameter is out of range.
    pub fn chat(&self, messages: &[Message], params: &TextParams) -> Result<TextStream, Error> {
        Ok(self.engine.chat(&conversation(messages), now(), params)?)
    }

    /// Continues a text or token ids. The stream delivers text as it is generated; [`TextStream::completion`] waits for all of it.
    ///
    /// Errors: the prompt is empty, longer than the context, or has an unknown token; a parameter is out of range.
    pub fn generate<'a>(
        &self,
        prompt: impl Into<Prompt<'a>>,
        params: &TextParams,
    ) -> Result<TextStream, Error> {
        Ok(self.engine.complete_tokens(prompt.into().tokens(&self.engine), params)?)
    }

    /// Continues many prompts side by side, each with its own parameters, and waits for all of them. Results are in the order of the
    /// prompts, and each is what its prompt would get alone; in the fast mode of a GPU as far as docs/gpu.md states. An empty prompt has an empty
    /// continuation.
    ///
    /// Errors, each in the place of its prompt: as [`Model::generate`].
    pub fn generate_batch<'a, P: Into<Prompt<'a>>>(
        &self,
        prompts: impl IntoIterator<Item = (P, TextParams)>,
    ) -> Vec<Result<Completion, Error>> {
        let prompts: Vec<_> = prompts
            .into_iter()
            .map(|(prompt, params)| (prompt.into().tokens(&self.engine), params))
            .collect();
        self.engine.generate_batch(&prompts).into_iter().map(|r| r.map_err(Error::from)).collect()
    }

    /// The model's logits for the token that follows a prompt, indexed by token id. Shape `[vocab_size]`. They are exact to the rounding of
    /// a float.
    ///
    /// Errors: the prompt is empty, fills the context, or has an unknown token; a logit is not a number or infinite.
    pub fn logits<'a>(&self, prompt: impl Into<Prompt<'a>>) -> Result<Vec<f32>, Error> {
        let (mut row, log_sum_exp) = self.next_token(prompt.into())?;
        row.iter_mut().for_each(|x| *x += log_sum_exp);
        Ok(row)
    }

    /// Log-probabilities of all tokens that may follow a prompt, indexed by token id: natural logarithms of the softmax of
    /// [`Model::logits`], before any sampling step. Shape `[vocab_size]`.
    ///
    /// Errors: as [`Model::logits`].
    pub fn log_probs<'a>(&self, prompt: impl Into<Prompt<'a>>) -> Result<Vec<f32>, Error> {
        Ok(self.next_token(prompt.into())?.0)
    }

    /// Log-probabilities behind a prompt, and the logarithm of the sum of the exponentials of its logits.
    fn next_token(&self, prompt: Prompt<'_>) -> Result<(Vec<f32>, f32), Error> {
        let prompt = prompt.tokens(&self.engine);
        let (n_prompt, info) = (prompt.len(), self.engine.client().info());
        let request = Request {
            sampling: SamplingParams::greedy(),
            n_logprobs: Some(info.vocab_size),
            speculate: Some(false),
            ..Request::new(prompt, 1)
        };
        let mut row = None;
        for event in self.engine.client().submit(request)? {
            match event {
                Event::Token { top_logprobs, log_sum_exp, .. } => {
                    let mut log_probs = vec![f32::NEG_INFINITY; info.vocab_size];
                    top_logprobs.into_iter().for_each(|(id, logprob)| log_probs[id as usize] = logprob);
                    row = log_sum_exp.map(|x| (log_probs, x));
                }
                Event::Error(error) => return Err(error.into()),
                Event::PromptToken { .. } | Event::Finished { .. } => {}
            }
        }
        // The engine chooses no token behind a full context.
        row.ok_or(Error::Generate(GenerateError::PromptTooLong {
            n_prompt,
            limit: info.max_seq_len().saturating_sub(1),
            context_length: info.context_length,
            cache_tokens: info.cache_tokens(),
        }))
    }

    /// Log-probabilities of a prompt's own tokens, each given those before it: natural logarithms. Shape `[n_tokens - 1]`, since nothing
    /// precedes the first. The negative mean is the logarithm of the perplexity.
    ///
    /// Errors: the prompt is empty, longer than the context, or has an unknown token.
    pub fn score<'a>(&self, prompt: impl Into<Prompt<'a>>) -> Result<Vec<f32>, Error> {
        let prompt = prompt.into().tokens(&self.engine);
        let request = Request { prompt_logprobs: Some(0), ..Request::new(prompt, 0) };
        let mut scores = Vec::new();
        for event in self.engine.client().submit(request)? {
            match event {
                Event::PromptToken { logprob, .. } => scores.extend(logprob),
                Event::Error(error) => return Err(error.into()),
                Event::Token { .. } | Event::Finished { .. } => {}
            }
        }
        Ok(scores)
    }

    /// Token ids of a text to continue, with the special tokens that the model expects around it, such as BOS. Special tokens written
    /// out in the text become those tokens. [`Model::tokenizer`] encodes in other ways.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.engine.encode_prompt(text)
    }

    /// Token ids of a conversation as [`Model::chat`] renders it, up to where the answer begins.
    ///
    /// Errors: the model has no chat template, or it does not accept the messages.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, Error> {
        Ok(self.engine.encode_chat(&conversation(messages), now())?)
    }

    /// Text of token ids, without special tokens. Invalid UTF-8 becomes U+FFFD; ids outside the vocabulary are left out.
    pub fn decode(&self, tokens: &[u32]) -> String {
        self.tokenizer().decode(tokens, true)
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.engine.tokenizer()
    }

    /// The sampling parameters that the model's files recommend, or usual ones if they recommend none; all else by default.
    /// [`TextParams::default`] samples from the model's distribution as it is.
    pub fn default_params(&self) -> TextParams {
        TextParams { sampling: self.sampling.clone(), ..TextParams::default() }
    }

    /// The engine, for requests that the methods above cannot express.
    pub fn engine(&self) -> &TextEngine {
        &self.engine
    }

    /// The model's description.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The device in words.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Sizes of the weights on the device, in bytes.
    pub fn weights(&self) -> WeightBytes {
        self.weights
    }

    /// Size of the cache of keys and values on the device, in bytes.
    pub fn cache_bytes(&self) -> usize {
        self.cache_bytes
    }

    /// How long loading took.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// Accepts no more requests, finishes those that run for up to `timeout`, cancels the rest, and frees the device. A program that uses a
    /// GPU calls this before it exits: GPU drivers may crash if the process ends while another thread still frees memory.
    ///
    /// Without it, the engine stops when the model and all its streams are dropped.
    pub fn shutdown(&self, timeout: Duration) {
        self.engine.client().shutdown(timeout);
    }
}

/// The current time in UTC, for chat templates that print the date.
pub fn now() -> Timestamp {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_unix(since_1970.as_secs() as i64, 0)
}
