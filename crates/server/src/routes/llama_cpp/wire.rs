//! What clients send to llama.cpp's endpoints, and what they get, field by field.

use super::fields::LlamaCppFields;
use crate::fields::OtherFields;
use crate::params::ParamFields;
use realizar_engine::TokenInfo;
use realizar_model::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Texts to continue.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[schema(as = LlamaCppCompletionRequest)]
pub(crate) struct CompletionRequest {
    /// A text, a list of token ids and texts that make one prompt, an object with `prompt_string`, or a list of these for several prompts.
    #[schema(value_type = String)]
    pub(super) prompt: Value,
    #[serde(flatten)]
    pub(super) options: Options,
}

/// A gap to fill.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[schema(as = LlamaCppInfillRequest)]
pub(crate) struct InfillRequest {
    /// The text before the gap.
    pub(super) input_prefix: String,
    /// The text after the gap.
    pub(super) input_suffix: String,
    /// Other files of the project.
    pub(super) input_extra: Option<Vec<ExtraFile>>,
    /// What the gap begins with.
    pub(super) prompt: Option<String>,
    #[serde(flatten)]
    pub(super) options: Options,
}

/// A file that helps to fill a gap in another one.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = LlamaCppExtraFile)]
pub(crate) struct ExtraFile {
    pub(super) filename: Option<String>,
    pub(super) text: String,
}

/// How to generate.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[schema(as = LlamaCppOptions)]
pub(crate) struct Options {
    /// The model's name; may be left out.
    pub(super) model: Option<String>,
    /// Tokens to generate at most; negative: to the end of the context.
    pub(super) n_predict: Option<i64>,
    /// Continuations of each prompt.
    #[schema(minimum = 1, maximum = 128)]
    pub(super) n_cmpl: Option<u32>,
    /// Sends the answer in pieces as it is generated, as server-sent events.
    pub(super) stream: Option<bool>,
    /// Texts before which the answer ends.
    #[schema(value_type = Option<Vec<String>>)]
    pub(super) stop: Option<Stop>,
    /// The same seed and request give the same answer again; -1 takes one at random.
    pub(super) seed: Option<i64>,
    /// How many of the last tokens `repeat_penalty` and the like look at; -1 for all. Default: 64.
    #[schema(minimum = -1)]
    pub(super) repeat_last_n: Option<i64>,
    #[serde(flatten)]
    pub(super) params: ParamFields,
    /// Goes on after the tokens by which the model ends its text.
    pub(super) ignore_eos: Option<bool>,
    /// Added to logits: pairs of a token id, or a text, and a number or false; or an object of them.
    #[schema(value_type = Option<Object>)]
    pub(super) logit_bias: Option<Value>,
    /// Reports the log-probability of each token, with so many of the likeliest.
    #[schema(maximum = 20)]
    pub(super) n_probs: Option<u32>,
    /// Reports the ids of the generated tokens.
    pub(super) return_tokens: Option<bool>,
    /// The answer follows this grammar, in GBNF or in Lark.
    pub(super) grammar: Option<String>,
    /// The answer is JSON of this schema.
    #[schema(value_type = Option<Object>)]
    pub(super) json_schema: Option<Value>,
    /// The only fields of the answer, such as `content` or `generation_settings/n_predict`.
    pub(super) response_fields: Option<Vec<String>>,
    #[serde(flatten)]
    #[schema(ignore)]
    pub(super) other: OtherFields<LlamaCppFields>,
}

/// One text or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(super) enum Stop {
    One(String),
    Many(Vec<String>),
}

/// One event of a streamed answer, for the OpenAPI document.
#[derive(Debug, ToSchema)]
#[schema(as = LlamaCppEvent)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct StreamEvent {
    /// As JSON: a `LlamaCppPiece`, at the end a `LlamaCppCompletion`, or a `LlamaCppErrorBody` if the answer breaks off.
    pub(super) data: String,
}

/// A piece of a streamed answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppPiece)]
pub(crate) struct Piece {
    /// Which of the request's continuations.
    pub(super) index: usize,
    /// The text since the last piece.
    pub(super) content: String,
    /// Its token ids.
    pub(super) tokens: Vec<u32>,
    /// false
    pub(super) stop: bool,
    /// -1: requests do not belong to slots.
    pub(super) id_slot: i32,
    /// Tokens generated so far.
    pub(super) tokens_predicted: usize,
    /// Tokens of the prompt.
    pub(super) tokens_evaluated: usize,
    /// Log-probabilities of its tokens, if asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) completion_probabilities: Vec<TokenProbability>,
}

/// A continuation, whole or the end of a stream. `response_fields` leaves out what it does not name.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppCompletion)]
pub(crate) struct Completion {
    /// Which of the request's continuations.
    #[schema(required = false)]
    pub(super) index: usize,
    /// The text; empty at the end of a stream.
    #[schema(required = false)]
    pub(super) content: String,
    /// Its token ids, if asked for.
    #[schema(required = false)]
    pub(super) tokens: Vec<u32>,
    /// -1: requests do not belong to slots.
    #[schema(required = false)]
    pub(super) id_slot: i32,
    /// true
    #[schema(required = false)]
    pub(super) stop: bool,
    /// The model's name.
    #[schema(required = false)]
    pub(super) model: String,
    /// Tokens generated.
    #[schema(required = false)]
    pub(super) tokens_predicted: usize,
    /// Tokens of the prompt.
    #[schema(required = false)]
    pub(super) tokens_evaluated: usize,
    /// Tokens of the prompt that were found in the cache.
    #[schema(required = false)]
    pub(super) tokens_cached: usize,
    /// What the request asked for, with defaults.
    #[schema(required = false)]
    pub(super) generation_settings: GenerationSettings,
    /// The prompt as the model read it.
    #[schema(required = false)]
    pub(super) prompt: String,
    /// Whether the text has a line break.
    #[schema(required = false)]
    pub(super) has_new_line: bool,
    /// false: nothing is cut.
    #[schema(required = false)]
    pub(super) truncated: bool,
    /// eos, word or limit
    #[schema(required = false)]
    pub(super) stop_type: &'static str,
    /// The text of `stop` that was found, or nothing.
    #[schema(required = false)]
    pub(super) stopping_word: String,
    #[schema(required = false)]
    pub(super) timings: SpeedTimings,
    /// Log-probabilities of the tokens, if asked for and not streamed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(super) completion_probabilities: Vec<TokenProbability>,
}

/// The answer to one prompt, or to several.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppAnswer)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum Answer {
    One(Box<Completion>),
    Many(Vec<Completion>),
}

/// How a continuation was generated.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[schema(as = LlamaCppGenerationSettings)]
pub(crate) struct GenerationSettings {
    /// 4294967295 for one at random.
    pub(super) seed: u64,
    pub(super) temperature: f32,
    pub(super) top_k: usize,
    pub(super) top_p: f32,
    pub(super) min_p: f32,
    /// -1 for all.
    pub(super) repeat_last_n: i64,
    pub(super) repeat_penalty: f32,
    pub(super) presence_penalty: f32,
    pub(super) frequency_penalty: f32,
    /// Token ids and what is added to their logits.
    #[schema(value_type = Vec<Object>)]
    pub(super) logit_bias: Vec<Bias>,
    pub(super) stop: Vec<String>,
    /// -1 for the end of the context.
    pub(super) n_predict: i64,
    /// As `n_predict`.
    pub(super) max_tokens: i64,
    pub(super) ignore_eos: bool,
    pub(super) stream: bool,
    pub(super) n_probs: usize,
    pub(super) grammar: String,
}

/// What is added to the logit of a token.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Bias {
    pub(super) token: u32,
    pub(super) bias: f32,
}

/// Speed of a continuation.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppTimings)]
pub(crate) struct SpeedTimings {
    /// Tokens of the prompt that were found in the cache.
    pub(super) cache_n: usize,
    /// Tokens of the prompt that were computed.
    pub(super) prompt_n: usize,
    pub(super) prompt_ms: f64,
    pub(super) prompt_per_token_ms: f64,
    pub(super) prompt_per_second: f64,
    /// Tokens generated.
    pub(super) predicted_n: usize,
    pub(super) predicted_ms: f64,
    pub(super) predicted_per_token_ms: f64,
    pub(super) predicted_per_second: f64,
}

/// A token, how likely it was, and what else was likely.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = LlamaCppTokenProbability)]
pub(crate) struct TokenProbability {
    #[serde(flatten)]
    pub(super) token: LikelyToken,
    /// The likeliest tokens in its place, likeliest first.
    pub(super) top_logprobs: Vec<LikelyToken>,
}

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = LlamaCppLikelyToken)]
pub(crate) struct LikelyToken {
    pub(super) id: u32,
    /// Its text; U+FFFD for bytes that are no text on their own.
    pub(super) token: String,
    /// Its text as bytes.
    pub(super) bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub(super) logprob: f32,
}

impl TokenProbability {
    pub(super) fn new(tokenizer: &Tokenizer, info: &TokenInfo) -> Self {
        let likely = |id: u32, logprob: f32| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default().into_owned();
            // JSON has no infinity.
            let logprob = logprob.max(f32::MIN);
            LikelyToken { id, token: String::from_utf8_lossy(&bytes).into_owned(), bytes, logprob }
        };
        Self {
            token: likely(info.id, info.logprob.unwrap_or(0.0)),
            top_logprobs: info.top_logprobs.iter().map(|&(id, logprob)| likely(id, logprob)).collect(),
        }
    }
}

/// The body of an answer that is an error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppErrorBody)]
pub(crate) struct ErrorBody {
    pub(super) error: ErrorDetail,
}

/// What is wrong.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppErrorDetail)]
pub(crate) struct ErrorDetail {
    /// The answer's status.
    pub(super) code: u16,
    /// What was wrong and what to do.
    pub(super) message: String,
    /// The kind of error, such as invalid_request_error.
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
}
