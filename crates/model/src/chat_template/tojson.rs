//! Python's `json.dumps` and `str` for template values.

use super::budget::{self, error};
use crate::tokenizer::char_class::CharSet;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, Value};
use std::fmt::Write;
use std::sync::LazyLock;

/// How deep a value may nest.
const MAX_DEPTH: usize = 200;
/// Characters of one level's indentation.
const MAX_INDENT: usize = 64;

/// The filter `tojson` as transformers defines it: no escaping for HTML, and non-ASCII as it is.
pub(super) fn filter(value: &Value, options: Kwargs) -> Result<Value, Error> {
    budget::read(value)?;
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(indent) if indent.is_none() => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) if text.len() > MAX_INDENT => return Err(error("tojson: the indent is too wide")),
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(indent)?.min(MAX_INDENT)),
        }),
    };
    let (mut comma, mut colon) = (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    if let Some(separators) = options.get::<Option<Value>>("separators")?.filter(|s| !s.is_none()) {
        (comma, colon) =
            (separators.get_item_by_index(0)?.to_string(), separators.get_item_by_index(1)?.to_string());
    }
    let dump = Dump {
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        comma,
        colon,
    };
    options.assert_all_used()?;
    let mut out = String::new();
    dump.value(value, 0, &mut out)?;
    budget::spend(out.len())?;
    Ok(Value::from(out))
}

struct Dump {
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    comma: String,
    colon: String,
}

impl Dump {
    fn value(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(error("tojson of a value that is nested too deep"));
        }
        if out.len() > budget::left() {
            // More than what is left: this says so.
            budget::spend(out.len())?;
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value, "NaN", "Infinity")),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    entries.push((json_key(&key)?, value.get_item(&key)?));
                }
                if self.sort {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.list('{', '}', entries.len(), depth, out, |i, out| {
                    let (key, value) = &entries[i];
                    self.string(key, out);
                    out.push_str(&self.colon);
                    self.value(value, depth + 1, out)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list('[', ']', items.len(), depth, out, |i, out| self.value(&items[i], depth + 1, out))?;
            }
            ValueKind::Undefined => return Err(error("Object of type Undefined is not JSON serializable")),
            other => return Err(error(format!("a value of type {other} is not JSON serializable"))),
        }
        Ok(())
    }

    fn list(
        &self,
        open: char,
        close: char,
        n: usize,
        depth: usize,
        out: &mut String,
        mut item: impl FnMut(usize, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        out.push(open);
        for i in 0..n {
            if i > 0 {
                out.push_str(&self.comma);
            }
            line(depth + 1, out);
            item(i, out)?;
        }
        if n > 0 {
            line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if u32::from(c) < 0x20 || (self.ascii && u32::from(c) >= 0x7f) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// A key of a JSON object: Python writes numbers, truth values and None as strings.
fn json_key(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
        ValueKind::Number => number(key, "NaN", "Infinity"),
        other => return Err(error(format!("keys must be strings and not {other}"))),
    })
}

/// A number as Python prints it.
fn number(value: &Value, nan: &str, infinity: &str) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(value) = f64::try_from(value.clone()) else { return value.to_string() };
    if value.is_nan() {
        return nan.to_owned();
    }
    if value.is_infinite() {
        return if value < 0.0 { format!("-{infinity}") } else { infinity.to_owned() };
    }
    // Both languages print the shortest digits that read back as the number; Python turns to exponents sooner.
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// A value as Python's `str` prints it, nested strings in quotes.
pub(super) fn python_str(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number => number(value, "nan", "inf"),
        ValueKind::Seq | ValueKind::Map => {
            let mut out = String::new();
            repr(value, 0, &mut out);
            out
        }
        _ => value.to_string(),
    }
}

fn repr(value: &Value, depth: usize, out: &mut String) {
    if depth > MAX_DEPTH {
        out.push_str("...");
        return;
    }
    match value.kind() {
        ValueKind::Number => out.push_str(&number(value, "nan", "inf")),
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, depth + 1, out);
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), depth + 1, out);
            }
            out.push('}');
        }
        ValueKind::Seq => {
            let tuple = value.is_tuple();
            let n = value.len().unwrap_or(0);
            out.push(if tuple { '(' } else { '[' });
            for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&item, depth + 1, out);
            }
            out.push_str(match (tuple, n) {
                (true, 1) => ",)",
                (true, _) => ")",
                _ => "]",
            });
        }
        ValueKind::String => repr_text(value.as_str().unwrap_or_default(), out),
        _ => {
            let _ = write!(out, "{value:?}");
        }
    }
}

/// Characters that Python does not print as they are, besides the space: those of the categories C and Z.
static UNPRINTABLE: LazyLock<CharSet> = LazyLock::new(|| CharSet::new(r"[[\p{C}\p{Z}]--[\x20]]"));

fn repr_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        let code = u32::from(c);
        let _ = match c {
            '\\' => write!(out, "\\\\"),
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            c if c == quote => write!(out, "\\{c}"),
            c if !UNPRINTABLE.contains(c) => write!(out, "{c}"),
            _ if code < 0x100 => write!(out, "\\x{code:02x}"),
            _ if code < 0x1_0000 => write!(out, "\\u{code:04x}"),
            _ => write!(out, "\\U{code:08x}"),
        };
    }
    out.push(quote);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump(value: serde_json::Value, options: &[(&str, Value)]) -> String {
        budget::start(1 << 20);
        let options: Kwargs = options.iter().cloned().collect();
        filter(&Value::from(minijinja::value::Serde(value)), options).unwrap().to_string()
    }

    #[test]
    fn json_is_that_of_python() {
        let value =
            serde_json::json!({"b": [1, 2.5, 1e16, true, null], "a": "é\u{1}\"<&>", "e": {}, "l": []});
        assert_eq!(
            dump(value.clone(), &[]),
            r#"{"b": [1, 2.5, 1e+16, true, null], "a": "é\u0001\"<&>", "e": {}, "l": []}"#
        );
        assert_eq!(
            dump(
                value,
                &[
                    ("indent", Value::from(2)),
                    ("ensure_ascii", Value::from(true)),
                    ("sort_keys", Value::from(true))
                ]
            ),
            "{\n  \"a\": \"\\u00e9\\u0001\\\"<&>\",\n  \"b\": [\n    1,\n    2.5,\n    1e+16,\n    true,\n    null\n  ],\n  \"e\": {},\n  \"l\": []\n}"
        );
        let compact = [("separators", Value::from(vec![",", ":"]))];
        assert_eq!(dump(serde_json::json!({"a": [1, 2]}), &compact), r#"{"a":[1,2]}"#);
        assert_eq!(
            dump(serde_json::json!("😀"), &[("ensure_ascii", Value::from(true))]),
            r#""\ud83d\ude00""#
        );
    }

    #[test]
    fn an_unknown_option_is_an_error() {
        let options: Kwargs = [("colour", Value::from(1))].into_iter().collect();
        assert!(filter(&Value::from(1), options).is_err());
    }
}
