//! What the chat template is given for a request, and the text and tokens that it becomes.

use crate::app::{App, now};
use crate::error::{ApiError, Result};
use crate::openai::{Callable, ChatRequest};
use crate::reasoning;
use realizar_engine::Error as EngineError;
use serde_json::{Map, Value};

/// How the text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
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

/// The conversation as text.
///
/// Errors: messages that cannot be read; what the template refuses; an ending that cannot be.
pub(crate) fn render(app: &App, request: &ChatRequest, callable: &Callable) -> Result<Rendered> {
    let template = app.engine.template().ok_or(EngineError::NoChatTemplate)?;
    let ending = ending(request)?;
    let mut conversation = variables(request)?;
    app.syntax.prepare(&mut conversation, &callable.tools, &callable.choice);
    let mark = match ending {
        Ending::Open => Some(mark_end(&mut conversation)?),
        Ending::Answer | Ending::Message => None,
    };
    let text = template.render(&conversation, ending == Ending::Answer, now());
    let text = text.map_err(|error| EngineError::Template { message: error.to_string() });
    let mut text = text.map_err(|e| ApiError::from(e).or_param("messages"))?;
    if let Some(mark) = mark {
        let end = text.rfind(&mark).ok_or_else(|| {
            let message = "the chat template does not write the last message's content as it is";
            ApiError::invalid_param("continue_final_message", message)
        })?;
        text.truncate(end);
    }
    let is_unfinished = ending == Ending::Open && text.rfind(reasoning::OPEN) > text.rfind(reasoning::CLOSE);
    let is_thinking = reasoning::is_open(&text) || is_unfinished;
    Ok(Rendered { text, is_thinking })
}

/// Errors: two endings at once.
fn ending(request: &ChatRequest) -> Result<Ending> {
    let variable = |name: &str| {
        request.chat_template_kwargs.as_ref().and_then(|all| all.get(name)).and_then(Value::as_bool)
    };
    let begins = request.add_generation_prompt.or_else(|| variable("add_generation_prompt"));
    let goes_on = request.continue_final_message.or_else(|| variable("continue_final_message"));
    match (begins, goes_on.unwrap_or(false)) {
        (Some(true), true) => {
            let message = "add_generation_prompt and continue_final_message cannot both be true";
            Err(ApiError::invalid_param("continue_final_message", message))
        }
        (_, true) => Ok(Ending::Open),
        (Some(false), false) => Ok(Ending::Message),
        (None | Some(true), false) => Ok(Ending::Answer),
    }
}

/// The template's variables that the request names.
fn variables(request: &ChatRequest) -> Result<Value> {
    if request.messages.is_empty() {
        return Err(ApiError::invalid_param("messages", "messages is empty"));
    }
    let mut object = Map::new();
    let messages = request.messages.iter().enumerate().map(|(i, m)| m.to_template(i));
    object.insert("messages".into(), messages.collect::<Result<Value>>()?);
    let effort = request.reasoning_effort.as_deref();
    let thinking = request.enable_thinking.or((effort == Some("none")).then_some(false));
    for (name, value) in [
        ("enable_thinking", thinking.map(Value::from)),
        ("reasoning_effort", effort.map(Value::from)),
        ("date_string", request.date_string.clone().map(Value::from)),
        ("documents", request.documents.clone().map(Value::from)),
    ] {
        object.extend(value.map(|value| (name.to_owned(), value)));
    }
    for (name, value) in request.chat_template_kwargs.iter().flatten() {
        // These decide what is rendered, not how.
        if !matches!(name.as_str(), "messages" | "add_generation_prompt" | "continue_final_message") {
            object.insert(name.clone(), value.clone());
        }
    }
    Ok(object.into())
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
