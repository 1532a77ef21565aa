//! What clients send to `/v1/messages`, and what they get, field by field.

use super::fields::MessagesFields;
use crate::fields::OtherFields;
use crate::params::ParamFields;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A conversation to answer, or to count.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct MessagesRequest {
    /// The model's name; may be left out.
    pub(in crate::routes) model: Option<String>,
    /// The conversation so far. An assistant's message at its end is the beginning of the answer.
    #[schema(min_items = 1)]
    pub(super) messages: Vec<Message>,
    /// What comes before the conversation.
    #[schema(value_type = Option<Object>)]
    pub(super) system: Option<Content>,
    /// Tokens to generate at most. Needed to generate.
    #[schema(minimum = 0)]
    pub(super) max_tokens: Option<u32>,
    /// Texts before which the answer ends.
    pub(super) stop_sequences: Option<Vec<String>>,
    /// Sends the answer in pieces as it is generated, as server-sent events.
    pub(super) stream: Option<bool>,
    /// Whether to think first.
    pub(super) thinking: Option<Thinking>,
    /// What the answer must look like.
    pub(super) output_config: Option<OutputConfig>,
    /// The older form of `output_config.format`.
    pub(super) output_format: Option<OutputFormat>,
    /// What the model may call.
    pub(super) tools: Option<Vec<ToolField>>,
    /// Whether it has to call something. Default: auto.
    pub(super) tool_choice: Option<ToolChoiceField>,
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
    pub(super) other: OtherFields<MessagesFields>,
}

/// A message of a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = MessagesMessage)]
pub(crate) struct Message {
    /// user, assistant or system.
    pub(super) role: String,
    /// What it says: a text, or blocks.
    #[schema(value_type = Object)]
    pub(super) content: Content,
}

/// A text or blocks of content.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of blocks with a type")]
pub(super) enum Content {
    Text(String),
    Blocks(Vec<Block>),
}

/// A block of content. Which of the fields there are depends on its type.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Block {
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// Of a text.
    pub(super) text: Option<String>,
    /// Of a thought.
    pub(super) thinking: Option<String>,
    pub(super) signature: Option<String>,
    /// Of a call.
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) input: Option<Value>,
    /// Of the result of a call.
    pub(super) tool_use_id: Option<String>,
    pub(super) is_error: Option<bool>,
    /// Of the result of a call, or of a search.
    pub(super) content: Option<Content>,
    /// Of a document, or of the result of a search.
    pub(super) source: Option<Value>,
    pub(super) title: Option<String>,
    /// Of a reference to a tool.
    pub(super) tool_name: Option<String>,
}

/// Whether to think first.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct Thinking {
    /// enabled, disabled, or any other kind, which leaves it to the chat template.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// `omitted` sends thoughts as their signature only. Default: summarized, which sends all of them.
    #[serde(default)]
    pub(super) display: Option<String>,
}

/// What the answer must look like.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct OutputConfig {
    /// A variable of the chat template: low, medium, high, xhigh or max; the last two count as high.
    pub(super) effort: Option<String>,
    /// JSON of a schema.
    pub(super) format: Option<OutputFormat>,
}

/// JSON of a schema.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputFormat {
    /// JSON that a schema describes.
    JsonSchema {
        /// The schema, in the dialect of draft 2020-12.
        #[schema(value_type = Object)]
        schema: Value,
    },
}

/// A tool that the model may call.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = MessagesTool)]
pub(crate) struct ToolField {
    /// custom, which is the default; tools of other types are run by Anthropic or known to its models.
    #[serde(rename = "type", default)]
    pub(super) kind: Option<String>,
    /// Letters, digits, `_`, `-` and `.`, at most 64.
    #[serde(default)]
    pub(super) name: Option<String>,
    /// When and how to call it.
    #[serde(default)]
    pub(super) description: Option<String>,
    /// JSON schema of its input, an object.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) input_schema: Option<Value>,
    /// Whether its input satisfies the schema in any case.
    #[serde(default)]
    pub(super) strict: Option<bool>,
}

/// Whether the model has to call a tool.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = MessagesToolChoice)]
pub(crate) enum ToolChoiceField {
    /// The model decides.
    Auto {
        /// At most one call.
        #[serde(default)]
        disable_parallel_tool_use: Option<bool>,
    },
    /// Some tool.
    Any {
        /// Exactly one call.
        #[serde(default)]
        disable_parallel_tool_use: Option<bool>,
    },
    /// This tool.
    Tool {
        /// The tool's name.
        name: String,
    },
    /// No tool.
    None,
}

/// An answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = MessagesAnswer)]
pub(crate) struct Answer {
    /// Names this answer.
    pub(super) id: String,
    /// message
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    /// assistant
    pub(super) role: &'static str,
    /// The model's name.
    pub(super) model: String,
    pub(super) content: Vec<AnswerBlock>,
    /// `end_turn`, `max_tokens`, `stop_sequence`, `tool_use` or `model_context_window_exceeded`; null while it is generated.
    pub(super) stop_reason: Option<&'static str>,
    /// The stop sequence before which it ended.
    pub(super) stop_sequence: Option<String>,
    pub(super) usage: Usage,
}

/// A block of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = MessagesAnswerBlock)]
pub(crate) enum AnswerBlock {
    /// What the model thinks before it answers.
    Thinking {
        thinking: String,
        /// Has to come back with the thought, which is left out of the conversation otherwise.
        signature: String,
    },
    /// Text.
    Text { text: String },
    /// A call of a tool.
    ToolUse {
        /// What the result has to name.
        id: String,
        name: String,
        /// An object. Input that is no valid JSON is the text of its only entry, `INVALID_JSON`.
        #[schema(value_type = Object)]
        input: Value,
    },
}

/// Sizes of a request and its answer, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = MessagesUsage)]
pub(crate) struct Usage {
    /// Of the prompt, without those that were found in the prefix cache.
    pub(super) input_tokens: usize,
    /// Always 0: every prompt is cached.
    pub(super) cache_creation_input_tokens: usize,
    /// Of the prompt, found in the prefix cache and not computed.
    pub(super) cache_read_input_tokens: usize,
    /// Of the answer.
    pub(super) output_tokens: usize,
    pub(super) output_tokens_details: OutputTokensDetails,
}

/// What the answer's tokens were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = MessagesOutputTokensDetails)]
pub(crate) struct OutputTokensDetails {
    /// Of the reasoning.
    pub(super) thinking_tokens: usize,
}

/// Size of a prompt.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MessagesTokenCount)]
pub(crate) struct TokenCount {
    /// Tokens.
    pub(super) input_tokens: usize,
}

/// An event of a streamed answer. The event's name is its type.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = MessagesEvent)]
pub(crate) enum StreamEvent {
    /// The first: the answer without its contents.
    MessageStart { message: Answer },
    /// A block begins.
    ContentBlockStart { index: usize, content_block: AnswerBlock },
    /// More of a block.
    ContentBlockDelta { index: usize, delta: BlockDelta },
    /// A block is complete.
    ContentBlockStop { index: usize },
    /// The end, and the final sizes.
    MessageDelta { delta: MessageEnd, usage: Usage },
    /// The last.
    MessageStop,
    /// The stream is alive.
    Ping,
    /// The answer broke off.
    Error { error: ErrorDetail },
}

/// More of a block.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the wire's names")]
#[schema(as = MessagesBlockDelta)]
pub(crate) enum BlockDelta {
    /// Of a thought.
    ThinkingDelta { thinking: String },
    /// The thought's signature, at its end.
    SignatureDelta { signature: String },
    /// Of a text.
    TextDelta { text: String },
    /// Of a call's input: a piece of JSON.
    InputJsonDelta { partial_json: String },
}

/// Why an answer ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MessageEnd {
    pub(super) stop_reason: Option<&'static str>,
    pub(super) stop_sequence: Option<String>,
}

/// The body of every answer of this API that is an error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MessagesError)]
pub(crate) struct ErrorBody {
    /// error
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) error: ErrorDetail,
    /// As in the header `request-id`.
    pub(super) request_id: Option<String>,
}

/// What is wrong.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MessagesErrorDetail)]
pub(crate) struct ErrorDetail {
    /// invalid_request_error, authentication_error, permission_error, not_found_error, request_too_large, rate_limit_error, timeout_error,
    /// api_error or overloaded_error.
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    /// For a person: what was wrong and what to do.
    pub(super) message: String,
}
