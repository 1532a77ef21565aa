//! Structured output: JSON, JSON schemas, regular expressions and grammars, as masks over the model's tokens.
//!
//! [`Grammars`] holds the vocabulary as a trie of bytes, built once for a model. [`Grammars::compile`] turns a [`Format`] into a
//! [`Constraint`] that the engine asks for a mask before each token. `compile` keeps to bounds of time and memory, `limits` has those of the source. `schema` checks a JSON schema and says
//! where it is wrong, `closed` says that its objects have no further properties, `gbnf` reads llama.cpp's grammars for the machine in `pushdown`, `vocabulary` builds the trie, `constraint` is
//! the engine's seam, `after_reasoning` puts off a format until the model has thought, `after_grammar` until a text of another grammar has come. All but GBNF runs in llguidance: an Earley
//! parser over lexemes whose regular expressions are derivatives, walked along the trie. [`reasoning`] tells what a model thinks from its answer.
#![forbid(unsafe_code)]

mod after_grammar;
mod after_reasoning;
mod closed;
mod compile;
mod constraint;
mod gbnf;
mod leap_seconds;
mod limits;
mod pushdown;
pub mod reasoning;
mod schema;
mod vocabulary;

use after_grammar::AfterGrammar;
use after_reasoning::{AfterReasoning, FreeTokens};
use compile::limits as library_limits;
use llguidance::ParserFactory;
use llguidance::toktrie::TokEnv;
use realizar_engine::Constraint;
use realizar_model::tokenizer::Tokenizer;
use reasoning::Tags;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use closed::close_objects;
pub use compile::{Compiled, Deadline};
pub use schema::prepare as prepare_schema;

/// Bytes of a schema, pattern or grammar at most.
const MAX_SOURCE_BYTES: usize = 512 << 10;

/// Stack of a thread that compiles formats from outside, in bytes. The deepest format within the bounds takes some tens of megabytes in a debug
/// build; memory that is not touched is not used.
pub const COMPILER_STACK_BYTES: usize = 256 << 20;

/// How long [`Grammars::compile`] may take.
const LONGEST: Duration = Duration::from_secs(60);

/// What a text must look like.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// A JSON object with any contents.
    Json,
    /// JSON that a schema describes.
    JsonSchema {
        /// The schema, in the dialect of draft 2020-12.
        schema: Value,
        /// Refuses schemas with keywords that cannot be enforced, or that nobody knows. Otherwise these keywords say nothing, and
        /// the rest of the schema holds.
        strict: bool,
    },
    /// Text that a regular expression matches from its first to its last character. Syntax of Rust's regex crate, without
    /// look-around and back-references.
    Regex(String),
    /// Text that a grammar describes: in llguidance's dialect of Lark, or in GBNF, which is told by its `::=`.
    Grammar(String),
}

/// What comes in an answer before its format.
#[derive(Clone, Debug, PartialEq)]
pub enum Before {
    /// The answer begins with the format.
    Nothing,
    /// The reasoning and its end.
    Reasoning {
        /// What is around it.
        tags: &'static Tags,
        /// The prompt has begun it ([`reasoning::open_in`]). Otherwise the answer may do so with one token.
        is_begun: bool,
    },
    /// Text that a grammar in Lark describes, of which no text goes on after a whole one.
    Grammar(String),
}

impl Before {
    /// Reasoning within which the prompt ends (`begun`), which the answer may begin with (`possible`), or none.
    pub fn reasoning(begun: Option<&'static Tags>, possible: Option<&'static Tags>) -> Self {
        match begun.or(possible) {
            Some(tags) => Self::Reasoning { tags, is_begun: begun.is_some() },
            None => Self::Nothing,
        }
    }
}

impl Format {
    /// JSON of a schema. `open_schemas`: objects without `additionalProperties` may have further properties.
    pub fn json_schema(schema: &Value, strict: bool, open_schemas: bool) -> Self {
        let mut schema = schema.clone();
        if !open_schemas {
            close_objects(&mut schema);
        }
        Self::JsonSchema { schema, strict }
    }
}

/// Why a format cannot be enforced. All but `Vocabulary` are the caller's mistakes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The JSON schema is wrong or says what cannot be enforced.
    #[error("the JSON schema cannot be enforced: at {path}: {reason}")]
    Schema {
        /// JSON pointer to the place, from `#`.
        path: String,
        /// What is wrong there.
        reason: String,
    },
    /// The regular expression is wrong.
    #[error("the regular expression cannot be enforced: {reason}")]
    Regex {
        /// What is wrong with it.
        reason: String,
    },
    /// The grammar is wrong.
    #[error("the grammar cannot be enforced: {reason}")]
    Grammar {
        /// What is wrong with it, with its place where that is known.
        reason: String,
    },
    /// It would take too much time or memory.
    #[error("{what} is too large: {size}, at most {limit} are allowed")]
    TooLarge {
        /// What is too large, with its unit.
        what: &'static str,
        /// How large it is.
        size: usize,
        /// How large it may be.
        limit: usize,
    },
    /// Compiling it takes too long.
    #[error("the format is too complex: it was not compiled within {} s", limit.as_secs_f64())]
    TooSlow {
        /// How long it may take.
        limit: Duration,
    },
    /// The model's vocabulary does not allow structured output.
    #[error("this model cannot follow a grammar: {reason}")]
    Vocabulary {
        /// Why.
        reason: String,
    },
}

/// Compiles formats for one model. Cloning shares everything.
#[derive(Clone)]
pub struct Grammars {
    factory: Arc<ParserFactory>,
    environment: TokEnv,
    /// Tokens of the tags around reasoning, by their texts.
    ids: Arc<HashMap<&'static str, u32>>,
    /// What tokens mean in the reasoning and after it, of each of [`reasoning::TAGS`] that somebody asked for: all tokens are looked at.
    free: Arc<[OnceLock<Arc<FreeTokens>>]>,
    /// A token that ends a text.
    stop: u32,
}

impl Grammars {
    /// Sorts the vocabulary into a trie: tens of milliseconds for 128k tokens.
    ///
    /// `stops`: the tokens that end a text; they are allowed where, and only where, the text may end.
    ///
    /// Errors: [`GrammarError::Vocabulary`] if there is no stop token, or the vocabulary is beyond the trie's bounds.
    pub fn new(tokenizer: &Tokenizer, stops: &[u32]) -> Result<Self, GrammarError> {
        let refuse = |reason: String| GrammarError::Vocabulary { reason };
        let environment = vocabulary::token_environment(tokenizer, stops)?;
        let tags = reasoning::TAGS.iter().flat_map(|tags| [tags.token, tags.close]);
        let ids = tags.filter_map(|text| Some((text, tokenizer.id_of(text)?))).collect();
        let mut factory = ParserFactory::new_simple(&environment).map_err(|error| refuse(message(&error)))?;
        factory.quiet();
        *factory.limits_mut() = library_limits();
        let stop =
            stops.first().copied().ok_or_else(|| refuse("it has no token that ends a text".to_owned()))?;
        let free = reasoning::TAGS.iter().map(|_| OnceLock::new()).collect();
        Ok(Self { factory: Arc::new(factory), environment, ids: Arc::new(ids), free, stop })
    }

    /// Prepares the enforcement of a format on this thread: up to some seconds, and hundreds of kilobytes of stack for what recurses, up to [`COMPILER_STACK_BYTES`] for
    /// formats written to do harm.
    ///
    /// Errors: what is wrong with the format, and where.
    pub fn compile(&self, format: &Format) -> Result<Box<dyn Constraint>, GrammarError> {
        Ok(self.prepare(format)?.constraint())
    }

    /// Like [`Grammars::compile`], for any number of constraints of the same format.
    ///
    /// Errors: as [`Grammars::compile`].
    pub fn prepare(&self, format: &Format) -> Result<Compiled, GrammarError> {
        self.compile_until(format, Deadline::after(LONGEST))
    }

    /// Like [`Grammars::compile`], but the format holds for what comes after something else.
    ///
    /// Errors: as [`Grammars::compile`].
    pub fn compile_after(
        &self,
        before: &Before,
        format: &Format,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        self.after(before, self.compile(format)?)
    }

    fn free_tokens(&self, tags: &'static Tags) -> Arc<FreeTokens> {
        let make = || FreeTokens::new(self.environment.clone(), tags, |text| self.ids.get(text).copied());
        let known = reasoning::TAGS.iter().zip(&*self.free).find(|(of, _)| *of == tags);
        let (_, free) = known.expect("tags are of the table");
        free.get_or_init(|| Arc::new(make())).clone()
    }

    /// A constraint that begins after something else.
    ///
    /// Errors: as [`Grammars::compile`].
    pub fn after(
        &self,
        before: &Before,
        constraint: Box<dyn Constraint>,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        Ok(match before {
            Before::Nothing => constraint,
            Before::Reasoning { tags, is_begun } => {
                Box::new(AfterReasoning::new(self.free_tokens(tags), *is_begun, constraint))
            }
            Before::Grammar(lark) => {
                let first = self.compile(&Format::Grammar(lark.clone()))?;
                Box::new(AfterGrammar::new(first, self.stop, constraint))
            }
        })
    }

    /// Errors: as [`Grammars::compile`]; [`GrammarError::TooSlow`].
    pub fn compile_until(&self, format: &Format, deadline: Deadline) -> Result<Compiled, GrammarError> {
        compile::compile(&self.factory, format, deadline)
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let n_tokens = self.factory.tok_env().tok_trie().vocab_size();
        f.debug_struct("Grammars").field("n_tokens", &n_tokens).finish_non_exhaustive()
    }
}

fn check_size(what: &'static str, size: usize) -> Result<(), GrammarError> {
    match size > MAX_SOURCE_BYTES {
        true => Err(GrammarError::TooLarge { what, size, limit: MAX_SOURCE_BYTES }),
        false => Ok(()),
    }
}

/// The error's own words, without llguidance's remarks for its developers.
fn message(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    let end = text.find("\n<non-verbose/>").or_else(|| text.find("\n<backtrace>")).unwrap_or(text.len());
    text[..end].trim_end().to_owned()
}
