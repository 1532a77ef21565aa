//! A conversation as chat templates are given it, whichever API it came by, and the text that it becomes.

use crate::app::now;
use crate::error::{ApiError, Result};
use crate::models::Lease;
use crate::tool_calls::{Tool, ToolChoice};
use realizar_engine::Error as EngineError;
use realizar_structured::reasoning::{self, Tags};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// A conversation in the form of chat templates.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    /// Objects with `role` and `content`, and as far as they have them `name`, `reasoning_content`, `tool_calls` and `tool_call_id`.
    pub(crate) messages: Vec<Value>,
    /// Further variables of the template.
    pub(crate) variables: Map<String, Value>,
    pub(crate) ending: Ending,
    /// The field of the request that has the messages.
    pub(crate) field: &'static str,
}

/// Puts messages into the form of chat templates for APIs whose turns consist of several items. Most templates take one system message,
/// at the beginning, and turns that alternate: what one side says in several messages is put together.
#[derive(Clone, Debug, Default)]
pub(crate) struct MessageList {
    messages: Vec<Value>,
    /// Names of the tools that were called, by the calls' ids.
    names: HashMap<String, String>,
}

impl MessageList {
    /// Goes on after the messages of another list.
    pub(crate) fn after(messages: Vec<Value>) -> Self {
        let calls = messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
        let name = |call: &Value| {
            Some((call["id"].as_str()?.to_owned(), call["function"]["name"].as_str()?.to_owned()))
        };
        let names = calls.filter_map(name).collect();
        Self { messages, names }
    }

    /// The messages, which alternate.
    pub(crate) fn into_messages(self) -> Vec<Value> {
        self.messages
    }

    /// A system prompt. Within the conversation it joins the user's turn, marked as agents mark such text.
    pub(crate) fn system(&mut self, text: &str) {
        match self.messages.last_mut() {
            _ if text.is_empty() => {}
            None => self.messages.push(json!({"role": "system", "content": text})),
            Some(last) if last["role"] == "system" => add_text(last, "content", text, "\n\n"),
            Some(_) => self.user(&format!("<system-reminder>\n{text}\n</system-reminder>")),
        }
    }

    /// What the user says.
    pub(crate) fn user(&mut self, text: &str) {
        match self.messages.last_mut() {
            Some(last) if last["role"] == "user" => add_text(last, "content", text, "\n\n"),
            _ => self.messages.push(json!({"role": "user", "content": text})),
        }
    }

    /// What the assistant says.
    pub(crate) fn assistant(&mut self, text: &str) {
        add_text(self.assistant_turn(), "content", text, "\n");
    }

    /// What the assistant thought.
    pub(crate) fn thought(&mut self, text: &str) {
        add_text(self.assistant_turn(), "reasoning_content", text, "\n");
    }

    /// A call of the assistant's.
    pub(crate) fn call(&mut self, id: &str, name: &str, arguments: Value) {
        self.names.insert(id.to_owned(), name.to_owned());
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let turn = self.assistant_turn();
        match turn["tool_calls"].as_array_mut() {
            Some(calls) => calls.push(call),
            None => turn["tool_calls"] = json!([call]),
        }
    }

    /// What a tool answered.
    pub(crate) fn result(&mut self, id: &str, text: &str) {
        let mut message = json!({"role": "tool", "tool_call_id": id, "content": text});
        if let Some(name) = self.names.get(id) {
            message["name"] = name.as_str().into();
        }
        self.messages.push(message);
    }

    fn assistant_turn(&mut self) -> &mut Value {
        if self.messages.last().is_none_or(|last| last["role"] != "assistant") {
            self.messages.push(json!({"role": "assistant", "content": ""}));
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }
}

/// Adds to a text of a message.
fn add_text(message: &mut Value, field: &str, more: &str, between: &str) {
    let text = match message[field].as_str() {
        Some(before) if !before.is_empty() && !more.is_empty() => format!("{before}{between}{more}"),
        Some(before) if !before.is_empty() => before.to_owned(),
        _ => more.to_owned(),
    };
    message[field] = text.into();
}

/// The template's variables that say how much to think: `effort` in the words of an API, which knows more levels than templates do.
pub(crate) fn effort_variables(effort: &str) -> Map<String, Value> {
    let level = match effort {
        "minimal" => "low",
        "xhigh" | "max" => "high",
        other => other,
    };
    let mut variables: Map<String, Value> =
        [("reasoning_effort".to_owned(), level.into())].into_iter().collect();
    if level == "none" {
        variables.insert("enable_thinking".to_owned(), false.into());
    }
    variables
}

/// Adds the variables that a request names itself, but for those that decide what is rendered, not how.
pub(crate) fn add_variables(variables: &mut Map<String, Value>, more: Option<&Map<String, Value>>) {
    for (name, value) in more.into_iter().flatten() {
        if !matches!(name.as_str(), "messages" | "add_generation_prompt" | "continue_final_message") {
            variables.insert(name.clone(), value.clone());
        }
    }
}

/// How the text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Where the assistant's turn begins.
    Answer,
    /// After the last message.
    Message,
    /// Within the last message, which the answer goes on with.
    Open,
}

/// A conversation as the model reads it.
pub(crate) struct Rendered {
    pub(crate) text: String,
    /// The tags of the reasoning that it ends within, which the answer goes on with.
    pub(crate) thinking: Option<&'static Tags>,
    /// Those of the reasoning that the answer may begin with.
    pub(crate) may_think: Option<&'static Tags>,
}

impl Conversation {
    /// The conversation as text.
    ///
    /// Errors: no messages; what the template refuses; an ending that cannot be.
    pub(crate) fn render(self, lease: &Lease, tools: &[Tool], choice: &ToolChoice) -> Result<Rendered> {
        let template = lease.model.engine.template().ok_or(EngineError::NoChatTemplate)?;
        let Self { messages, variables, ending, field } = self;
        if messages.is_empty() {
            return Err(ApiError::invalid_param(field, format!("{field} is empty")));
        }
        let mut object = variables;
        object.insert("messages".to_owned(), messages.into());
        let mut conversation = Value::from(object);
        lease.model.syntax.prepare(&mut conversation, tools, choice);
        let mark = match ending {
            Ending::Open => Some(mark_end(&mut conversation)?),
            Ending::Answer | Ending::Message => None,
        };
        let text = template.render(&conversation, ending == Ending::Answer, now());
        let text = text.map_err(|error| EngineError::Template { message: error.to_string() });
        let mut text = text.map_err(|e| ApiError::from(e).or_param(field))?;
        if let Some(mark) = mark {
            let end = text.rfind(&mark).ok_or_else(|| {
                let message = "the chat template does not write the last message's content as it is";
                ApiError::invalid_param("continue_final_message", message)
            })?;
            text.truncate(end);
        }
        let unfinished = || reasoning::unfinished_in(&text).filter(|_| ending == Ending::Open);
        let thinking = reasoning::open_in(&text).or_else(unfinished);
        let may_think = match ending {
            Ending::Answer => reasoning::possible_after(&text, template.source()),
            Ending::Message | Ending::Open => None,
        };
        Ok(Rendered { text, thinking, may_think })
    }
}

/// Marks the end of the last message with a text that stands nowhere else in the conversation.
///
/// Errors: the last message has no text.
fn mark_end(conversation: &mut Value) -> Result<String> {
    let written = conversation.to_string();
    let mut mark = String::from('\u{E000}');
    while written.contains(&mark) {
        mark.push('\u{E000}');
    }
    let last = conversation["messages"].as_array_mut().and_then(|messages| messages.last_mut());
    match last.and_then(|message| message.get_mut("content")) {
        Some(Value::String(content)) => {
            content.push_str(&mark);
            Ok(mark)
        }
        _ => {
            let message = "continue_final_message needs a last message with a text to go on with";
            Err(ApiError::invalid_param("continue_final_message", message))
        }
    }
}
