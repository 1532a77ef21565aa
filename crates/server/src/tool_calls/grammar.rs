//! Grammars of tool calls: the syntax's frame around each tool's name and its arguments' schema.

use super::{Tool, ToolChoice};
use realizar_model::tokenizer::Tokenizer;
use realizar_structured::{Format, GrammarError, prepare_schema};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// What a syntax writes around a call. Markers are single control tokens in vocabularies that have them as such, else text.
#[derive(Default)]
pub(super) struct Frame<'a> {
    /// A marker before the first call.
    pub(super) before_all: Option<&'static str>,
    /// Text after `before_all`.
    pub(super) before_first: &'static str,
    /// A marker before each call.
    pub(super) open: Option<&'static str>,
    /// Text and a marker before `before_name`.
    pub(super) before_name_marker: Option<(&'static str, &'static str)>,
    pub(super) before_name: &'a str,
    pub(super) before_arguments: &'a str,
    /// A regular expression after `before_arguments`.
    pub(super) before_arguments_pattern: Option<&'static str>,
    /// A marker after these.
    pub(super) before_arguments_marker: Option<&'static str>,
    pub(super) after_arguments: &'a str,
    /// A marker after each call.
    pub(super) close: Option<&'static str>,
    pub(super) between: &'static str,
    pub(super) after_last: &'static str,
    /// A marker after `after_last`.
    pub(super) after_all: Option<&'static str>,
    /// The syntax has no more than one call.
    pub(super) single: bool,
    /// Rules for arguments that are not JSON.
    pub(super) arguments: Option<ArgumentRules<'a>>,
}

/// What stands for arguments that are not JSON.
pub(super) struct ArgumentRules<'a> {
    /// For each tool, an expression.
    pub(super) of_tools: &'a [String],
    /// The rules that the expressions name.
    pub(super) others: &'a str,
}

/// A tool that may be called.
pub(super) struct CallableTool<'a> {
    pub(super) name: &'a str,
    /// As the compiler takes it.
    pub(super) schema: Value,
    /// The schema's place in the request.
    pub(super) place: String,
}

/// What is to be enforced.
pub(super) struct CallRules<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) tools: Vec<CallableTool<'a>>,
    parallel: bool,
    /// What the answer may be without calls.
    pub(super) otherwise: Otherwise,
}

pub(super) enum Otherwise {
    /// There must be calls.
    Nothing,
    /// Text, which may also come before calls.
    Text,
    /// JSON with this schema.
    Json(Value),
}

impl CallRules<'_> {
    /// The grammar in Lark.
    pub(super) fn calls(&self, frame: &Frame<'_>) -> String {
        let mut call = Vec::new();
        call.extend(frame.open.map(|marker| self.marker(marker)));
        call.push("function".to_owned());
        call.extend(frame.close.map(|marker| self.marker(marker)));
        let function = |(i, CallableTool { name, schema, .. }): (usize, &CallableTool<'_>)| {
            let mut parts = Vec::new();
            parts.extend(
                frame.before_name_marker.map(|(text, m)| format!("{} {}", literal(text), self.marker(m))),
            );
            parts.push(literal(&format!("{}{name}{}", frame.before_name, frame.before_arguments)));
            parts.extend(frame.before_arguments_pattern.map(|pattern| format!("/{pattern}/")));
            parts.extend(frame.before_arguments_marker.map(|marker| self.marker(marker)));
            parts.push(match &frame.arguments {
                Some(rules) => rules.of_tools[i].clone(),
                None => format!("%json {schema}"),
            });
            parts.push(literal(frame.after_arguments));
            parts.join(" ")
        };
        let functions: Vec<String> = self.tools.iter().enumerate().map(function).collect();

        let more = if self.parallel && !frame.single {
            format!("({} call)*", literal(frame.between))
        } else {
            String::new()
        };
        // After the marker that begins the first call.
        let (marker, rest) = match (frame.before_all, frame.open) {
            (Some(marker), _) => (
                Some(marker),
                format!(
                    "{} call {more} {} {}",
                    literal(frame.before_first),
                    literal(frame.after_last),
                    frame.after_all.map_or(String::new(), |marker| self.marker(marker))
                ),
            ),
            (None, Some(marker)) => (Some(marker), format!("{} {more}", call[1..].join(" "))),
            (None, None) => (None, format!("call {more}")),
        };
        let marker = marker.map(|text| (text, self.marker(text)));
        let all = marker.as_ref().map_or_else(|| rest.clone(), |(_, marker)| format!("{marker} {rest}"));
        let mut lark = match (&self.otherwise, marker) {
            (Otherwise::Nothing, _) => format!("start: {all}\n"),
            (Otherwise::Json(schema), _) => format!("start: answer | {all}\nanswer: %json {schema}\n"),
            // A literal ends the text as soon as it is complete; the text without calls never has it.
            (Otherwise::Text, Some((text, marker))) if marker == literal(text) => {
                let pattern = regex_literal(text);
                format!(
                    "start: TEXT | before {rest}\nbefore[suffix={marker}]: /(?s:.*)/\n\
                     TEXT: /(?s:.*)/ & ~/(?s:.*){pattern}(?s:.*)/\n"
                )
            }
            (Otherwise::Text, Some(_)) => format!("start: TEXT | TEXT {all}\nTEXT: /(?s:.*)/\n"),
            // An object at the beginning of a line is a call.
            (Otherwise::Text, None) => {
                format!("start: TEXT | {all}\nTEXT: /([^{{\\s](?s:.*))?/ & ~/(?s:.*)\\n\\s*\\{{(?s:.*)/\n")
            }
        };
        let _ = writeln!(lark, "call: {}", call.join(" "));
        let _ = writeln!(lark, "function: {}", functions.join(" | "));
        lark.push_str(frame.arguments.as_ref().map_or("", |rules| rules.others));
        lark
    }

    /// A marker as the vocabulary has it: a control token, or text.
    pub(super) fn marker(&self, text: &str) -> String {
        marker(self.tokenizer, text)
    }
}

/// A marker as the vocabulary has it: a control token, or text.
pub(super) fn marker(tokenizer: &Tokenizer, text: &str) -> String {
    match tokenizer.id_of(text) {
        Some(id) if tokenizer.is_special(id) => format!("<[{id}]>"),
        _ => literal(text),
    }
}

/// A text in Lark.
pub(super) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// A text in a regular expression of Lark.
pub(super) fn regex_literal(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        if "\\.+*?()|[]{}^$#&-~/".contains(c) {
            out.push('\\');
        }
        out.push(c);
        out
    })
}

fn is_strict(tool: &Tool) -> bool {
    tool.function.strict == Some(true)
}

/// See [`super::Syntax::demands`].
pub(super) fn demands(tools: &[Tool], choice: &ToolChoice, parallel: bool, answer: Option<&Format>) -> bool {
    match choice {
        ToolChoice::None => false,
        ToolChoice::Auto => answer.is_some() || !parallel || tools.iter().any(is_strict),
        ToolChoice::Required | ToolChoice::Named(_) => true,
    }
}

/// See [`super::Syntax::grammar`].
pub(super) fn format(
    rules: fn(&CallRules<'_>) -> Result<String, GrammarError>,
    tokenizer: &Tokenizer,
    tools: &[Tool],
    choice: &ToolChoice,
    parallel: bool,
    answer: Option<&Format>,
) -> Result<Option<Format>, GrammarError> {
    if !demands(tools, choice, parallel, answer) {
        return Ok(None);
    }
    let otherwise = match (choice, answer) {
        (ToolChoice::Auto, None) => Otherwise::Text,
        (ToolChoice::Auto, Some(Format::Json)) => {
            Otherwise::Json(prepare_schema(&json!({"type": "object"}), true)?)
        }
        (ToolChoice::Auto, Some(Format::JsonSchema { schema, strict })) => {
            Otherwise::Json(prepare_schema(schema, *strict)?)
        }
        (ToolChoice::Auto, Some(Format::Regex(_) | Format::Grammar(_))) => {
            let reason = "beside tools that may be called, an answer can be free or JSON".to_owned();
            return Err(GrammarError::Grammar { reason });
        }
        (ToolChoice::None | ToolChoice::Required | ToolChoice::Named(_), _) => Otherwise::Nothing,
    };
    let mut callable = Vec::new();
    for (i, tool) in tools.iter().enumerate() {
        if matches!(choice, ToolChoice::Named(name) if *name != tool.function.name) {
            continue;
        }
        let schema = arguments_schema(tool).and_then(|schema| prepare_schema(&schema, is_strict(tool)));
        let schema = schema.map_err(|error| match error {
            GrammarError::Schema { path, reason } => {
                let path = format!("tools/{i}/function/parameters{}", path.trim_start_matches('#'));
                GrammarError::Schema { path, reason }
            }
            other => other,
        })?;
        let place = format!("tools/{i}/function/parameters");
        callable.push(CallableTool { name: &tool.function.name, schema, place });
    }
    let parallel = parallel && !matches!(choice, ToolChoice::Named(_));
    let lark = rules(&CallRules { tokenizer, tools: callable, parallel, otherwise })?;
    Ok(Some(Format::Grammar(lark)))
}

/// The schema of a tool's arguments, which are an object in every syntax.
fn arguments_schema(tool: &Tool) -> Result<Value, GrammarError> {
    let fail = |path: &str, reason: &str| {
        Err(GrammarError::Schema { path: path.to_owned(), reason: reason.to_owned() })
    };
    match &tool.function.parameters {
        None | Some(Value::Null) => {
            Ok(json!({"type": "object", "properties": {}, "additionalProperties": false}))
        }
        Some(Value::Object(schema)) => match schema.get("type") {
            Some(kind) if kind != "object" => fail("#/type", "arguments are an object"),
            Some(_) => Ok(Value::Object(schema.clone())),
            None => {
                // First, so that llguidance need not think of other types.
                let kind: Map<String, Value> = [("type".to_owned(), "object".into())].into_iter().collect();
                Ok(Value::Object(kind.into_iter().chain(schema.clone()).collect()))
            }
        },
        Some(_) => fail("#", "a schema is an object"),
    }
}
