//! Why a request was refused or ended early, and whose fault that is.

use realizar_compute::Chosen;
use realizar_compute::sampling::InvalidParam;
use std::time::Duration;

/// Why a request could not be taken or finished.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is nothing to continue.
    #[error("cannot continue an empty prompt")]
    EmptyPrompt,
    /// The prompt exceeds what a sequence may hold.
    #[error(
        "this model's maximum context length is {limit} tokens, but the prompt has {n_prompt} \
         (context of {context_length}, cache of {cache_tokens} tokens)"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// The smaller of the two limits, in tokens.
        limit: usize,
        /// The model's context, in tokens.
        context_length: usize,
        /// Tokens that the whole cache holds.
        cache_tokens: usize,
    },
    /// A stop string that every text contains.
    #[error("a stop string is empty")]
    EmptyStop,
    /// Stop strings that cannot be looked for.
    #[error("the stop strings cannot be looked for: {message}")]
    Stop {
        /// Why.
        message: String,
    },
    /// The model cannot chat.
    #[error("the model has no chat template; ask for a completion instead")]
    NoChatTemplate,
    /// The chat template does not take the conversation.
    #[error("{message}")]
    Template {
        /// What the template said.
        message: String,
    },
    /// A token id that the model does not have.
    #[error("{what} names token {id} but the vocabulary has {vocab_size} tokens")]
    UnknownToken {
        /// Where it stands: the prompt, the logit bias.
        what: &'static str,
        /// The id.
        id: u32,
        /// Tokens that the model has.
        vocab_size: usize,
    },
    /// A parameter outside its range.
    #[error("{name} is {value} but must be {expected}")]
    InvalidParam {
        /// The parameter's name.
        name: &'static str,
        /// What was given.
        value: f32,
        /// Its range in words.
        expected: String,
    },
    /// The grammar of a constrained request failed or allows no token.
    #[error("cannot follow the grammar: {message}")]
    Constraint {
        /// What the grammar engine said.
        message: String,
    },
    /// Too many requests wait already.
    #[error("{queued} requests are waiting; try again in {} s", retry_after.as_secs())]
    Overloaded {
        /// Requests that wait.
        queued: usize,
        /// When a place is likely to be free.
        retry_after: Duration,
    },
    /// The reader of the stream fell behind for too long.
    #[error("the stream's reader took nothing for {} s", stalled.as_secs())]
    SlowReader {
        /// For how long.
        stalled: Duration,
    },
    /// The engine takes no more requests because it is about to stop.
    #[error("the engine is shutting down")]
    ShuttingDown,
    /// The model's logits for this request cannot be sampled.
    #[error("cannot choose a token: {0}")]
    Sample(#[from] SampleError),
    /// The device failed while it computed a step of this request.
    #[error("the step failed: {message}")]
    Device {
        /// What the device said.
        message: String,
    },
    /// The engine's thread died; nothing can be computed any more.
    #[error("the engine has failed: {message}")]
    EngineFailed {
        /// What it said last.
        message: String,
    },
}

/// Who has to change something so that the request can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is wrong; the same one will fail again.
    Client,
    /// There is too much work at the moment; the same request may succeed later.
    Overload,
    /// This program, the model or the machine.
    Internal,
}

impl Error {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::EmptyPrompt
            | Self::PromptTooLong { .. }
            | Self::EmptyStop
            | Self::Stop { .. }
            | Self::NoChatTemplate
            | Self::Template { .. }
            | Self::UnknownToken { .. }
            | Self::InvalidParam { .. }
            | Self::Constraint { .. }
            | Self::SlowReader { .. } => Fault::Client,
            Self::Overloaded { .. } | Self::ShuttingDown => Fault::Overload,
            Self::Sample(_) | Self::Device { .. } | Self::EngineFailed { .. } => Fault::Internal,
        }
    }
}

impl From<InvalidParam> for Error {
    fn from(InvalidParam { name, value, expected }: InvalidParam) -> Self {
        Self::InvalidParam { name, value, expected }
    }
}

impl From<realizar_compute::Error> for Error {
    fn from(error: realizar_compute::Error) -> Self {
        Self::Device { message: error.to_string() }
    }
}

/// Why no token could be chosen from a row of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The model computed something that is not a number, or an infinite one.
    #[error("the logit of token {token} is {}", if *.nan { "not a number" } else { "infinite" })]
    NotFinite {
        /// The first such token.
        token: u32,
        /// Not a number, as opposed to infinite.
        nan: bool,
    },
    /// Every token is forbidden.
    #[error("no token is allowed")]
    NothingAllowed,
}

impl SampleError {
    /// The token, if one could be chosen.
    pub(crate) fn check(chosen: Chosen) -> std::result::Result<u32, Self> {
        match chosen {
            Chosen::Token(token) => Ok(token),
            Chosen::NotFinite { token, nan } => Err(Self::NotFinite { token, nan }),
            Chosen::Nothing => Err(Self::NothingAllowed),
        }
    }
}

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
