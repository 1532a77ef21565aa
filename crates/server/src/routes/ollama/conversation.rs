//! What a request says to the chat template.

use super::wire::{ChatRequest, GenerateRequest, Message};
use crate::conversation::{Conversation, Ending, effort_variables};
use crate::error::{ApiError, Result};
use crate::tool_calls::{Callable, Tool, ToolChoice, check_tools};
use crate::turn::{Asked, Turn};
use realizar_structured::Format;
use serde_json::{Map, Value, json};

/// The turn that a chat request asks for.
///
/// Errors: messages, tools or a format that cannot be read.
pub(super) fn chat_turn(request: &ChatRequest, open_schemas: bool) -> Result<Turn> {
    let messages = request.messages.iter().flatten().enumerate();
    let messages = messages.map(|(i, message)| to_template(message, &format!("messages[{i}]")));
    let conversation = Conversation {
        messages: messages.collect::<Result<_>>()?,
        variables: variables(request.think.as_ref())?,
        ending: Ending::Answer,
        field: "messages",
    };
    let tools = request.tools.iter().flatten().enumerate().map(|(i, tool)| {
        serde_json::from_value::<Tool>(tool.clone())
            .map_err(|error| ApiError::invalid_param(format!("tools[{i}]"), format!("tools[{i}]: {error}")))
    });
    let tools = tools.collect::<Result<Vec<_>>>()?;
    check_tools(&tools, &ToolChoice::Auto)
        .map_err(|(place, message)| ApiError::invalid_param(place, message))?;
    let callable = Callable { tools, choice: ToolChoice::Auto, parallel: true };
    Ok(Turn { conversation, callable, format: format(request.format.as_ref(), open_schemas)? })
}

/// The turn that a request to generate asks for.
///
/// Errors: a format that cannot be read.
pub(super) fn generate_turn(request: &GenerateRequest, open_schemas: bool) -> Result<Turn> {
    let mut messages = Vec::new();
    if let Some(system) = request.system.as_ref().filter(|text| !text.is_empty()) {
        messages.push(json!({"role": "system", "content": system}));
    }
    messages.push(json!({"role": "user", "content": request.prompt.as_deref().unwrap_or_default()}));
    let variables = variables(request.think.as_ref())?;
    Ok(Turn {
        conversation: Conversation { messages, variables, ending: Ending::Answer, field: "prompt" },
        callable: Callable::default(),
        format: format(request.format.as_ref(), open_schemas)?,
    })
}

fn to_template(message: &Message, place: &str) -> Result<Value> {
    if message.images.as_ref().is_some_and(|images| !images.is_empty()) {
        let place = format!("{place}.images");
        let message = format!("{place} is not empty; this model reads text only");
        return Err(ApiError::invalid_param(place, message).code("unsupported"));
    }
    let mut out = json!({"role": message.role, "content": message.content.as_deref().unwrap_or_default()});
    for (name, value) in [
        ("reasoning_content", &message.thinking),
        ("name", &message.tool_name),
        ("tool_call_id", &message.tool_call_id),
    ] {
        if let Some(value) = value.as_ref().filter(|text| !text.is_empty()) {
            out[name] = value.as_str().into();
        }
    }
    let calls = message.tool_calls.iter().flatten().map(|call| {
        let function = json!({"name": call.function.name, "arguments": call.function.arguments});
        json!({"id": call.id, "type": "function", "function": function})
    });
    let calls: Vec<Value> = calls.collect();
    if !calls.is_empty() {
        out["tool_calls"] = calls.into();
    }
    Ok(out)
}

/// The template's variables.
///
/// Errors: a `think` that is neither a truth value nor a text.
fn variables(think: Option<&Value>) -> Result<Map<String, Value>> {
    let thinking = |is: bool| -> Map<String, Value> {
        [("enable_thinking".to_owned(), Value::from(is))].into_iter().collect()
    };
    match think {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Bool(is)) => Ok(thinking(*is)),
        Some(Value::String(effort)) if effort.is_empty() => Ok(Map::new()),
        Some(Value::String(effort)) => {
            let mut variables = thinking(true);
            variables.extend(effort_variables(effort));
            Ok(variables)
        }
        Some(_) => Err(ApiError::invalid_param("think", "think is true, false, or low, medium or high")),
    }
}

/// The format that a request asks for.
///
/// Errors: anything but `json` and a schema.
pub(super) fn format(format: Option<&Value>, open_schemas: bool) -> Result<Option<Asked>> {
    let format = match format {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(Value::String(text)) if text == "json" => Format::Json,
        Some(schema @ Value::Object(_)) => Format::json_schema(schema, false, open_schemas),
        Some(_) => return Err(ApiError::invalid_param("format", "format is \"json\" or a JSON schema")),
    };
    Ok(Some((format, "format")))
}
