//! What clients send to `/v1/responses`, and what they get, field by field.

use super::fields::ResponsesFields;
use crate::fields::OtherFields;
use crate::openai::TokenLogprob;
use crate::params::ParamFields;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// What to answer, and how.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct ResponsesRequest {
    /// The model's name; may be left out.
    pub(in crate::routes) model: Option<String>,
    /// A text of the user's, or items: messages, calls, results, reasoning.
    #[schema(value_type = Option<Object>)]
    pub(super) input: Option<Input>,
    /// System prompt of this request; later ones that go on after its response do not have it.
    pub(super) instructions: Option<String>,
    /// Goes on after this response, which has to be stored.
    pub(super) previous_response_id: Option<String>,
    /// Keeps the response in memory. Default: true.
    pub(super) store: Option<bool>,
    /// Tokens to generate at most. Default: to the end of the context.
    pub(super) max_output_tokens: Option<u32>,
    /// Sends the answer in pieces as it is generated, as server-sent events.
    pub(super) stream: Option<bool>,
    /// What else the response has: `reasoning.encrypted_content`, `message.output_text.logprobs`.
    pub(super) include: Option<Vec<String>>,
    /// How much to think first.
    pub(super) reasoning: Option<ReasoningField>,
    /// What the answer must look like.
    pub(super) text: Option<TextField>,
    /// What the model may call.
    pub(super) tools: Option<Vec<ToolField>>,
    /// none, auto, required, a function by its name, or `allowed_tools`. Default: auto.
    #[schema(value_type = Option<Object>)]
    pub(super) tool_choice: Option<Value>,
    /// Whether an answer may have several calls. Default: true.
    pub(super) parallel_tool_calls: Option<bool>,
    /// auto leaves out the oldest turns of a conversation that is too long. Default: disabled.
    pub(super) truncation: Option<Truncation>,
    /// Likeliest tokens to report at each place.
    #[schema(maximum = 20)]
    pub(super) top_logprobs: Option<u32>,
    /// Comes back with the response.
    #[schema(value_type = Option<Object>)]
    pub(super) metadata: Option<Map<String, Value>>,
    /// Extension: the same seed and request give the same answer again, on a GPU with `--deterministic`.
    pub(super) seed: Option<i64>,
    /// Extension: only requests with the same salt share cached prefixes.
    pub(super) cache_salt: Option<String>,
    /// Extension: further variables of the chat template.
    #[schema(value_type = Option<Object>)]
    pub(super) chat_template_kwargs: Option<Map<String, Value>>,
    #[serde(flatten)]
    pub(super) params: ParamFields,
    #[serde(flatten)]
    #[schema(ignore)]
    pub(super) other: OtherFields<ResponsesFields>,
}

/// A text of the user's, or items.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of items")]
pub(super) enum Input {
    Text(String),
    Items(Vec<Item>),
}

/// An item of a conversation. Which of the fields there are depends on its type.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Item {
    /// message where it is left out.
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    /// Of a message.
    pub(super) role: Option<String>,
    pub(super) content: Option<Content>,
    /// Of a call.
    pub(super) call_id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) arguments: Option<String>,
    /// Of a call of a custom tool.
    pub(super) input: Option<String>,
    /// Of the result of a call.
    pub(super) output: Option<Content>,
    /// Of reasoning.
    pub(super) encrypted_content: Option<String>,
    /// Tools that are added.
    pub(super) tools: Option<Vec<ToolField>>,
}

/// A text or parts of one.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of parts with a type")]
pub(super) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of a text.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Part {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) text: Option<String>,
    #[serde(default)]
    pub(super) refusal: Option<String>,
}

/// How much to think first.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[schema(as = ResponsesReasoning)]
pub(crate) struct ReasoningField {
    /// A variable of the chat template: none, minimal, low, medium, high, xhigh or max.
    #[serde(default)]
    pub(super) effort: Option<String>,
    /// There are none: the reasoning comes whole.
    #[serde(default)]
    pub(super) summary: Option<String>,
}

/// What the answer must look like.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[schema(as = ResponsesText)]
pub(crate) struct TextField {
    /// Default: text.
    #[serde(default)]
    pub(super) format: Option<TextFormat>,
    /// Only medium.
    #[serde(default)]
    pub(super) verbosity: Option<String>,
}

/// What the answer must look like.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = ResponsesTextFormat)]
pub(crate) enum TextFormat {
    /// Free text.
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON that a schema describes.
    JsonSchema {
        /// What clients call it.
        #[serde(default)]
        name: Option<String>,
        /// What it is for.
        #[serde(default)]
        description: Option<String>,
        /// The schema, in the dialect of draft 2020-12.
        #[schema(value_type = Object)]
        schema: Value,
        /// Refuses a schema with keywords that cannot be enforced; otherwise they say nothing. Default: false.
        #[serde(default)]
        strict: Option<bool>,
    },
}

/// A tool that the model may call. Only those of type function are offered to it.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = ResponsesTool)]
pub(crate) struct ToolField {
    /// function
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// Letters, digits, `_`, `-` and `.`, at most 64.
    #[serde(default)]
    pub(super) name: Option<String>,
    /// When and how to call it.
    #[serde(default)]
    pub(super) description: Option<String>,
    /// JSON schema of its arguments, an object.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) parameters: Option<Value>,
    /// Whether arguments satisfy the schema in any case. Default: false.
    #[serde(default)]
    pub(super) strict: Option<bool>,
}

/// What happens to a conversation that is too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Truncation {
    /// The oldest turns are left out.
    Auto,
    /// It is refused.
    #[default]
    Disabled,
}

/// A response.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ResponsesResponse)]
pub(crate) struct Response {
    /// Names this response.
    pub(super) id: String,
    /// response
    pub(super) object: &'static str,
    /// In seconds since 1970.
    pub(super) created_at: u64,
    /// In seconds since 1970, if it is complete.
    pub(super) completed_at: Option<u64>,
    pub(super) status: Status,
    /// Why it failed.
    pub(super) error: Option<ResponseError>,
    pub(super) incomplete_details: Option<IncompleteDetails>,
    /// What was generated.
    pub(super) output: Vec<OutputItem>,
    /// Once it is complete.
    pub(super) usage: Option<Usage>,
    /// The request, as it was understood.
    #[serde(flatten)]
    pub(super) request: Echo,
}

/// What a response says about its request.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ResponsesEcho)]
pub(crate) struct Echo {
    /// The model's name.
    pub(super) model: String,
    pub(super) instructions: Option<String>,
    pub(super) previous_response_id: Option<String>,
    /// Whether the response is kept.
    pub(super) store: bool,
    /// false
    pub(super) background: bool,
    pub(super) max_output_tokens: Option<u32>,
    pub(super) parallel_tool_calls: bool,
    pub(super) reasoning: ReasoningField,
    pub(super) text: TextField,
    /// Those that the model could call.
    pub(super) tools: Vec<ToolField>,
    #[schema(value_type = Object)]
    pub(super) tool_choice: Value,
    pub(super) truncation: Truncation,
    pub(super) temperature: f32,
    pub(super) top_p: f32,
    pub(super) top_logprobs: u32,
    /// default
    pub(super) service_tier: &'static str,
    #[schema(value_type = Object)]
    pub(super) metadata: Map<String, Value>,
}

/// How far a response or an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ResponsesStatus)]
pub(crate) enum Status {
    InProgress,
    Completed,
    /// It reached `max_output_tokens` or the end of the context.
    Incomplete,
    Failed,
}

/// Why a response is incomplete.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ResponsesIncompleteDetails)]
pub(crate) struct IncompleteDetails {
    /// `max_output_tokens`
    pub(super) reason: &'static str,
}

/// Why a response failed.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ResponsesFailure)]
pub(crate) struct ResponseError {
    /// `server_error` or `rate_limit_exceeded`
    pub(super) code: &'static str,
    pub(super) message: String,
}

/// Something that was generated.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = ResponsesOutputItem)]
pub(crate) enum OutputItem {
    /// What the model thinks before it answers.
    Reasoning {
        id: String,
        status: Status,
        /// Empty: the reasoning comes whole.
        #[schema(value_type = Vec<Object>)]
        summary: Vec<Value>,
        content: Vec<OutputPart>,
        /// If it was asked for: the reasoning as an opaque text, signed by this server.
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<String>,
    },
    /// Text.
    Message {
        id: String,
        status: Status,
        /// assistant
        role: &'static str,
        content: Vec<OutputPart>,
    },
    /// A call of a function.
    FunctionCall {
        id: String,
        status: Status,
        /// What the result has to name.
        call_id: String,
        name: String,
        /// JSON, written as a string.
        arguments: String,
    },
}

/// A part of an item.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = ResponsesOutputPart)]
pub(crate) enum OutputPart {
    ReasoningText {
        text: String,
    },
    OutputText {
        text: String,
        /// Empty.
        #[schema(value_type = Vec<Object>)]
        annotations: Vec<Value>,
        /// If they were asked for, one per token.
        logprobs: Vec<TokenLogprob>,
    },
}

/// Sizes of a request and its answer, in tokens.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
#[schema(as = ResponsesUsage)]
pub(crate) struct Usage {
    /// Of the prompt.
    pub(super) input_tokens: usize,
    pub(super) input_tokens_details: InputTokensDetails,
    /// Of the answer.
    pub(super) output_tokens: usize,
    pub(super) output_tokens_details: OutputTokensDetails,
    /// Both.
    pub(super) total_tokens: usize,
}

/// What the prompt's tokens were.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
#[schema(as = ResponsesInputTokensDetails)]
pub(crate) struct InputTokensDetails {
    /// Found in the prefix cache and not computed.
    pub(super) cached_tokens: usize,
    /// Always 0: every prompt is cached.
    pub(super) cache_write_tokens: usize,
}

/// What the answer's tokens were.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
#[schema(as = ResponsesOutputTokensDetails)]
pub(crate) struct OutputTokensDetails {
    /// Of the reasoning.
    pub(super) reasoning_tokens: usize,
}

/// A response that is no longer stored.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponsesDeleted)]
pub(crate) struct Deleted {
    pub(super) id: String,
    /// response
    pub(super) object: &'static str,
    /// true
    pub(super) deleted: bool,
}

/// An event of a streamed response. The event's name is its type.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponsesEvent)]
pub(crate) struct StreamEvent {
    /// Counts the events from 0.
    pub(super) sequence_number: u64,
    #[serde(flatten)]
    pub(super) news: EventNews,
}

/// What an event says.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type")]
#[schema(as = ResponsesEventNews)]
pub(crate) enum EventNews {
    #[serde(rename = "response.created")]
    Created { response: Response },
    #[serde(rename = "response.in_progress")]
    InProgress { response: Response },
    #[serde(rename = "response.output_item.added")]
    ItemAdded { output_index: usize, item: OutputItem },
    #[serde(rename = "response.output_item.done")]
    ItemDone { output_index: usize, item: OutputItem },
    #[serde(rename = "response.content_part.added")]
    PartAdded { item_id: String, output_index: usize, content_index: usize, part: OutputPart },
    #[serde(rename = "response.content_part.done")]
    PartDone { item_id: String, output_index: usize, content_index: usize, part: OutputPart },
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta { item_id: String, output_index: usize, content_index: usize, delta: String },
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone { item_id: String, output_index: usize, content_index: usize, text: String },
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        item_id: String,
        output_index: usize,
        content_index: usize,
        delta: String,
        logprobs: Vec<TokenLogprob>,
    },
    #[serde(rename = "response.output_text.done")]
    TextDone {
        item_id: String,
        output_index: usize,
        content_index: usize,
        text: String,
        logprobs: Vec<TokenLogprob>,
    },
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta { item_id: String, output_index: usize, delta: String },
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone { item_id: String, output_index: usize, name: String, arguments: String },
    #[serde(rename = "response.completed")]
    Completed { response: Response },
    #[serde(rename = "response.incomplete")]
    Incomplete { response: Response },
    #[serde(rename = "response.failed")]
    Failed { response: Response },
}

impl EventNews {
    /// The event's name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Created { .. } => "response.created",
            Self::InProgress { .. } => "response.in_progress",
            Self::ItemAdded { .. } => "response.output_item.added",
            Self::ItemDone { .. } => "response.output_item.done",
            Self::PartAdded { .. } => "response.content_part.added",
            Self::PartDone { .. } => "response.content_part.done",
            Self::ReasoningDelta { .. } => "response.reasoning_text.delta",
            Self::ReasoningDone { .. } => "response.reasoning_text.done",
            Self::TextDelta { .. } => "response.output_text.delta",
            Self::TextDone { .. } => "response.output_text.done",
            Self::ArgumentsDelta { .. } => "response.function_call_arguments.delta",
            Self::ArgumentsDone { .. } => "response.function_call_arguments.done",
            Self::Completed { .. } => "response.completed",
            Self::Incomplete { .. } => "response.incomplete",
            Self::Failed { .. } => "response.failed",
        }
    }
}
