//! A conversation as chat templates are given it, whichever API it came by, and the text that it becomes.

use crate::app::{App, now};
use crate::error::{ApiError, Result};
use crate::reasoning;
use crate::tool_calls::{Tool, ToolChoice};
use realizar_engine::Error as EngineError;
use serde_json::{Map, Value};

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
    /// It ends within the reasoning, which the answer goes on with.
    pub(crate) is_thinking: bool,
}

impl Conversation {
    /// The conversation as text.
    ///
    /// Errors: no messages; what the template refuses; an ending that cannot be.
    pub(crate) fn render(self, app: &App, tools: &[Tool], choice: &ToolChoice) -> Result<Rendered> {
        let template = app.engine.template().ok_or(EngineError::NoChatTemplate)?;
        let Self { messages, variables, ending, field } = self;
        if messages.is_empty() {
            return Err(ApiError::invalid_param(field, format!("{field} is empty")));
        }
        let mut object = variables;
        object.insert("messages".to_owned(), messages.into());
        let mut conversation = Value::from(object);
        app.syntax.prepare(&mut conversation, tools, choice);
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
        let is_unfinished =
            ending == Ending::Open && text.rfind(reasoning::OPEN) > text.rfind(reasoning::CLOSE);
        let is_thinking = reasoning::is_open(&text) || is_unfinished;
        Ok(Rendered { text, is_thinking })
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
