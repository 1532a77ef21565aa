//! Tools as this API describes them.

use super::wire::{MessagesRequest, OutputFormat, ToolChoiceField};
use crate::error::{ApiError, Result};
use crate::tool_calls::{Callable, Function, Tool, ToolChoice, ToolKind, check_tools};
use crate::turn::Asked;
use realizar_structured::Format;

/// Types of tools that the client runs and Anthropic's models know by heart, so that requests do not describe them.
const UNDESCRIBED: &[&str] = &["bash_", "text_editor_", "computer_", "memory_", "browser_"];

/// What the model may call, and whether it has to. Tools that Anthropic runs are left out.
///
/// Errors: names that cannot be, a choice that is not among them, a tool that is not described.
pub(super) fn callable(request: &MessagesRequest) -> Result<Callable> {
    let mut tools = Vec::new();
    for (i, field) in request.tools.iter().flatten().enumerate() {
        match field.kind.as_deref() {
            None | Some("custom") => {}
            Some(kind) if UNDESCRIBED.iter().any(|known| kind.starts_with(known)) => {
                let message = format!(
                    "tools[{i}] is of type {kind:?}, which only Anthropic's models know; describe the tool with an input_schema"
                );
                return Err(ApiError::invalid_param(format!("tools[{i}]"), message).code("unsupported"));
            }
            Some(kind) => {
                tracing::debug!(kind, "a tool that this server does not run is left out");
                continue;
            }
        }
        let name = field.name.clone().ok_or_else(|| {
            ApiError::invalid_param(format!("tools[{i}]"), format!("tools[{i}] has no name"))
        })?;
        let (description, parameters, strict) =
            (field.description.clone(), field.input_schema.clone(), field.strict);
        let function = Function { name, description, parameters, strict };
        tools.push(Tool { kind: ToolKind::Function, function });
    }
    let one = |disabled: &Option<bool>| disabled.unwrap_or(false);
    let (choice, parallel) = match &request.tool_choice {
        None => (ToolChoice::Auto, true),
        Some(ToolChoiceField::Auto { disable_parallel_tool_use }) => {
            (ToolChoice::Auto, !one(disable_parallel_tool_use))
        }
        Some(ToolChoiceField::Any { disable_parallel_tool_use }) => {
            (ToolChoice::Required, !one(disable_parallel_tool_use))
        }
        Some(ToolChoiceField::Tool { name }) => (ToolChoice::Named(name.clone()), false),
        Some(ToolChoiceField::None) => (ToolChoice::None, true),
    };
    check_tools(&tools, &choice).map_err(|(place, message)| {
        ApiError::invalid_param(place.replace("/function/name", "/name"), message)
    })?;
    Ok(Callable { tools, choice, parallel })
}

/// The format that a request asks for.
///
/// Errors: two formats.
pub(super) fn format(request: &MessagesRequest, open_schemas: bool) -> Result<Option<Asked>> {
    let configured = request.output_config.as_ref().and_then(|config| config.format.as_ref());
    let (format, field) = match (configured, &request.output_format) {
        (Some(_), Some(_)) => {
            let message = "output_format is the older form of output_config.format; they cannot be combined";
            return Err(ApiError::invalid_param("output_format", message));
        }
        (Some(format), None) => (format, "output_config.format"),
        (None, Some(format)) => (format, "output_format"),
        (None, None) => return Ok(None),
    };
    let OutputFormat::JsonSchema { schema } = format;
    Ok(Some((Format::json_schema(schema, true, open_schemas), field)))
}
