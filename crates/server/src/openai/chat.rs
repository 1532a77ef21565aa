//! `/v1/chat/completions`.

use super::{ChatLogprobs, SamplingFields};
use crate::error::{ApiError, Result};
use crate::tool_calls::{Tool, ToolChoice};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A conversation to answer.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct ChatRequest {
    /// The model's name; may be left out.
    pub(crate) model: Option<String>,
    /// The conversation so far.
    #[schema(min_items = 1)]
    pub(crate) messages: Vec<Message>,
    /// Tokens to generate at most; overrules `max_tokens`. Default: to the end of the context.
    pub(crate) max_completion_tokens: Option<u32>,
    /// Reports the log-probability of each token of the answer.
    pub(crate) logprobs: Option<bool>,
    /// Likeliest tokens to report at each place; needs `logprobs`.
    #[schema(maximum = 20)]
    pub(crate) top_logprobs: Option<u32>,
    /// Extension: further variables of the chat template, such as `enable_thinking`.
    #[schema(value_type = Option<Object>)]
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    /// What the model may call.
    #[serde(default)]
    pub(crate) tools: Option<Vec<Tool>>,
    /// none, auto, required or a function by its name. Default: auto if there are tools.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(crate) tool_choice: Option<ToolChoice>,
    /// Whether an answer may have several calls. Default: true.
    #[serde(default)]
    pub(crate) parallel_tool_calls: Option<bool>,
    #[serde(flatten)]
    pub(crate) common: SamplingFields,
}

/// A message of a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct Message {
    /// system, developer, user, assistant or tool.
    pub(crate) role: String,
    /// What it says.
    #[serde(default)]
    pub(crate) content: Option<Content>,
    /// Who says it.
    #[serde(default)]
    pub(crate) name: Option<String>,
    /// Extension: what an assistant thought before it spoke.
    #[serde(default)]
    pub(crate) reasoning_content: Option<String>,
    /// Tools that an assistant called.
    #[serde(default)]
    pub(crate) tool_calls: Option<Vec<MessageToolCall>>,
    /// The call that a tool answers.
    #[serde(default)]
    pub(crate) tool_call_id: Option<String>,
}

/// What a message says: a text or parts of one.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of parts with a type")]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of a message. Only those of type `text` can be read.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct Part {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) text: Option<String>,
}

/// A call of a tool in a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct MessageToolCall {
    #[serde(default)]
    pub(crate) id: Option<String>,
    pub(crate) function: MessageFunctionCall,
}

/// Which function, and with what.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct MessageFunctionCall {
    pub(crate) name: String,
    /// JSON, written as a string.
    #[serde(default)]
    #[schema(value_type = String)]
    pub(crate) arguments: Value,
}

impl Message {
    /// The message as chat templates expect it: texts in one piece, arguments of calls as objects.
    ///
    /// Errors: a part that is not text, with its place.
    pub(crate) fn to_template(&self, at: usize) -> Result<Value> {
        let mut out = Map::new();
        out.insert("role".into(), self.role.clone().into());
        let content = match &self.content {
            None => Value::Null,
            Some(Content::Text(text)) => text.clone().into(),
            Some(Content::Parts(parts)) => text_of(parts, at)?.into(),
        };
        out.insert("content".into(), content);
        for (key, value) in [
            ("name", &self.name),
            ("reasoning_content", &self.reasoning_content),
            ("tool_call_id", &self.tool_call_id),
        ] {
            value.iter().for_each(|v| drop(out.insert(key.into(), v.clone().into())));
        }
        if let Some(calls) = self.tool_calls.as_ref().filter(|calls| !calls.is_empty()) {
            out.insert("tool_calls".into(), calls.iter().map(MessageToolCall::to_template).collect());
        }
        Ok(out.into())
    }
}

fn text_of(parts: &[Part], at: usize) -> Result<String> {
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        let field = format!("messages[{at}].content[{i}]");
        match (part.kind.as_str(), &part.text) {
            ("text", Some(piece)) => {
                if !text.is_empty() {
                    text.push('\n');
                }
                text += piece;
            }
            ("text", None) => return Err(ApiError::invalid_param(&field, format!("{field} has no text"))),
            (kind, _) => {
                let message = format!("{field} is of type {kind:?}; this model reads text only");
                return Err(ApiError::invalid_param(field, message));
            }
        }
    }
    Ok(text)
}

impl MessageToolCall {
    fn to_template(&self) -> Value {
        let arguments = match &self.function.arguments {
            Value::String(text) => serde_json::from_str(text).unwrap_or(Value::String(text.clone())),
            other => other.clone(),
        };
        let function = serde_json::json!({ "name": self.function.name, "arguments": arguments });
        serde_json::json!({ "id": self.id, "type": "function", "function": function })
    }
}

/// One of the answers that were asked for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    pub(crate) index: usize,
    pub(crate) message: AssistantMessage,
    pub(crate) logprobs: Option<ChatLogprobs>,
    /// stop, length or tool_calls.
    pub(crate) finish_reason: &'static str,
}

/// What the model says.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AssistantMessage {
    /// assistant
    pub(crate) role: &'static str,
    /// Null if the answer is nothing but calls.
    pub(crate) content: Option<String>,
    /// Extension: what the model thought before it answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    /// Tools to call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_calls: Option<Vec<ToolCall>>,
    /// Always null.
    pub(crate) refusal: Option<String>,
}

/// A tool to call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolCall {
    /// What the message with the result has to name.
    pub(crate) id: String,
    /// function
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) function: FunctionCall,
}

/// A function to call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FunctionCall {
    pub(crate) name: String,
    /// JSON, written as a string.
    pub(crate) arguments: String,
}

/// What is new about one of the answers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatPiece {
    pub(crate) index: usize,
    pub(crate) delta: Delta,
    pub(crate) logprobs: Option<ChatLogprobs>,
    /// In a choice's last piece.
    pub(crate) finish_reason: Option<&'static str>,
}

/// What is new.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Delta {
    /// In a choice's first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    /// Extension: what the model thinks before it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_calls: Option<Vec<ToolCallDelta>>,
}

/// News about a tool to call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolCallDelta {
    /// Which of the answer's calls.
    pub(crate) index: usize,
    /// In a call's first piece: what the message with the result has to name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// In a call's first piece: function.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    pub(crate) function: FunctionDelta,
}

/// News about a function to call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FunctionDelta {
    /// In a call's first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// A piece of JSON.
    pub(crate) arguments: String,
}

impl AssistantMessage {
    /// Adds the next news.
    pub(crate) fn add(&mut self, news: Delta) {
        for (text, more) in
            [(&mut self.content, news.content), (&mut self.reasoning_content, news.reasoning_content)]
        {
            if let Some(more) = more {
                text.get_or_insert_default().push_str(&more);
            }
        }
        for call in news.tool_calls.into_iter().flatten() {
            let calls = self.tool_calls.get_or_insert_default();
            if let (Some(id), Some(name)) = (call.id, call.function.name) {
                let function = FunctionCall { name, arguments: String::new() };
                calls.push(ToolCall { id, kind: "function", function });
            }
            if let Some(last) = calls.last_mut() {
                last.function.arguments += &call.function.arguments;
            }
        }
    }
}
