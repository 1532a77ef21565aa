//! What an answer must look like: `response_format` and its extensions.

use crate::error::{ApiError, Result};
use crate::structured::Format;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

/// What an answer must look like.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ResponseFormat {
    /// Free text.
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON that a schema describes.
    JsonSchema {
        /// The schema.
        json_schema: JsonSchema,
    },
}

/// A named JSON schema.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct JsonSchema {
    /// What clients call it.
    #[serde(default)]
    #[allow(dead_code, reason = "clients may send it, and it changes nothing")]
    pub(crate) name: Option<String>,
    /// The schema, in the dialect of draft 2020-12. Default: any object.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(crate) schema: Option<Value>,
    /// Refuses a schema with keywords that cannot be enforced; otherwise they say nothing. Default: false.
    #[serde(default)]
    pub(crate) strict: Option<bool>,
}

/// The format that a request asks for in one of three ways, with the field that says so; `None` for free text.
///
/// Errors: more than one way.
pub(crate) fn format(
    response_format: Option<&ResponseFormat>,
    regex: Option<&String>,
    grammar: Option<&String>,
) -> Result<Option<(Format, &'static str)>> {
    let response_format = match response_format {
        None | Some(ResponseFormat::Text) => None,
        Some(ResponseFormat::JsonObject) => Some(Format::Json),
        Some(ResponseFormat::JsonSchema { json_schema: JsonSchema { schema: None, .. } }) => {
            Some(Format::Json)
        }
        Some(ResponseFormat::JsonSchema { json_schema: JsonSchema { schema: Some(schema), strict, .. } }) => {
            Some(Format::JsonSchema { schema: schema.clone(), strict: strict.unwrap_or(false) })
        }
    };
    let mut asked = [
        (response_format, "response_format"),
        (regex.map(|pattern| Format::Regex(pattern.clone())), "regex"),
        (grammar.map(|text| Format::Grammar(text.clone())), "grammar"),
    ]
    .into_iter()
    .filter_map(|(format, field)| Some((format?, field)));
    let first = asked.next();
    if let (Some((_, one)), Some((_, other))) = (&first, asked.next()) {
        let message = format!("{one} and {other} cannot be combined");
        return Err(ApiError::invalid_param(other, message));
    }
    Ok(first)
}
