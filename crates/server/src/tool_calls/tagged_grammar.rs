//! Grammars of calls whose arguments stand between tags: each argument by its own schema, a string as the text that it is.
//!
//! Arguments come in the order of the schema. All that is no string is JSON, and llguidance takes its schema.

use super::grammar::{ArgumentRules, CallRules, CallableTool, Frame, literal, regex_literal};
use super::schema_types::{Types, resolve};
use super::tagged::Tags;
use realizar_structured::GrammarError;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Keywords that the rules here do not express for a tool's arguments.
const NOT_OF_ARGUMENTS: [&str; 6] =
    ["allOf", "anyOf", "maxProperties", "minProperties", "oneOf", "patternProperties"];
/// Keywords that the rules here do not express for an argument that may be a string.
const NOT_OF_STRINGS: [&str; 3] = ["allOf", "format", "pattern"];
/// What texts begin with that are read as values of a type other than strings, with the blanks before them. (`true` and `null` are right
/// wherever they are allowed.)
const BEGINNINGS: [(Types, &str); 3] =
    [(Types::NUMBER, r"\s0-9\-"), (Types::OBJECT, r"\s\{"), (Types::ARRAY, r"\s\[\(")];
/// Keys of arguments that a schema does not name.
const ANY_KEY: &str = "[A-Za-z_][A-Za-z0-9_.-]{0,63}";

pub(super) fn calls(tags: &'static Tags, rules: &CallRules<'_>) -> Result<String, GrammarError> {
    let mut writer = Writer { tags, calls: rules, rules: String::new(), n_rules: 0 };
    let all: Vec<String> = rules.tools.iter().map(|tool| writer.arguments(tool)).collect::<Result<_, _>>()?;
    let arguments = ArgumentRules { of_tools: &all, others: &writer.rules };
    let blanks = &tags.blanks;
    // Blanks inside the tags around each call belong to the call.
    let (after_open, after_call) =
        if tags.is_list { ("", "") } else { (blanks.after_open, blanks.after_call) };
    let frame = match tags.is_list {
        true => Frame {
            before_all: Some(tags.open[0]),
            before_first: blanks.after_open,
            after_last: blanks.after_call,
            after_all: Some(tags.close),
            ..Frame::default()
        },
        false => Frame { open: Some(tags.open[0]), close: Some(tags.close), ..Frame::default() },
    };
    Ok(rules.calls(&Frame {
        before_name: &format!("{after_open}{}", tags.before_name),
        before_arguments: &format!("{}{}", tags.after_name, blanks.after_name),
        arguments: Some(arguments),
        after_arguments: &format!("{}{after_call}", tags.after_call),
        between: blanks.between,
        ..frame
    }))
}

/// Writes the rules of arguments.
struct Writer<'a> {
    tags: &'static Tags,
    calls: &'a CallRules<'a>,
    rules: String,
    n_rules: usize,
}

/// The schema of one argument, and where it is from.
struct Argument<'a> {
    schema: &'a Value,
    root: &'a Value,
    path: String,
    is_strict: bool,
}

/// One way to write a value.
enum Form {
    /// So many characters.
    Text(u64, Option<u64>),
    /// This text.
    Constant(String),
    /// JSON of this schema.
    Json(Value),
}

impl Writer<'_> {
    /// A rule; returns its name.
    fn rule(&mut self, body: &str) -> String {
        self.n_rules += 1;
        let name = format!("value_{}", self.n_rules);
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }

    /// What stands for a tool's arguments.
    fn arguments(&mut self, tool: &CallableTool<'_>) -> Result<String, GrammarError> {
        let root = &tool.schema;
        let schema = resolve(root, root);
        let is_strict = root["x-guidance"]["lenient"] == Value::Bool(false);
        if let Some(keyword) = NOT_OF_ARGUMENTS.iter().find(|keyword| schema.get(keyword).is_some())
            && is_strict
        {
            return Err(unexpressed(&tool.place, keyword));
        }
        let none = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&none);
        let is_required = |name: &String| {
            schema["required"].as_array().is_some_and(|names| names.iter().any(|n| n.as_str() == Some(name)))
        };
        let mut parts = Vec::new();
        for (name, schema) in properties {
            let path = format!("{}/properties/{name}", tool.place);
            if name.is_empty() || name.len() > 256 || name.contains(['<', '>', '"', '\n']) {
                return Err(error(&path, "such a name cannot stand in this model's calls"));
            }
            let argument = Argument { schema, root, path, is_strict };
            let rule = self.argument(&literal(name), &argument)?;
            parts.push(rule + if is_required(name) { "" } else { "?" });
        }
        let more = &schema["additionalProperties"];
        if *more != Value::Bool(false) {
            let path = format!("{}/additionalProperties", tool.place);
            let any = Value::Bool(true);
            let schema = if more.is_null() { &any } else { more };
            let names: Vec<String> = properties.keys().map(|name| regex_literal(name)).collect();
            self.n_rules += 1;
            let key = format!("KEY_{}", self.n_rules);
            // Elsewhere a key that comes twice counts as it came last.
            let others = match names.is_empty() || !is_strict {
                true => String::new(),
                false => format!(" & ~/({})/", names.join("|")),
            };
            let _ = writeln!(self.rules, "{key}: /{ANY_KEY}/{others}");
            parts.push(self.argument(&key, &Argument { schema, root, path, is_strict })? + "*");
        }
        Ok(self.rule(&parts.join(" ")))
    }

    /// An argument with its tags. `key`: in Lark.
    fn argument(&mut self, key: &str, argument: &Argument<'_>) -> Result<String, GrammarError> {
        let (tags, mark) = (self.tags, |text: &str| match text {
            "" => String::new(),
            text => self.calls.marker(text),
        });
        let before = format!(
            "{} {key} {} {} {}",
            mark(tags.before_key),
            mark(tags.after_key),
            literal(tags.blanks.before_value),
            mark(tags.before_value)
        );
        let value = self.value(argument)?;
        Ok(self.rule(&format!("{before} {value} {}", literal(tags.blanks.after_argument))))
    }

    /// A value and the tag that ends it.
    fn value(&mut self, argument: &Argument<'_>) -> Result<String, GrammarError> {
        let mut forms = Vec::new();
        let schema = with_definitions(argument.schema, argument.root);
        collect(&schema, argument, &argument.path, &mut forms, 0)?;
        if forms.is_empty() {
            return Err(error(&argument.path, "no value satisfies the schema"));
        }
        let pad = if self.tags.has_padded_values() { "\n" } else { "" };
        let close = self.calls.marker(self.tags.after_value[0].trim_start());
        let mut alternatives = Vec::new();
        for form in &forms {
            alternatives.push(match form {
                Form::Text(min, max) => self.text(*min, *max, &forms),
                Form::Constant(text) if text.contains(self.tags.after_value[0].trim_start()) => {
                    return Err(error(&argument.path, "such a text cannot stand in this model's calls"));
                }
                Form::Constant(text) => format!("{} {close}", literal(&format!("{pad}{text}{pad}"))),
                Form::Json(schema) => format!("{} %json {schema} {} {close}", literal(pad), literal(pad)),
            });
        }
        Ok(self.rule(&alternatives.join(" | ")))
    }

    /// A text of so many characters, and the tag that ends it. Among values of other types it is none that looks like them.
    fn text(&mut self, min: u64, max: Option<u64>, forms: &[Form]) -> String {
        let types = |form: &Form| match form {
            Form::Json(schema) => Some(Types::of(schema, schema)),
            Form::Text(..) | Form::Constant(_) => None,
        };
        let is_excluded = |kind: &Types| forms.iter().filter_map(types).any(|types| types.contains(*kind));
        let excluded = BEGINNINGS.iter().filter(|(kind, _)| is_excluded(kind)).map(|(_, class)| *class);
        let tag = self.tags.after_value[0].trim_start();
        let pad = if self.tags.has_padded_values() { "\\n" } else { "" };
        let body = text_without(tag, min, max, &excluded.collect::<String>());
        self.n_rules += 1;
        let name = format!("TEXT_{}", self.n_rules);
        let close = self.calls.marker(tag);
        // Where the tag is text, it is part of the lexeme, so that the lexeme ends with it.
        let is_text = close == literal(tag);
        let end = if is_text { regex_literal(tag) } else { String::new() };
        let _ = writeln!(self.rules, "{name}: /{pad}{body}{pad}{end}/");
        if is_text { name } else { format!("{name} {close}") }
    }
}

/// A regular expression for texts of so many characters without `tag`, whose first `<` is its only one. Where characters are counted there is no
/// `<` at all. `excluded`: what the first character is not, in a class.
fn text_without(tag: &str, min: u64, max: Option<u64>, excluded: &str) -> String {
    // After `<` and some more of the tag: another character than the tag's next, and what follows up to another `<`.
    let step = |rest: String, c: char| {
        let c = regex_literal(&c.to_string());
        let more = if rest.is_empty() { String::new() } else { format!("|{c}{rest}") };
        format!("([^<{c}][^<]*{more})?")
    };
    let part = format!(
        "(<{})*",
        tag.chars().skip(1).collect::<Vec<_>>().into_iter().rev().fold(String::new(), step)
    );
    let first = format!("[^<{excluded}]");
    match (min, max) {
        (0, Some(0)) => String::new(),
        (0, None) if excluded.is_empty() => format!("[^<]*{part}"),
        // A `<` is the beginning of no such value.
        (0, None) => format!("({first}[^<]*)?{part}"),
        (min, None) => format!("{first}[^<]{{{}}}[^<]*{part}", min - 1),
        (min, Some(max)) => {
            let counted = format!("{first}[^<]{{{},{}}}", min.saturating_sub(1), max.saturating_sub(1));
            if min == 0 { format!("({counted})?") } else { counted }
        }
    }
}

/// A schema of its own with the definitions of its document.
fn with_definitions(schema: &Value, root: &Value) -> Value {
    let mut schema = match resolve(schema, root) {
        Value::Object(keywords) => Value::Object(keywords.clone()),
        Value::Bool(false) => return Value::Bool(false),
        _ => json!({}),
    };
    for name in ["$defs", "definitions", "x-guidance"] {
        if let Some(value) = root.get(name) {
            schema[name] = value.clone();
        }
    }
    schema
}

/// All ways to write a value.
fn collect(
    schema: &Value,
    argument: &Argument<'_>,
    path: &str,
    forms: &mut Vec<Form>,
    depth: usize,
) -> Result<(), GrammarError> {
    let types = Types::of(schema, argument.root);
    let Some(keywords) = schema.as_object() else { return Ok(()) };
    if !types.contains(Types::STRING) {
        forms.push(Form::Json(schema.clone()));
        return Ok(());
    }
    if let Some(keyword) = NOT_OF_STRINGS.iter().find(|keyword| keywords.contains_key(**keyword))
        && argument.is_strict
    {
        return Err(unexpressed(path, keyword));
    }
    let constants = match (keywords.get("const"), keywords.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    };
    if let Some(values) = constants {
        let form = |value: &Value| match value {
            Value::String(text) => Form::Constant(text.clone()),
            other => Form::Json(json!({"const": other})),
        };
        forms.extend(values.into_iter().map(form));
        return Ok(());
    }
    for keyword in ["anyOf", "oneOf"] {
        let Some(Value::Array(list)) = keywords.get(keyword).filter(|_| depth < 16) else { continue };
        if keywords.contains_key("type") && argument.is_strict {
            return Err(unexpressed(path, keyword));
        }
        for (i, one) in list.iter().enumerate() {
            let one = with_definitions(one, argument.root);
            collect(&one, argument, &format!("{path}/{keyword}/{i}"), forms, depth + 1)?;
        }
        return Ok(());
    }
    let length = |keyword: &str| keywords.get(keyword).and_then(Value::as_u64);
    let text = Form::Text(length("minLength").unwrap_or(0), length("maxLength"));
    match keywords.get("type") {
        Some(Value::Array(names)) => {
            for name in names.iter().filter(|name| name.as_str() != Some("string")) {
                let mut schema = schema.clone();
                schema["type"] = name.clone();
                forms.push(Form::Json(schema));
            }
            forms.push(text);
        }
        // Whatever it is, it can be read.
        _ => forms.push(text),
    }
    Ok(())
}

fn unexpressed(path: &str, keyword: &str) -> GrammarError {
    let reason = format!("the keyword {keyword:?} cannot be enforced in this model's calls");
    error(&format!("{path}/{keyword}"), &reason)
}

fn error(path: &str, reason: &str) -> GrammarError {
    GrammarError::Schema { path: path.to_owned(), reason: reason.to_owned() }
}
