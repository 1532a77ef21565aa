//! What an answer must look like: `response_format` and its extensions.

use crate::error::{ApiError, Result};
use crate::turn::Asked;
use realizar_structured::Format;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

/// Texts in `bad_words` at most.
const MAX_BAD_WORDS: usize = 256;

/// What the answer must look like; one of these fields at most.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct FormatFields {
    /// What the answer must look like.
    pub(crate) response_format: Option<ResponseFormat>,
    /// Extension: a regular expression that matches the whole answer.
    pub(crate) regex: Option<String>,
    /// Extension: a grammar of the answer, in GBNF or in Lark.
    pub(crate) grammar: Option<String>,
    /// Extension: another name of `grammar`.
    pub(crate) ebnf: Option<String>,
    /// Extension: the answer is JSON of this schema.
    #[schema(value_type = Option<Object>)]
    pub(crate) json_schema: Option<Value>,
    /// Extension: what the answer must look like, as vLLM names it.
    pub(crate) structured_outputs: Option<StructuredOutputs>,
    /// Extension: another name of `json_schema`; also as a text.
    #[schema(value_type = Option<Object>)]
    pub(crate) guided_json: Option<Value>,
    /// Extension: another name of `regex`.
    pub(crate) guided_regex: Option<String>,
    /// Extension: the answer is one of these texts.
    #[schema(min_items = 1)]
    pub(crate) guided_choice: Option<Vec<String>>,
    /// Extension: another name of `grammar`.
    pub(crate) guided_grammar: Option<String>,
    /// Extension: the answer contains none of these texts.
    #[schema(max_items = 256)]
    pub(crate) bad_words: Option<Vec<String>>,
}

/// What an answer must look like.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ResponseFormat {
    /// Free text.
    Text,
    /// A JSON object.
    JsonObject {
        /// Extension: the schema of the object. Default: any object.
        #[serde(default)]
        #[schema(value_type = Option<Object>)]
        schema: Option<Value>,
    },
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
    /// What it is for.
    #[serde(default)]
    #[allow(dead_code, reason = "clients may send it, and it changes nothing")]
    pub(crate) description: Option<String>,
    /// The schema, in the dialect of draft 2020-12. Default: any object.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(crate) schema: Option<Value>,
    /// Refuses a schema with keywords that cannot be enforced; otherwise they say nothing. Default: false.
    #[serde(default)]
    pub(crate) strict: Option<bool>,
}

/// What an answer must look like, in one of these ways.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct StructuredOutputs {
    /// JSON of this schema; also as a text.
    #[schema(value_type = Option<Object>)]
    pub(crate) json: Option<Value>,
    /// A JSON object.
    pub(crate) json_object: Option<bool>,
    /// A regular expression that matches the whole answer.
    pub(crate) regex: Option<String>,
    /// One of these texts.
    #[schema(min_items = 1)]
    pub(crate) choice: Option<Vec<String>>,
    /// A grammar, in GBNF or in Lark.
    pub(crate) grammar: Option<String>,
    /// Not offered.
    #[schema(value_type = Option<Object>)]
    pub(crate) structural_tag: Option<Value>,
    /// Not offered.
    pub(crate) whitespace_pattern: Option<String>,
    /// Not offered.
    pub(crate) disable_any_whitespace: Option<bool>,
}

impl FormatFields {
    /// The format that a request asks for, with the field that says so; `None` for free text. `open_schemas`: objects of a schema
    /// without `additionalProperties` may have further properties.
    ///
    /// Errors: more than one format; a schema, a list or an option that cannot be.
    pub(crate) fn format(&self, open_schemas: bool) -> Result<Option<Asked>> {
        let schema = |schema: &Value, strict| Format::json_schema(schema, strict, open_schemas);
        let response_format = match &self.response_format {
            None | Some(ResponseFormat::Text) => None,
            Some(ResponseFormat::JsonObject { schema: None }) => Some(Format::Json),
            Some(ResponseFormat::JsonObject { schema: Some(object) }) => Some(schema(object, false)),
            Some(ResponseFormat::JsonSchema { json_schema: JsonSchema { schema: None, .. } }) => {
                Some(Format::Json)
            }
            Some(ResponseFormat::JsonSchema {
                json_schema: JsonSchema { schema: Some(described), strict, .. },
            }) => Some(schema(described, strict.unwrap_or(false))),
        };
        let written = |text: &Value, field| written_schema(text, field).map(|s| schema(&s, false));
        let text = |text: &Option<String>, format: fn(String) -> Format| text.clone().map(format);
        let list = |list: &Option<Vec<String>>, field| list.as_ref().map(|l| choice(l, field)).transpose();
        let asked = [
            (response_format, "response_format"),
            (text(&self.regex, Format::Regex), "regex"),
            (text(&self.grammar, Format::Grammar), "grammar"),
            (text(&self.ebnf, Format::Grammar), "ebnf"),
            (self.json_schema.as_ref().map(|s| schema(s, false)), "json_schema"),
            (
                self.structured_outputs.as_ref().map_or(Ok(None), |s| s.format(open_schemas))?,
                "structured_outputs",
            ),
            (self.guided_json.as_ref().map(|s| written(s, "guided_json")).transpose()?, "guided_json"),
            (text(&self.guided_regex, Format::Regex), "guided_regex"),
            (list(&self.guided_choice, "guided_choice")?, "guided_choice"),
            (text(&self.guided_grammar, Format::Grammar), "guided_grammar"),
            (self.bad_words.as_ref().map_or(Ok(None), |words| without(words))?, "bad_words"),
        ];
        only_one(asked.into_iter().filter_map(|(format, field)| Some((format?, field))))
    }
}

/// Errors: more than one format.
fn only_one(mut asked: impl Iterator<Item = Asked>) -> Result<Option<Asked>> {
    let first = asked.next();
    if let (Some((_, one)), Some((_, other))) = (&first, asked.next()) {
        let message = format!("{one} and {other} cannot be combined");
        return Err(ApiError::invalid_param(other, message));
    }
    Ok(first)
}

impl StructuredOutputs {
    fn format(&self, open_schemas: bool) -> Result<Option<Format>> {
        const FIELD: &str = "structured_outputs";
        let options = [
            (self.structural_tag.is_some(), "structural_tag"),
            (self.whitespace_pattern.is_some(), "whitespace_pattern"),
            (self.disable_any_whitespace == Some(true), "disable_any_whitespace"),
        ];
        if let Some((_, name)) = options.iter().find(|(is_set, _)| *is_set) {
            let message = format!("structured_outputs.{name} is not supported; use grammar");
            return Err(ApiError::invalid_param(FIELD, message).code("unsupported"));
        }
        let json = self.json.as_ref().map(|s| written_schema(s, FIELD)).transpose()?;
        let choice = self.choice.as_ref().map(|l| choice(l, FIELD)).transpose()?;
        let asked = [
            (json.map(|s| Format::json_schema(&s, false, open_schemas)), "structured_outputs.json"),
            (self.json_object.filter(|&is| is).map(|_| Format::Json), "structured_outputs.json_object"),
            (self.regex.clone().map(Format::Regex), "structured_outputs.regex"),
            (choice, "structured_outputs.choice"),
            (self.grammar.clone().map(Format::Grammar), "structured_outputs.grammar"),
        ];
        let asked = only_one(asked.into_iter().filter_map(|(format, field)| Some((format?, field))))?;
        Ok(asked.map(|(format, _)| format))
    }
}

/// A schema that may be written as a text.
fn written_schema(schema: &Value, field: &'static str) -> Result<Value> {
    match schema.as_str() {
        None => Ok(schema.clone()),
        Some(text) => serde_json::from_str(text)
            .map_err(|error| ApiError::invalid_param(field, format!("{field} is no JSON schema: {error}"))),
    }
}

/// One of some texts.
fn choice(texts: &[String], field: &'static str) -> Result<Format> {
    if texts.is_empty() {
        return Err(ApiError::invalid_param(field, format!("{field} has no text to choose")));
    }
    let alternatives: Vec<String> = texts.iter().map(|text| regex_syntax::escape(text)).collect();
    Ok(Format::Regex(format!("(?:{})", alternatives.join("|"))))
}

/// Any text that contains none of these.
fn without(words: &[String]) -> Result<Option<Format>> {
    let refuse = |message: String| Err(ApiError::invalid_param("bad_words", message));
    match words.len() {
        0 => return Ok(None),
        n if n > MAX_BAD_WORDS => {
            return refuse(format!("bad_words has {n} texts, at most {MAX_BAD_WORDS} are taken"));
        }
        _ if words.iter().any(String::is_empty) => {
            return refuse("a text in bad_words is empty, and every answer contains it".to_owned());
        }
        _ => {}
    }
    let words: Vec<String> = words.iter().map(|word| lark_pattern(word)).collect();
    Ok(Some(Format::Grammar(format!(
        "start: TEXT\nTEXT: /(?s:.*)/ & ~/(?s:.*)({})(?s:.*)/\n",
        words.join("|")
    ))))
}

/// A text in a regular expression of Lark.
fn lark_pattern(text: &str) -> String {
    text.chars().fold(String::new(), |mut pattern, c| {
        match c.is_ascii() && !c.is_ascii_alphanumeric() {
            true => pattern += &format!("\\x{:02X}", u32::from(c)),
            false => pattern.push(c),
        }
        pattern
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn asked(fields: Value) -> std::result::Result<Option<Asked>, (Option<String>, String)> {
        let fields: FormatFields = serde_json::from_value(fields).expect("fields");
        fields.format(false).map_err(|error| (error.param, error.message))
    }

    #[test]
    fn a_format_has_many_names() {
        let schema = json!({"properties": {"a": {}}});
        let closed = json!({"properties": {"a": {}}, "additionalProperties": false});
        let by_schema = Format::JsonSchema { schema: closed, strict: false };
        let choice = Format::Regex("(?:a\\.|b)".to_owned());
        for (field, value, format) in [
            ("response_format", json!({"type": "json_object"}), Format::Json),
            ("response_format", json!({"type": "json_object", "schema": schema}), by_schema.clone()),
            (
                "response_format",
                json!({"type": "json_schema", "json_schema": {"schema": schema}}),
                by_schema.clone(),
            ),
            ("json_schema", schema.clone(), by_schema.clone()),
            ("guided_json", schema.clone(), by_schema.clone()),
            ("guided_json", schema.to_string().into(), by_schema.clone()),
            ("guided_choice", json!(["a.", "b"]), choice.clone()),
            ("guided_regex", json!("a+"), Format::Regex("a+".to_owned())),
            ("guided_grammar", json!("g"), Format::Grammar("g".to_owned())),
            ("ebnf", json!("g"), Format::Grammar("g".to_owned())),
            ("structured_outputs", json!({"json": schema}), by_schema),
            ("structured_outputs", json!({"choice": ["a.", "b"]}), choice),
            ("structured_outputs", json!({"json_object": true, "regex": null}), Format::Json),
        ] {
            assert_eq!(asked(json!({ field: value })), Ok(Some((format, field))), "{field}");
        }
        for nothing in [json!({"structured_outputs": {}}), json!({"bad_words": []}), json!({})] {
            assert_eq!(asked(nothing), Ok(None));
        }
        let open: FormatFields = serde_json::from_value(json!({ "json_schema": schema })).expect("fields");
        let format = Format::JsonSchema { schema, strict: false };
        assert_eq!(open.format(true), Ok(Some((format, "json_schema"))));
    }

    #[test]
    fn what_cannot_be_asked_for_is_refused_by_name() {
        for (fields, param, said) in [
            (json!({"regex": "a", "guided_choice": ["a"]}), "guided_choice", "cannot be combined"),
            (json!({"bad_words": ["a"], "regex": "a"}), "bad_words", "cannot be combined"),
            (json!({"guided_choice": []}), "guided_choice", "no text"),
            (json!({"guided_json": "{"}), "guided_json", "no JSON schema"),
            (json!({"bad_words": ["a", ""]}), "bad_words", "empty"),
            (json!({"structured_outputs": {"structural_tag": "x"}}), "structured_outputs", "structural_tag"),
            (
                json!({"structured_outputs": {"json": {}, "regex": "a"}}),
                "structured_outputs.regex",
                "cannot be combined",
            ),
        ] {
            let (field, message) = asked(fields.clone()).expect_err("refused");
            assert_eq!(field.as_deref(), Some(param), "{fields}");
            assert!(message.contains(said), "{message}");
        }
    }
}
