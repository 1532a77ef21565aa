//! `/v1/chat/completions`.

use super::{ChatLogprobs, FunctionChoice, SamplingFields, ToolChoiceField, ToolField, custom_input};
use crate::error::{ApiError, Result};
use crate::tool_calls::Function;
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
    /// Extension: a variable of the chat template, by which many models are told whether to think first.
    pub(crate) enable_thinking: Option<bool>,
    /// How much to think first: a variable of the chat template, such as low, medium or high; `none` also sets `enable_thinking` to
    /// false.
    pub(crate) reasoning_effort: Option<String>,
    /// Extension: a variable of the chat template: today's date in its words.
    pub(crate) date_string: Option<String>,
    /// Extension: a variable of the chat template: documents to answer from, each an object such as with `title` and `text`.
    #[schema(value_type = Option<Vec<Object>>)]
    pub(crate) documents: Option<Vec<Map<String, Value>>>,
    /// Extension: whether the prompt ends with the beginning of the assistant's turn. Default: true, unless the final message is
    /// continued.
    pub(crate) add_generation_prompt: Option<bool>,
    /// Extension: the answer goes on with the last message instead of beginning a new one. Default: false.
    pub(crate) continue_final_message: Option<bool>,
    /// What the model may call.
    pub(crate) tools: Option<Vec<ToolField>>,
    /// none, auto, required, a tool by its name, or `allowed_tools`. Default: auto if there are tools.
    #[schema(value_type = Option<Object>)]
    pub(crate) tool_choice: Option<ToolChoiceField>,
    /// Whether an answer may have several calls. Default: true.
    pub(crate) parallel_tool_calls: Option<bool>,
    /// The older form of `tools`.
    pub(crate) functions: Option<Vec<Function>>,
    /// The older form of `tool_choice`: none, auto or an object with the function's name.
    pub(crate) function_call: Option<FunctionChoice>,
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
    /// The older form of `tool_calls`.
    #[serde(default)]
    pub(crate) function_call: Option<MessageFunctionCall>,
    /// The call that a tool answers.
    #[serde(default)]
    pub(crate) tool_call_id: Option<String>,
    /// What an assistant said instead of an answer.
    #[serde(default)]
    pub(crate) refusal: Option<String>,
}

/// What a message says: a text or parts of one.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of parts with a type")]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of a message. Only those of types `text` and `refusal` can be read.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct Part {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) text: Option<String>,
    #[serde(default)]
    pub(crate) refusal: Option<String>,
}

/// A call of a tool in a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct MessageToolCall {
    #[serde(default)]
    pub(crate) id: Option<String>,
    /// Of a function.
    #[serde(default)]
    pub(crate) function: Option<MessageFunctionCall>,
    /// Of a custom tool.
    #[serde(default)]
    pub(crate) custom: Option<MessageCustomCall>,
}

/// Which custom tool, and with what.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct MessageCustomCall {
    pub(crate) name: String,
    /// Free text.
    #[serde(default)]
    pub(crate) input: String,
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
        // The older form of a tool's answer.
        let role = if self.role == "function" { "tool" } else { &self.role };
        out.insert("role".into(), role.into());
        let content = match &self.content {
            None => self.refusal.clone().map_or(Value::Null, Value::from),
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
        let calls = self.tool_calls.iter().flatten().enumerate();
        let mut calls = calls.map(|(i, call)| call.to_template(at, i)).collect::<Result<Vec<Value>>>()?;
        calls.extend(self.function_call.as_ref().map(|call| call.to_template(None)));
        if !calls.is_empty() {
            out.insert("tool_calls".into(), calls.into());
        }
        Ok(out.into())
    }
}

fn text_of(parts: &[Part], at: usize) -> Result<String> {
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        let field = format!("messages[{at}].content[{i}]");
        match (part.kind.as_str(), part.text.as_ref().or(part.refusal.as_ref())) {
            ("text" | "refusal", Some(piece)) => {
                if !text.is_empty() {
                    text.push('\n');
                }
                text += piece;
            }
            ("text" | "refusal", None) => {
                return Err(ApiError::invalid_param(&field, format!("{field} has no text")));
            }
            (kind, _) => {
                let message = format!("{field} is of type {kind:?}; this model reads text only");
                return Err(ApiError::invalid_param(field, message));
            }
        }
    }
    Ok(text)
}

impl MessageToolCall {
    fn to_template(&self, message: usize, at: usize) -> Result<Value> {
        if let Some(function) = &self.function {
            return Ok(function.to_template(self.id.as_ref()));
        }
        let Some(MessageCustomCall { name, input }) = &self.custom else {
            let place = format!("messages[{message}].tool_calls[{at}]");
            let message = format!("{place} has neither function nor custom");
            return Err(ApiError::invalid_param(place, message));
        };
        // As the model was told to call it.
        let arguments = serde_json::json!({ "input": input });
        Ok(MessageFunctionCall { name: name.clone(), arguments }.to_template(self.id.as_ref()))
    }
}

impl MessageFunctionCall {
    fn to_template(&self, id: Option<&String>) -> Value {
        let arguments = match &self.arguments {
            Value::String(text) => serde_json::from_str(text).unwrap_or(Value::String(text.clone())),
            other => other.clone(),
        };
        let function = serde_json::json!({ "name": self.name, "arguments": arguments });
        serde_json::json!({ "id": id, "type": "function", "function": function })
    }
}

/// One of the answers that were asked for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    pub(crate) index: usize,
    pub(crate) message: AssistantMessage,
    pub(crate) logprobs: Option<ChatLogprobs>,
    /// stop, length, tool_calls or function_call.
    pub(crate) finish_reason: &'static str,
    /// Extension: the answer's tokens, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
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
    /// The function to call, if the request has the older form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) function_call: Option<FunctionCall>,
    /// Always null.
    pub(crate) refusal: Option<String>,
}

/// A tool to call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolCall {
    /// What the message with the result has to name.
    pub(crate) id: String,
    /// function or custom
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) function: Option<FunctionCall>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) custom: Option<CustomCall>,
}

/// A custom tool to call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CustomCall {
    pub(crate) name: String,
    /// Free text.
    pub(crate) input: String,
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
    /// Extension: the piece's tokens, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
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
    /// News about the function to call, if the request has the older form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) function_call: Option<FunctionDelta>,
}

/// News about a tool to call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolCallDelta {
    /// Which of the answer's calls.
    pub(crate) index: usize,
    /// In a call's first piece: what the message with the result has to name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// In a call's first piece: function or custom.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) function: Option<FunctionDelta>,
    /// The whole call of a custom tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) custom: Option<CustomCall>,
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
            if let (Some(id), Some(kind)) = (call.id, call.kind) {
                calls.push(ToolCall { id, kind, function: None, custom: call.custom });
            }
            if let (Some(last), Some(news)) = (calls.last_mut(), call.function) {
                news.add_to(&mut last.function);
            }
        }
        if let Some(news) = news.function_call {
            news.add_to(&mut self.function_call);
        }
    }
}

impl FunctionDelta {
    /// Adds the next news to a call.
    fn add_to(self, call: &mut Option<FunctionCall>) {
        let call = call.get_or_insert_with(|| FunctionCall { name: String::new(), arguments: String::new() });
        call.name += self.name.as_deref().unwrap_or_default();
        call.arguments += &self.arguments;
    }
}

impl Delta {
    /// News of the text.
    pub(crate) fn text(text: String) -> Self {
        Self { content: Some(text), ..Self::default() }
    }
}

/// Words the calls that are found in an answer, as the request wants them.
#[derive(Debug, Default)]
pub(crate) struct CallWording {
    /// Names of the tools whose calls carry free text.
    custom: Vec<String>,
    /// The older form.
    is_legacy: bool,
    /// A call of a custom tool that is not complete: it is sent whole, because its text has to be taken out of JSON.
    open: Option<ToolCallDelta>,
}

impl CallWording {
    pub(crate) fn new(custom: Vec<String>, is_legacy: bool) -> Self {
        Self { custom, is_legacy, open: None }
    }

    /// A call begins.
    pub(crate) fn begin(&mut self, index: usize, id: String, name: String, out: &mut Vec<Delta>) {
        self.finish(out);
        if self.is_legacy {
            let function = FunctionDelta { name: Some(name), arguments: String::new() };
            out.push(Delta { function_call: Some(function), ..Delta::default() });
            return;
        }
        let is_custom = self.custom.contains(&name);
        let mut call =
            ToolCallDelta { index, id: Some(id), kind: Some("function"), function: None, custom: None };
        if is_custom {
            call.kind = Some("custom");
            call.custom = Some(CustomCall { name, input: String::new() });
            self.open = Some(call);
        } else {
            call.function = Some(FunctionDelta { name: Some(name), arguments: String::new() });
            out.push(Delta { tool_calls: Some(vec![call]), ..Delta::default() });
        }
    }

    /// More of a call's arguments.
    pub(crate) fn go_on(&mut self, index: usize, fragment: String, out: &mut Vec<Delta>) {
        if let Some(custom) = self.open.as_mut().and_then(|call| call.custom.as_mut()) {
            custom.input += &fragment;
            return;
        }
        let function = Some(FunctionDelta { name: None, arguments: fragment });
        out.push(match self.is_legacy {
            true => Delta { function_call: function, ..Delta::default() },
            false => {
                let call = ToolCallDelta { index, id: None, kind: None, function, custom: None };
                Delta { tool_calls: Some(vec![call]), ..Delta::default() }
            }
        });
    }

    /// What was held back is complete.
    pub(crate) fn finish(&mut self, out: &mut Vec<Delta>) {
        if let Some(mut call) = self.open.take() {
            if let Some(custom) = &mut call.custom {
                custom.input = custom_input(&custom.input);
            }
            out.push(Delta { tool_calls: Some(vec![call]), ..Delta::default() });
        }
    }
}
