//! `config.json` and `generation_config.json` as [`Metadata`].

use super::{Array, Metadata, Strings, Value};
use crate::{Error, Result};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::path::Path;

/// The largest configuration file that is read, in bytes; real ones have kilobytes.
pub(crate) const MAX_BYTES: u64 = 8 << 20;

/// The longest flattened key, in bytes. Without a limit, many leaves under one long name would multiply its length.
const MAX_KEY_BYTES: usize = 512;

impl Metadata {
    /// Flattens the text of `config.json` and, where there is one, of `generation_config.json`.
    ///
    /// `null` counts as absent. Arrays of one type become typed arrays; others are only in [`Metadata::config_json`].
    ///
    /// Errors: `Malformed` for text that is not a JSON object.
    pub fn from_config_json(
        path: &Path,
        config: &[u8],
        generation_config: Option<(&Path, &[u8])>,
    ) -> Result<Self> {
        let mut metadata = Metadata::new(path);
        let config = parse(path, config)?;
        metadata.flatten("", &config)?;
        metadata.config = Some(config);
        if let Some((path, text)) = generation_config {
            metadata.flatten("generation_config", &parse(path, text)?)?;
        }
        Ok(metadata)
    }

    fn flatten(&mut self, key: &str, json: &Json) -> Result<()> {
        let value = match json {
            special @ Json::Object(_) if float(special).is_some() => float(special).map(Value::F64),
            Json::Object(fields) => {
                for (name, value) in fields {
                    let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                    if key.len() > MAX_KEY_BYTES {
                        let reason = format!("a key is longer than {MAX_KEY_BYTES} bytes");
                        return Err(Error::malformed(self.path(), reason));
                    }
                    self.flatten(&key, value)?;
                }
                return Ok(());
            }
            Json::Array(elements) => array(elements).map(Value::Array),
            scalar => value(scalar),
        };
        match value {
            Some(value) => self.insert(key, value),
            None => Ok(()),
        }
    }
}

fn parse(path: &Path, text: &[u8]) -> Result<Json> {
    match serde_json::from_slice(&with_special_floats(text)) {
        Ok(json @ Json::Object(_)) => Ok(json),
        Ok(_) => Err(Error::malformed(path, "it is not a JSON object")),
        Err(e) => Err(Error::malformed(path, format!("not valid JSON: {e}"))),
    }
}

/// The name under which the reference library states a number that JSON lacks.
const SPECIAL_FLOAT: &str = "__float__";

/// Python writes `Infinity` and `NaN`, which JSON lacks, as they are: the text with each of them as the reference library has come to
/// write it, `{"__float__": "Infinity"}`.
fn with_special_floats(text: &[u8]) -> Cow<'_, [u8]> {
    const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    let word_at = |i: usize| WORDS.into_iter().find(|word| text[i..].starts_with(word.as_bytes()));
    let (mut out, mut i, mut copied, mut in_string) = (Vec::new(), 0, 0, false);
    while i < text.len() {
        match text[i] {
            b'\\' if in_string => i += 1,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            _ => {
                if let Some(word) = word_at(i) {
                    out.extend_from_slice(&text[copied..i]);
                    out.extend_from_slice(format!("{{\"{SPECIAL_FLOAT}\": \"{word}\"}}").as_bytes());
                    i += word.len();
                    copied = i;
                    continue;
                }
            }
        }
        i += 1;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.extend_from_slice(&text[copied..]);
    Cow::Owned(out)
}

/// A number, one that JSON lacks included.
fn float(json: &Json) -> Option<f64> {
    match json {
        Json::Object(fields) if fields.len() == 1 => match fields.get(SPECIAL_FLOAT)?.as_str()? {
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            "NaN" => Some(f64::NAN),
            _ => None,
        },
        other => other.as_f64(),
    }
}

fn value(json: &Json) -> Option<Value> {
    match json {
        Json::Bool(v) => Some(Value::Bool(*v)),
        Json::String(v) => Some(Value::String(v.clone())),
        Json::Number(v) => v
            .as_i64()
            .map(Value::I64)
            .or_else(|| v.as_u64().map(Value::U64))
            .or_else(|| v.as_f64().map(Value::F64)),
        Json::Null | Json::Array(_) | Json::Object(_) => None,
    }
}

/// The array with the narrowest type that holds all its elements, if there is one.
fn array(elements: &[Json]) -> Option<Array> {
    fn all<T>(elements: &[Json], get: impl Fn(&Json) -> Option<T>) -> Option<Vec<T>> {
        elements.iter().map(get).collect()
    }
    None.or_else(|| all(elements, Json::as_i64).map(Array::I64))
        .or_else(|| all(elements, Json::as_u64).map(Array::U64))
        .or_else(|| all(elements, float).map(Array::F64))
        .or_else(|| all(elements, Json::as_bool).map(Array::Bool))
        .or_else(|| elements.iter().map(Json::as_str).collect::<Option<Strings>>().map(Array::Strings))
}
