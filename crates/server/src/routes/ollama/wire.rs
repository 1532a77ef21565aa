//! What clients send to Ollama's API, and what they get, field by field.

use super::fields::OllamaFields;
use crate::fields::OtherFields;
use crate::openai::TokenLogprob;
use crate::params::ParamFields;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A conversation to answer.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[schema(as = OllamaChatRequest)]
pub(crate) struct ChatRequest {
    /// The model's name; may be left out.
    pub(super) model: Option<String>,
    /// The conversation so far.
    pub(super) messages: Option<Vec<Message>>,
    /// What the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    pub(super) tools: Option<Vec<Value>>,
    /// Whether to think first: true, false, or how much as low, medium or high.
    #[schema(value_type = Option<Object>)]
    pub(super) think: Option<Value>,
    /// `json`, or a JSON schema.
    #[schema(value_type = Option<Object>)]
    pub(super) format: Option<Value>,
    /// Sends the answer in pieces as it is generated, as lines of JSON. Default: true.
    pub(super) stream: Option<bool>,
    /// How to generate.
    pub(super) options: Option<Options>,
    /// How long the model stays loaded after this request: seconds, or a text such as 5m; negative: until its room is needed, 0: not at all.
    #[schema(value_type = Option<Object>)]
    pub(super) keep_alive: Option<Value>,
    /// Reports the log-probability of each token of the answer.
    pub(super) logprobs: Option<bool>,
    /// Likeliest tokens to report at each place.
    #[schema(maximum = 20)]
    pub(super) top_logprobs: Option<u32>,
    #[serde(flatten)]
    #[schema(ignore)]
    pub(super) other: OtherFields<OllamaFields>,
}

/// A text to answer or to continue.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[schema(as = OllamaGenerateRequest)]
pub(crate) struct GenerateRequest {
    /// The model's name; may be left out.
    pub(super) model: Option<String>,
    /// What the user says.
    pub(super) prompt: Option<String>,
    /// System prompt.
    pub(super) system: Option<String>,
    /// What comes after the gap that the answer fills.
    pub(super) suffix: Option<String>,
    /// The prompt is continued as it is. Default: false.
    pub(super) raw: Option<bool>,
    /// Whether to think first: true, false, or how much as low, medium or high.
    #[schema(value_type = Option<Object>)]
    pub(super) think: Option<Value>,
    /// `json`, or a JSON schema.
    #[schema(value_type = Option<Object>)]
    pub(super) format: Option<Value>,
    /// Sends the answer in pieces as it is generated, as lines of JSON. Default: true.
    pub(super) stream: Option<bool>,
    /// How to generate.
    pub(super) options: Option<Options>,
    /// How long the model stays loaded after this request: seconds, or a text such as 5m; negative: until its room is needed, 0: not at all.
    #[schema(value_type = Option<Object>)]
    pub(super) keep_alive: Option<Value>,
    /// Reports the log-probability of each token of the answer.
    pub(super) logprobs: Option<bool>,
    /// Likeliest tokens to report at each place.
    #[schema(maximum = 20)]
    pub(super) top_logprobs: Option<u32>,
    #[serde(flatten)]
    #[schema(ignore)]
    pub(super) other: OtherFields<OllamaFields>,
}

/// How to generate.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[schema(as = OllamaOptions)]
pub(crate) struct Options {
    /// Prompt and answer together have so many tokens at most.
    pub(super) num_ctx: Option<u32>,
    /// Tokens to generate at most; negative: to the end of the context.
    pub(super) num_predict: Option<i64>,
    /// Texts before which the answer ends.
    #[schema(value_type = Option<Vec<String>>)]
    pub(super) stop: Option<Stop>,
    /// The same seed and request give the same answer again.
    pub(super) seed: Option<i64>,
    /// How many of the last tokens penalties look at; -1 for all.
    #[schema(minimum = -1)]
    pub(super) repeat_last_n: Option<i64>,
    #[serde(flatten)]
    pub(super) params: ParamFields,
    #[serde(flatten)]
    #[schema(ignore)]
    pub(super) other: OtherFields<OllamaFields>,
}

/// One text or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(super) enum Stop {
    One(String),
    Many(Vec<String>),
}

/// A message of a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OllamaMessage)]
pub(crate) struct Message {
    /// system, user, assistant or tool.
    pub(super) role: String,
    #[serde(default)]
    pub(super) content: Option<String>,
    /// What an assistant thought before it spoke.
    #[serde(default)]
    pub(super) thinking: Option<String>,
    /// Not read; none.
    #[serde(default)]
    pub(super) images: Option<Vec<String>>,
    /// Tools that an assistant called.
    #[serde(default)]
    pub(super) tool_calls: Option<Vec<MessageCall>>,
    /// Of a tool's message: which tool it was.
    #[serde(default)]
    pub(super) tool_name: Option<String>,
    /// Of a tool's message: which call it answers.
    #[serde(default)]
    pub(super) tool_call_id: Option<String>,
}

/// A call of a tool in a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OllamaMessageCall)]
pub(crate) struct MessageCall {
    #[serde(default)]
    pub(super) id: Option<String>,
    pub(super) function: CalledFunction,
}

/// Which function, and with what.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, ToSchema)]
#[schema(as = OllamaCalledFunction)]
pub(crate) struct CalledFunction {
    pub(super) name: String,
    /// An object.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub(super) arguments: Value,
}

/// A line of an answer, or the whole of it.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[schema(as = OllamaAnswer)]
pub(crate) struct Answer {
    /// The model's name.
    pub(super) model: String,
    /// In UTC, by RFC 3339.
    pub(super) created_at: String,
    /// Of `/api/chat`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<AnswerMessage>,
    /// Of `/api/generate`: text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response: Option<String>,
    /// Of `/api/generate`: what the model thinks before it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) thinking: Option<String>,
    /// If they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) logprobs: Vec<TokenLogprob>,
    /// Whether it is the last.
    pub(super) done: bool,
    #[serde(flatten)]
    pub(super) end: Option<End>,
}

/// What the last line of an answer has.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaEnd)]
pub(crate) struct End {
    /// `stop`, `length`, or `load` where nothing was asked for.
    pub(super) done_reason: &'static str,
    /// In nanoseconds.
    pub(super) total_duration: u64,
    /// In nanoseconds; 0, the model is loaded.
    pub(super) load_duration: u64,
    /// Tokens of the prompt.
    pub(super) prompt_eval_count: usize,
    /// In nanoseconds.
    pub(super) prompt_eval_duration: u64,
    /// Tokens of the answer.
    pub(super) eval_count: usize,
    /// In nanoseconds.
    pub(super) eval_duration: u64,
}

/// What an assistant says.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[schema(as = OllamaAnswerMessage)]
pub(crate) struct AnswerMessage {
    /// assistant
    pub(super) role: &'static str,
    pub(super) content: String,
    /// What it thinks before it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) thinking: Option<String>,
    /// Tools that it calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<AnswerCall>,
}

/// A call of a tool.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaAnswerCall)]
pub(crate) struct AnswerCall {
    pub(super) id: String,
    pub(super) function: CalledFunction,
}

/// The name of a model.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OllamaModelName)]
pub(crate) struct ModelName {
    #[serde(default)]
    pub(super) model: Option<String>,
    /// Another name of `model`.
    #[serde(default)]
    pub(super) name: Option<String>,
    /// Of `/api/pull`: sends progress as lines of JSON. Default: true.
    #[serde(default)]
    pub(super) stream: Option<bool>,
}

/// The models of this server.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaModels)]
pub(crate) struct Models {
    pub(super) models: Vec<Model>,
}

/// A model.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaModel)]
pub(crate) struct Model {
    pub(super) name: String,
    /// Its name again.
    pub(super) model: String,
    /// When the server started, in UTC by RFC 3339.
    pub(super) modified_at: String,
    /// Of its weights, in bytes.
    pub(super) size: u64,
    /// SHA-256 of its name.
    pub(super) digest: String,
    pub(super) details: Details,
    /// Of a model that runs: when it is unloaded if it is not used until then; some hundred years from now: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<String>,
    /// Of a model that runs: bytes of its weights on a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) size_vram: Option<u64>,
    /// Of a model that runs, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) context_length: Option<usize>,
}

/// What kind of model it is.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaDetails)]
pub(crate) struct Details {
    /// Empty.
    pub(super) parent_model: &'static str,
    /// gguf or safetensors
    pub(super) format: String,
    /// Its architecture.
    pub(super) family: String,
    /// Its architecture.
    pub(super) families: Vec<String>,
    /// Such as 8.0B.
    pub(super) parameter_size: String,
    /// The type of most of its weights.
    pub(super) quantization_level: String,
}

/// More about a model.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaShown)]
pub(crate) struct Shown {
    /// Its chat template, in Jinja.
    pub(super) template: String,
    /// Empty.
    pub(super) modelfile: &'static str,
    /// How tokens are chosen where a request does not say, a line for each parameter; empty for a model that is not loaded.
    pub(super) parameters: String,
    /// As the model's files state it; empty where they do not.
    pub(super) license: String,
    pub(super) details: Details,
    /// `general.architecture`, `general.parameter_count` and `<architecture>.context_length`.
    #[schema(value_type = Object)]
    pub(super) model_info: Map<String, Value>,
    /// `completion`, `tools`, and as far as the model can `thinking` and `insert`.
    pub(super) capabilities: Vec<&'static str>,
    pub(super) modified_at: String,
}

/// The server's version.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaVersion)]
pub(crate) struct Version {
    pub(super) version: &'static str,
}

/// How far something is.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaProgress)]
pub(crate) struct Progress {
    pub(super) status: &'static str,
}

/// The body of every answer of this API that is an error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaError)]
pub(crate) struct ErrorBody {
    /// For a person: what was wrong and what to do.
    pub(super) error: String,
}
