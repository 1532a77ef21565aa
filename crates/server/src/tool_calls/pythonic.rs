//! Calls as a list in Python's words, `[name(key="value", …), …]`, between two tokens: LFM2.

use super::call_object::{is_blank, marker_in};
use super::grammar::{ArgumentRules, CallRules, Frame, literal};
use super::output::{Output, TextBefore};
use super::python_literal::{Literal, Step};
use super::schema_types::resolve;
use super::{BASE, Parse, Syntax};
use realizar_structured::GrammarError;
use serde_json::{Map, Value};
use std::fmt::Write;

const OPEN: &[&str] = &["<|tool_call_start|>"];
const CLOSE: &str = "<|tool_call_end|>";
/// Bytes of a name or a key at most.
const MAX_NAME: usize = 256;

pub(super) const SYNTAX: Syntax = Syntax {
    name: "lfm2",
    // Some of the templates render no calls.
    recognise: |probe| {
        ["<|tool_call_start|>[probe_tool(", "<|tool_list_start|>", "List of tools: ["]
            .iter()
            .any(|sign| probe.contains(sign))
    },
    markers: &[OPEN[0], CLOSE],
    parser: |_| Box::new(Pythonic { place: text() }),
    grammar,
    ..BASE
};

enum Place {
    Text(TextBefore),
    /// Before a name and in it: what began the calls, if no call has come, and what has come since.
    Name(String, String),
    /// Before a key, or the end of the call.
    Key {
        held: String,
        is_first: bool,
    },
    Value(Literal),
    /// After a value.
    Comma,
    /// After a call.
    AfterCall,
    /// After the list, where the closing token is expected.
    Closing(String),
}

struct Pythonic {
    place: Place,
}

fn text() -> Place {
    Place::Text(TextBefore::new(OPEN))
}

impl Pythonic {
    fn end(out: &mut Output) -> Place {
        out.arguments("}");
        out.end();
        Place::AfterCall
    }
}

impl Parse for Pythonic {
    fn push(&mut self, c: char, out: &mut Output) {
        self.place = match std::mem::replace(&mut self.place, text()) {
            Place::Text(mut before) => match before.push(c, out) {
                Some(frame) => Place::Name(frame, String::new()),
                None => Place::Text(before),
            },
            Place::Name(frame, held) if c == '(' && out.knows(name_of(&held)) => {
                out.begin(name_of(&held), None);
                out.arguments("{");
                drop(frame);
                Place::Key { held: String::new(), is_first: true }
            }
            Place::Name(frame, mut held) => {
                held.push(c);
                if may_name(&held) {
                    Place::Name(frame, held)
                } else {
                    out.text(&frame);
                    return held.chars().for_each(|c| self.push(c, out));
                }
            }
            Place::Key { held, is_first } if c == '=' && !held.trim().is_empty() => {
                let between = if is_first { "" } else { ", " };
                out.arguments(&format!("{between}{}: ", Value::from(held.trim())));
                Place::Value(Literal::new())
            }
            Place::Key { held, .. } if c == ')' && held.trim().is_empty() => Self::end(out),
            Place::Key { mut held, is_first } => {
                held.push(c);
                let is_key = held
                    .trim_start()
                    .chars()
                    .all(|c| c.is_alphanumeric() || "_-.".contains(c) || is_blank(c));
                if !is_key || held.len() > MAX_NAME {
                    return held.chars().for_each(|c| self.push(c, out));
                }
                Place::Key { held, is_first }
            }
            Place::Value(mut literal) => {
                let mut json = String::new();
                let step = literal.push(c, &mut json);
                out.arguments(&json);
                match step {
                    Step::More => Place::Value(literal),
                    Step::Done => Place::Comma,
                    Step::DoneBefore => {
                        self.place = Place::Comma;
                        return self.push(c, out);
                    }
                    Step::Malformed => return self.push(c, out),
                }
            }
            Place::Comma if is_blank(c) => Place::Comma,
            Place::Comma if c == ',' => Place::Key { held: String::new(), is_first: false },
            Place::Comma if c == ')' => Self::end(out),
            Place::Comma => return self.push(c, out),
            Place::AfterCall if is_blank(c) => Place::AfterCall,
            Place::AfterCall if c == ',' => Place::Name(String::new(), "[".to_owned()),
            Place::AfterCall if c == ']' => Place::Closing(String::new()),
            Place::AfterCall => return self.push(c, out),
            Place::Closing(mut held) => {
                held.push(c);
                match marker_in(&held, CLOSE) {
                    Some(true) => text(),
                    Some(false) => Place::Closing(held),
                    None => return held.chars().for_each(|c| self.push(c, out)),
                }
            }
        };
    }

    fn finish(&mut self, out: &mut Output) {
        match std::mem::replace(&mut self.place, text()) {
            Place::Text(mut before) => before.finish(out),
            Place::Name(frame, held) => {
                out.text(&frame);
                // The bracket of a list that goes on stands for one that has come.
                out.text(if frame.is_empty() { &held[1..] } else { &held });
            }
            Place::Key { .. } | Place::Value(_) | Place::Comma | Place::AfterCall | Place::Closing(_) => {}
        }
    }
}

/// The name in what stands before arguments.
fn name_of(held: &str) -> &str {
    held.trim_start_matches(is_blank).trim_start_matches('[').trim_matches(is_blank)
}

/// Whether this may become a list's name.
fn may_name(held: &str) -> bool {
    let rest = held.trim_start_matches(is_blank);
    let is_name =
        |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    held.len() <= MAX_NAME
        && (rest.is_empty()
            || rest.strip_prefix('[').is_some_and(|name| is_name(name.trim_matches(is_blank))))
}

/// Values are JSON, which is read as well; truth values and `None` of their own are as in Python.
fn grammar(rules: &CallRules<'_>) -> Result<String, GrammarError> {
    let mut lark = String::new();
    let mut all = Vec::new();
    let mut n_rules = 0;
    for tool in &rules.tools {
        let root = &tool.schema;
        let schema = resolve(root, root);
        let is_strict = root["x-guidance"]["lenient"] == Value::Bool(false);
        for keyword in ["allOf", "anyOf", "oneOf", "minProperties", "maxProperties", "patternProperties"] {
            if is_strict && schema.get(keyword).is_some() {
                let reason = format!("the keyword {keyword:?} cannot be enforced in this model's calls");
                return Err(GrammarError::Schema { path: format!("{}/{keyword}", tool.place), reason });
            }
        }
        let none = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&none);
        let required = |name: &str| {
            schema["required"].as_array().is_some_and(|names| names.iter().any(|n| n.as_str() == Some(name)))
        };
        // What may follow, at the beginning and after an argument.
        let (mut first, mut rest) = ("\"\"".to_owned(), "\"\"".to_owned());
        for (name, schema) in properties.iter().rev() {
            if name.is_empty() || !name.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c)) {
                let reason = "such a name cannot stand in this model's calls".to_owned();
                return Err(GrammarError::Schema {
                    path: format!("{}/properties/{name}", tool.place),
                    reason,
                });
            }
            let argument = format!("{} {}", literal(&format!("{name}=")), value(schema, root));
            n_rules += 1;
            let mut define = |kind: &str, before: &str, instead: &str| {
                let instead = if required(name) { String::new() } else { format!(" | {instead}") };
                let _ = writeln!(lark, "{kind}_{n_rules}: {before} {argument} {rest}{instead}");
                format!("{kind}_{n_rules}")
            };
            (first, rest) = (define("first", "", &first), define("rest", "\", \"", &rest));
        }
        all.push(first);
    }
    let arguments = ArgumentRules { of_tools: &all, others: &lark };
    Ok(rules.calls(&Frame {
        before_all: Some(OPEN[0]),
        before_first: "[",
        before_arguments: "(",
        after_arguments: ")",
        between: ", ",
        after_last: "]",
        after_all: Some(CLOSE),
        arguments: Some(arguments),
        ..Frame::default()
    }))
}

/// A value of an argument, in Lark.
fn value(schema: &Value, root: &Value) -> String {
    let mut schema = match resolve(schema, root) {
        Value::Object(keywords) => Value::Object(keywords.clone()),
        _ => Value::Object(Map::new()),
    };
    if schema.get("enum").is_none() && schema.get("const").is_none() {
        match schema["type"].as_str() {
            Some("boolean") => return "(\"True\" | \"False\")".to_owned(),
            Some("null") => return "\"None\"".to_owned(),
            _ => {}
        }
    }
    for name in ["$defs", "definitions", "x-guidance"] {
        if let Some(value) = root.get(name) {
            schema[name] = value.clone();
        }
    }
    format!("%json {schema}")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, template};
    use super::*;
    use serde_json::json;

    #[test]
    fn transcripts() {
        let one = "<|tool_call_start|>[get_weather(city=\"Paris\")]<|tool_call_end|>";
        let weather = ("get_weather", json!({"city": "Paris"}));
        let add = ("add", json!({"a": 1, "b": -2.5}));
        check(&SYNTAX, one, "", std::slice::from_ref(&weather));
        check(&SYNTAX, &format!("I look. {one} So."), "I look. So.", std::slice::from_ref(&weather));
        check(&SYNTAX, &one.replace('"', "'"), "", std::slice::from_ref(&weather));
        let two = "<|tool_call_start|>[ get_weather( city = 'Paris' ), add(a=1, b=-2.5,) ]<|tool_call_end|>";
        check(&SYNTAX, two, "", &[weather.clone(), add]);
        check(&SYNTAX, "<|tool_call_start|>[add()]<|tool_call_end|>", "", &[("add", json!({}))]);
        check(&SYNTAX, &one.replace(CLOSE, ""), "", &[weather]);
        check(
            &SYNTAX,
            "<|tool_call_start|>[add(t=True, n=None, l=[1, 'it\\'s', {'k': (2,)}], s=\"a=b, (c)\\n\", d={})]<|tool_call_end|>",
            "",
            &[(
                "add",
                json!({"t": true, "n": null, "l": [1, "it's", {"k": [2]}], "s": "a=b, (c)\n", "d": {}}),
            )],
        );
        for text in [
            "<|tool_call_start|>[nobody(a=1)]<|tool_call_end|>",
            "<|tool_call_start|>add(a=1)",
            "<|tool_call_start|>[add",
            "<|tool_call_start|> no",
            " <|tool_call_start|>",
            "a <|tool_call",
            "",
        ] {
            check(&SYNTAX, text, text, &[]);
        }
    }

    #[test]
    fn templates_that_ask_for_it_are_recognised() {
        for name in ["LFM2-8B-A1B", "LFM2.5-Instruct"] {
            let Some(template) = template(name) else { return };
            assert_eq!(Syntax::of(Some(&template)).name, "lfm2", "{name}");
        }
    }
}
