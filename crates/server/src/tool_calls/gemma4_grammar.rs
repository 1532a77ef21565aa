//! Grammars of Gemma 4's calls: a tool's schema in the syntax of its arguments.
//!
//! Where a schema allows numbers, truth values and `null` only, also in lists, the syntax is JSON's, and llguidance takes the schema. Strings,
//! objects and lists of such are rules of their own. Keys come in the order in which the model's template sorts them.

use super::grammar::{ArgumentRules, CallRules, Frame, literal, regex_literal};
use realizar_structured::GrammarError;
use serde_json::{Map, Value};
use std::fmt::Write;

/// Before a call.
pub(super) const OPEN: &str = "<|tool_call>";
/// After it.
pub(super) const CLOSE: &str = "<tool_call|>";
/// Before and after a string.
pub(super) const QUOTE: &str = "<|\"|>";
/// Before a name.
pub(super) const CALL: &str = "call:";
/// Bytes of a key at most.
pub(super) const MAX_KEY: usize = 256;

/// Keywords that the rules here do not express.
const NOT_EXPRESSED: [&str; 10] = [
    "$ref",
    "additionalItems",
    "allOf",
    "format",
    "maxProperties",
    "minProperties",
    "pattern",
    "patternProperties",
    "prefixItems",
    "uniqueItems",
];

pub(super) fn calls(rules: &CallRules<'_>) -> Result<String, GrammarError> {
    let mut all = Vec::new();
    let mut writer = Writer::new(rules.marker(QUOTE));
    for tool in &rules.tools {
        let options = &tool.schema["x-guidance"];
        writer.options = options.clone();
        writer.is_strict = options["lenient"] == Value::Bool(false);
        all.push(writer.value(&tool.schema, &tool.place)?);
    }
    let arguments = ArgumentRules { of_tools: &all, others: &writer.rules };
    Ok(rules.calls(&Frame {
        open: Some(OPEN),
        before_name: CALL,
        close: Some(CLOSE),
        arguments: Some(arguments),
        ..Frame::default()
    }))
}

/// Writes the rules of schemas.
struct Writer {
    /// The mark around strings, in Lark.
    quote: String,
    rules: String,
    n_rules: usize,
    is_strict: bool,
    /// What `%json` needs to know, of the tool in progress.
    options: Value,
}

impl Writer {
    fn new(quote: String) -> Self {
        let mut this =
            Self { quote, rules: String::new(), n_rules: 0, is_strict: false, options: Value::Null };
        let text = this.text(0, None);
        let _ = writeln!(this.rules, "any_key: /[A-Za-z_][A-Za-z0-9_.-]{{0,63}}/ \":\" any");
        let _ = writeln!(this.rules, "any_object: \"{{\" (any_key (\",\" any_key)*)? \"}}\"");
        let _ = writeln!(this.rules, "any_list: \"[\" (any (\",\" any)*)? \"]\"");
        let _ = writeln!(this.rules, "any_number: /-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?/");
        let _ = writeln!(
            this.rules,
            "any: {text} | any_object | any_list | any_number | \"true\" | \"false\" | \"null\""
        );
        this
    }

    /// A rule; returns its name.
    fn rule(&mut self, body: &str) -> String {
        self.n_rules += 1;
        let name = format!("value_{}", self.n_rules);
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }

    /// A string of so many characters.
    fn text(&mut self, min: u64, max: Option<u64>) -> String {
        let length = |min: u64, max: Option<u64>| match (min, max) {
            (0, None) => "*".to_owned(),
            (min, max) => format!("{{{min},{}}}", max.map_or(String::new(), |max| max.to_string())),
        };
        self.n_rules += 1;
        let name = format!("text_{}", self.n_rules);
        if self.quote == literal(QUOTE) {
            // The mark is text, too, and may not begin before so many characters.
            let rest = length(0, max.map(|max| max.saturating_sub(min)));
            let body = format!("/[^<]{{{min}}}(?s:.{rest})/");
            let _ = writeln!(self.rules, "{name}[suffix={}]: {body}", self.quote);
            return self.rule(&format!("{} {name}", self.quote));
        }
        let text = name.to_uppercase();
        let _ = writeln!(self.rules, "{text}: /(?s:.{})/", length(min, max));
        self.rule(&format!("{0} {text} {0}", self.quote))
    }

    /// What a schema allows.
    fn value(&mut self, schema: &Value, path: &str) -> Result<String, GrammarError> {
        if is_json(schema) {
            let mut schema = schema.clone();
            schema["x-guidance"] = self.options.clone();
            return Ok(self.rule(&format!("%json {schema}")));
        }
        let Some(keywords) = schema.as_object() else {
            return match schema {
                Value::Bool(false) => Err(error(path, "no value satisfies the schema false")),
                _ => Ok("any".to_owned()),
            };
        };
        // Alternatives beside what holds for all of them.
        let has = |names: &[&str]| names.iter().any(|name| keywords.contains_key(*name));
        let is_composed = has(&["type", "properties", "required", "items"]) && has(&["anyOf", "oneOf"]);
        let composing = ["anyOf", "oneOf"].iter().filter(|_| is_composed);
        let unexpressed = NOT_EXPRESSED.iter().chain(composing).find(|keyword| has(&[keyword]));
        if let (Some(keyword), true) = (unexpressed, self.is_strict) {
            let reason = format!("the keyword {keyword:?} cannot be enforced in this model's calls");
            return Err(error(&format!("{path}/{keyword}"), &reason));
        }
        if let Some(value) = keywords.get("const") {
            return Ok(self.constant(value));
        }
        for (keyword, is_schema) in [("enum", false), ("anyOf", true), ("oneOf", true)] {
            let list = keywords.get(keyword).filter(|_| !(is_schema && is_composed));
            let Some(Value::Array(list)) = list else { continue };
            let mut alternatives = Vec::with_capacity(list.len());
            for (i, one) in list.iter().enumerate() {
                alternatives.push(match is_schema {
                    true => self.value(one, &format!("{path}/{keyword}/{i}"))?,
                    false => self.constant(one),
                });
            }
            return Ok(self.rule(&alternatives.join(" | ")));
        }
        match keywords.get("type") {
            Some(Value::String(kind)) => self.of_type(keywords, kind, path),
            Some(Value::Array(kinds)) => {
                let kinds = kinds.iter().filter_map(Value::as_str);
                let alternatives = kinds.map(|kind| self.of_type(keywords, kind, path));
                let alternatives = alternatives.collect::<Result<Vec<_>, _>>()?;
                Ok(self.rule(&alternatives.join(" | ")))
            }
            _ if keywords.contains_key("properties") => self.object(schema, path),
            _ if keywords.contains_key("items") => self.list(keywords, path),
            _ => Ok("any".to_owned()),
        }
    }

    fn of_type(
        &mut self,
        keywords: &Map<String, Value>,
        kind: &str,
        path: &str,
    ) -> Result<String, GrammarError> {
        let length = |keyword: &str| keywords.get(keyword).and_then(Value::as_u64);
        match kind {
            "string" => Ok(self.text(length("minLength").unwrap_or(0), length("maxLength"))),
            "object" => self.object(&Value::Object(keywords.clone()), path),
            "array" => self.list(keywords, path),
            other => {
                let mut schema = keywords.clone();
                schema.insert("type".to_owned(), other.into());
                schema.insert("x-guidance".to_owned(), self.options.clone());
                Ok(self.rule(&format!("%json {}", Value::Object(schema))))
            }
        }
    }

    fn list(&mut self, keywords: &Map<String, Value>, path: &str) -> Result<String, GrammarError> {
        let item = match keywords.get("items") {
            Some(items) => self.value(items, &format!("{path}/items"))?,
            None => "any".to_owned(),
        };
        let count = |keyword: &str| keywords.get(keyword).and_then(Value::as_u64);
        let (min, max) = (count("minItems").unwrap_or(0), count("maxItems"));
        let more = match (min, max) {
            (0 | 1, None) => "*".to_owned(),
            (min, max) => {
                let bound = max.map_or(String::new(), |max| max.saturating_sub(1).to_string());
                format!("{{{},{bound}}}", min.saturating_sub(1))
            }
        };
        Ok(match (min, max) {
            (_, Some(0)) => self.rule("\"[]\""),
            (0, _) => self.rule(&format!("\"[]\" | \"[\" {item} (\",\" {item}){more} \"]\"")),
            _ => self.rule(&format!("\"[\" {item} (\",\" {item}){more} \"]\"")),
        })
    }

    fn object(&mut self, schema: &Value, path: &str) -> Result<String, GrammarError> {
        let none = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&none);
        let required = |name: &String| {
            schema["required"].as_array().is_some_and(|names| names.iter().any(|n| n.as_str() == Some(name)))
        };
        let mut names: Vec<&String> = properties.keys().collect();
        names.sort_by_key(|name| name.to_lowercase());
        // After the last property, with others before it or without.
        let (mut first, mut rest) = match self.others(schema, &names, path)? {
            Some(other) => {
                (self.rule(&format!("({other} (\",\" {other})*)?")), self.rule(&format!("(\",\" {other})*")))
            }
            None => ("\"\"".to_owned(), "\"\"".to_owned()),
        };
        for name in names.into_iter().rev() {
            let place = format!("{path}/properties/{name}");
            if !(1..=MAX_KEY).contains(&name.len())
                || name.contains([':', '{', '}', '[', ']', ',', '\n'])
                || name.contains(QUOTE)
            {
                return Err(error(&place, "such a name cannot stand in this model's calls"));
            }
            let value = self.value(&properties[name], &place)?;
            let key = literal(&format!("{name}:"));
            let (with_first, with_rest) =
                (format!("{key} {value} {rest}"), format!("\",\" {key} {value} {rest}"));
            (first, rest) = match required(name) {
                true => (self.rule(&with_first), self.rule(&with_rest)),
                false => (
                    self.rule(&format!("{with_first} | {first}")),
                    self.rule(&format!("{with_rest} | {rest}")),
                ),
            };
        }
        Ok(self.rule(&format!("\"{{\" {first} \"}}\"")))
    }

    /// An entry of an object that is not among its properties, where it may have such.
    fn others(
        &mut self,
        schema: &Value,
        names: &[&String],
        path: &str,
    ) -> Result<Option<String>, GrammarError> {
        let value = match &schema["additionalProperties"] {
            Value::Bool(false) => return Ok(None),
            Value::Null | Value::Bool(true) => "any".to_owned(),
            other => self.value(other, &format!("{path}/additionalProperties"))?,
        };
        self.n_rules += 1;
        let key = format!("KEY_{}", self.n_rules);
        let mut pattern = "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/".to_owned();
        if !names.is_empty() {
            let names: Vec<String> = names.iter().map(|name| regex_literal(name)).collect();
            let _ = write!(pattern, " & ~/({})/", names.join("|"));
        }
        let _ = writeln!(self.rules, "{key}: {pattern}");
        Ok(Some(self.rule(&format!("{key} \":\" {value}"))))
    }

    /// One value.
    fn constant(&mut self, value: &Value) -> String {
        match value {
            Value::String(text) if text.is_empty() => self.rule(&format!("{0} {0}", self.quote)),
            Value::String(text) => self.rule(&format!("{0} {1} {0}", self.quote, literal(text))),
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| self.constant(item)).collect();
                self.rule(&format!("\"[\" {} \"]\"", items.join(" \",\" ")))
            }
            Value::Object(entries) => {
                let entry =
                    |(key, value)| format!("{} {}", literal(&format!("{key}:")), self.constant(value));
                let entries: Vec<String> = entries.iter().map(entry).collect();
                self.rule(&format!("\"{{\" {} \"}}\"", entries.join(" \",\" ")))
            }
            other => literal(&other.to_string()),
        }
    }
}

/// Whether a schema allows only what is written as in JSON.
fn is_json(schema: &Value) -> bool {
    let is_plain = |value: &Value| !matches!(value, Value::String(_) | Value::Array(_) | Value::Object(_));
    let all = |list: &Value, holds: fn(&Value) -> bool| list.as_array().is_some_and(|l| l.iter().all(holds));
    let refers = NOT_EXPRESSED.iter().any(|keyword| schema.get(keyword).is_some());
    !refers
        && match (&schema["type"], &schema["enum"]) {
            (_, values @ Value::Array(_)) => {
                values.as_array().is_some_and(|values| values.iter().all(is_plain))
            }
            (Value::String(kind), _) if kind == "array" => schema.get("items").is_some_and(is_json),
            (Value::String(kind), _) => matches!(kind.as_str(), "number" | "integer" | "boolean" | "null"),
            (kinds @ Value::Array(_), _) => {
                all(kinds, |kind| matches!(kind.as_str(), Some("number" | "integer" | "boolean" | "null")))
            }
            _ => all(&schema["anyOf"], is_json),
        }
}

fn error(path: &str, reason: &str) -> GrammarError {
    GrammarError::Schema { path: path.to_owned(), reason: reason.to_owned() }
}
