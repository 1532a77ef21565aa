//! Tools and formats as this API describes them.

use super::wire::{Input, ResponsesRequest, TextFormat, ToolField};
use crate::error::{ApiError, Result};
use crate::tool_calls::{Callable, Function, Tool, ToolChoice, ToolKind, check_tools};
use crate::turn::Asked;
use realizar_structured::Format;
use serde_json::Value;

/// The functions of a request. Tools of other types are run by OpenAI, or called in a way of its models; they are left out.
pub(super) fn functions(request: &ResponsesRequest) -> Vec<ToolField> {
    let items = match &request.input {
        Some(Input::Items(items)) => items.as_slice(),
        _ => &[],
    };
    let added = items.iter().filter(|item| item.kind.as_deref() == Some("additional_tools"));
    let added = added.filter_map(|item| item.tools.as_ref()).flatten();
    let all = request.tools.iter().flatten().chain(added);
    all.filter(|tool| tool.kind == "function").cloned().collect()
}

/// What the model may call, and whether it has to. `functions`: those of the request.
///
/// Errors: names that cannot be, a choice that is not among them.
pub(super) fn callable(request: &ResponsesRequest, functions: &[ToolField]) -> Result<Callable> {
    let mut tools = Vec::new();
    for (i, field) in functions.iter().enumerate() {
        let name = field.name.clone().ok_or_else(|| {
            ApiError::invalid_param(format!("tools[{i}]"), format!("tools[{i}] has no name"))
        })?;
        let (description, parameters, strict) =
            (field.description.clone(), field.parameters.clone(), field.strict);
        let function = Function { name, description, parameters, strict };
        tools.push(Tool { kind: ToolKind::Function, function });
    }
    let mut choice = ToolChoice::Auto;
    if let Some(value) = request.tool_choice.as_ref().filter(|value| !value.is_null()) {
        choice = self::choice(value, &mut tools)?;
    }
    check_tools(&tools, &choice).map_err(|(place, message)| {
        ApiError::invalid_param(place.replace("/function/name", "/name"), message)
    })?;
    Ok(Callable { tools, choice, parallel: request.parallel_tool_calls.unwrap_or(true) })
}

/// A choice; one of `allowed_tools` leaves only those.
fn choice(value: &Value, tools: &mut Vec<Tool>) -> Result<ToolChoice> {
    let refuse = |message: String| Err(ApiError::invalid_param("tool_choice", message));
    let text = |field: &str| value.get(field).and_then(Value::as_str);
    match (value.as_str(), text("type")) {
        (Some("none"), _) => Ok(ToolChoice::None),
        (Some("auto"), _) => Ok(ToolChoice::Auto),
        (Some("required"), _) => Ok(ToolChoice::Required),
        (None, Some("function")) => match text("name") {
            Some(name) => Ok(ToolChoice::Named(name.to_owned())),
            None => refuse("a tool_choice of type function has a name".to_owned()),
        },
        (None, Some("allowed_tools")) => {
            let allowed = value.get("tools").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            tools.retain(|tool| allowed.iter().any(|a| a["name"] == tool.function.name.as_str()));
            Ok(if text("mode") == Some("required") { ToolChoice::Required } else { ToolChoice::Auto })
        }
        (None, Some(kind)) => {
            refuse(format!("tool_choice asks for a tool of type {kind:?}, which is not offered"))
        }
        _ => refuse("tool_choice is none, auto, required, a function, or allowed_tools".to_owned()),
    }
}

/// The format that a request asks for.
///
/// Errors: a verbosity that is not offered.
pub(super) fn format(request: &ResponsesRequest, open_schemas: bool) -> Result<Option<Asked>> {
    let Some(text) = &request.text else { return Ok(None) };
    if text.verbosity.as_deref().is_some_and(|verbosity| verbosity != "medium") {
        let message = "text.verbosity is not supported: say in a message how long the answer should be";
        return Err(ApiError::invalid_param("text.verbosity", message).code("unsupported"));
    }
    let format = match &text.format {
        None | Some(TextFormat::Text) => return Ok(None),
        Some(TextFormat::JsonObject) => Format::Json,
        Some(TextFormat::JsonSchema { schema, strict, .. }) => {
            Format::json_schema(schema, strict.unwrap_or(false), open_schemas)
        }
    };
    Ok(Some((format, "text.format")))
}
