//! Checks a JSON schema before it is compiled, and says where it is wrong.
//!
//! llguidance compiles the schema and knows what each keyword means; its errors do not say where. So the keywords are walked here
//! first, and where compiling fails, the smallest part that fails alike is looked for.

use super::limits::check_schema;
use super::{GrammarError, MAX_SOURCE_BYTES, check_size, leap_seconds, library_limits, message};
use llguidance::{GrammarBuilder, JsonCompileOptions, panic_utils};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// Schemas within schemas at most. Compiling recurses, about 3 kB of stack for each.
pub(super) const MAX_DEPTH: usize = 64;
/// Compiled parts at most while the place of an error is looked for, and how long that may take.
const MAX_TRIES: usize = 300;
const MAX_SEARCH: Duration = Duration::from_millis(500);
/// Blanks between JSON's tokens: one, or a line break and an indentation. Without a bound some models never stop writing them.
const WHITESPACE: &str = r"\x20|\r?\n[\x20\x09]{0,64}";

/// Integers below are exact in the 64-bit floating-point numbers that the compiler computes with.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// What stands under a keyword.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Holds {
    Schema,
    SchemaOrList,
    List,
    Map,
    /// Something that compiling checks.
    Value,
    /// Nothing that concerns the text.
    Note,
    /// What cannot be enforced.
    Unsupported,
}

/// All keywords of the drafts 4 to 2020-12, and notes that OpenAPI's tools add.
const KEYWORDS: &[(&str, Holds)] = &[
    ("$anchor", Holds::Note),
    ("$comment", Holds::Note),
    ("$defs", Holds::Map),
    ("$dynamicAnchor", Holds::Unsupported),
    ("$dynamicRef", Holds::Unsupported),
    ("$id", Holds::Note),
    ("$recursiveAnchor", Holds::Unsupported),
    ("$recursiveRef", Holds::Unsupported),
    ("$ref", Holds::Value),
    ("$schema", Holds::Note),
    ("$vocabulary", Holds::Note),
    ("additionalItems", Holds::Schema),
    ("additionalProperties", Holds::Schema),
    ("allOf", Holds::List),
    ("anyOf", Holds::List),
    ("const", Holds::Value),
    ("contains", Holds::Unsupported),
    ("contentEncoding", Holds::Note),
    ("contentMediaType", Holds::Note),
    ("contentSchema", Holds::Note),
    ("default", Holds::Note),
    ("definitions", Holds::Map),
    ("dependencies", Holds::Unsupported),
    ("dependentRequired", Holds::Unsupported),
    ("dependentSchemas", Holds::Unsupported),
    ("deprecated", Holds::Note),
    ("description", Holds::Note),
    ("discriminator", Holds::Note),
    ("else", Holds::Unsupported),
    ("enum", Holds::Value),
    ("example", Holds::Note),
    ("examples", Holds::Note),
    ("exclusiveMaximum", Holds::Value),
    ("exclusiveMinimum", Holds::Value),
    ("externalDocs", Holds::Note),
    ("format", Holds::Value),
    ("id", Holds::Note),
    ("if", Holds::Unsupported),
    ("items", Holds::SchemaOrList),
    ("maxContains", Holds::Unsupported),
    ("maxItems", Holds::Value),
    ("maxLength", Holds::Value),
    ("maxProperties", Holds::Value),
    ("maximum", Holds::Value),
    ("minContains", Holds::Unsupported),
    ("minItems", Holds::Value),
    ("minLength", Holds::Value),
    ("minProperties", Holds::Value),
    ("minimum", Holds::Value),
    ("multipleOf", Holds::Value),
    ("not", Holds::Unsupported),
    ("oneOf", Holds::List),
    ("pattern", Holds::Value),
    ("patternProperties", Holds::Map),
    ("prefixItems", Holds::List),
    ("properties", Holds::Map),
    ("propertyNames", Holds::Unsupported),
    ("readOnly", Holds::Note),
    ("required", Holds::Value),
    ("then", Holds::Unsupported),
    ("title", Holds::Note),
    ("type", Holds::Value),
    ("unevaluatedItems", Holds::Unsupported),
    ("unevaluatedProperties", Holds::Unsupported),
    ("uniqueItems", Holds::Unsupported),
    ("writeOnly", Holds::Note),
];

fn holds(keyword: &str) -> Option<Holds> {
    KEYWORDS.binary_search_by_key(&keyword, |(name, _)| name).ok().map(|i| KEYWORDS[i].1)
}

/// The schema as llguidance takes it, known to compile.
///
/// `strict`: see [`crate::Format::JsonSchema`].
///
/// Errors: [`GrammarError::Schema`] with the place, [`GrammarError::TooLarge`].
pub fn prepare(schema: &Value, strict: bool) -> Result<Value, GrammarError> {
    check_size("the JSON schema, in bytes,", text_size(schema))?;
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        other => other.clone(),
    };
    check(&mut schema, strict, "#", 0)?;
    check_schema(&schema)?;
    if let Value::Object(root) = &mut schema {
        // Options of llguidance travel inside the schema.
        let options = json!({"whitespace_pattern": WHITESPACE, "lenient": !strict});
        root.insert("x-guidance".to_owned(), options);
    }
    match compile_error(&schema) {
        None => Ok(schema),
        Some(reason) => {
            let path = locate(&schema, &reason);
            Err(GrammarError::Schema { path, reason: in_our_words(reason) })
        }
    }
}

fn in_our_words(reason: String) -> String {
    match reason.starts_with("oneOf constraints are not supported") {
        true => {
            "the alternatives of oneOf do not exclude each other by type or constant; use anyOf".to_owned()
        }
        false => reason,
    }
}

/// Walks the keywords of a schema and of all schemas in it, and takes away what says nothing.
fn check(schema: &mut Value, strict: bool, path: &str, depth: usize) -> Result<(), GrammarError> {
    let fail = |path: &str, reason: String| Err(GrammarError::Schema { path: path.to_owned(), reason });
    if depth > MAX_DEPTH {
        return fail(path, format!("schemas are nested more than {MAX_DEPTH} deep"));
    }
    let keywords = match schema {
        Value::Object(keywords) => keywords,
        Value::Bool(_) if depth > 0 => return Ok(()),
        Value::Bool(_) => return fail(path, "no JSON satisfies the schema false".to_owned()),
        _ => return fail(path, "a schema is an object or a truth value".to_owned()),
    };
    let bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
    if !strict {
        keywords.retain(|keyword, value| !bounds.contains(&keyword.as_str()) || is_exact(value));
    }
    // An older draft would make unknown, and so ignored, what is written; and what is unique by default need not be said.
    keywords.retain(|keyword, value| match keyword.as_str() {
        "$schema" | "x-guidance" => strict && keyword == "x-guidance",
        "uniqueItems" => *value != Value::Bool(false),
        _ => true,
    });
    leap_seconds::restrict(keywords);
    for (keyword, value) in keywords {
        let path = format!("{path}/{}", escaped(keyword));
        match (holds(keyword), value) {
            (Some(Holds::Unsupported), _) if strict => {
                return fail(&path, format!("the keyword {keyword:?} is not supported"));
            }
            (None, _) if strict => return fail(&path, format!("the keyword {keyword:?} is unknown")),
            (Some(Holds::Value), value)
                if (bounds.contains(&keyword.as_str()) || matches!(keyword.as_str(), "const" | "enum"))
                    && !is_exact(value) =>
            {
                return fail(&path, "numbers beyond ±2^53 cannot be enforced exactly".to_owned());
            }
            (Some(Holds::Schema), value) => check(value, strict, &path, depth + 1)?,
            (Some(Holds::List | Holds::SchemaOrList), Value::Array(schemas)) => {
                for (i, schema) in schemas.iter_mut().enumerate() {
                    check(schema, strict, &format!("{path}/{i}"), depth + 1)?;
                }
            }
            (Some(Holds::SchemaOrList), value) => check(value, strict, &path, depth + 1)?,
            (Some(Holds::List), _) => return fail(&path, "it must be a list of schemas".to_owned()),
            (Some(Holds::Map), Value::Object(schemas)) => {
                for (name, schema) in schemas {
                    check(schema, strict, &format!("{path}/{}", escaped(name)), depth + 1)?;
                }
            }
            (Some(Holds::Map), _) => return fail(&path, "it must be an object of schemas".to_owned()),
            (Some(Holds::Value | Holds::Note | Holds::Unsupported) | None, _) => {}
        }
    }
    Ok(())
}

/// Whether the compiler can take all numbers in a value for what they are.
fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64().is_some_and(|number| number.abs() < MAX_EXACT),
        Value::Array(items) => items.iter().all(is_exact),
        Value::Object(entries) => entries.values().all(is_exact),
        _ => true,
    }
}

/// A name as a part of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Bytes of the schema's texts and numbers, without building its JSON.
fn text_size(schema: &Value) -> usize {
    match schema {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(text_size).sum::<usize>() + 2,
        Value::Object(entries) => {
            entries.iter().map(|(name, value)| name.len() + 4 + text_size(value)).sum::<usize>() + 2
        }
        _ => 4,
    }
}

/// Why a schema does not compile, without building the parser.
fn compile_error(schema: &Value) -> Option<String> {
    let compiled = panic_utils::catch_unwind(|| {
        let builder = GrammarBuilder::new(None, library_limits());
        JsonCompileOptions::default().json_to_llg_with_overrides(builder, schema.clone()).map(|_| ())
    });
    compiled.err().map(|error| message(&error))
}

/// JSON pointer to the smallest part of a schema that fails with the same error on its own.
fn locate(root: &Value, reason: &str) -> String {
    let (mut path, mut place) = ("#".to_owned(), root);
    // Each try compiles a part; parts of large schemas take too long.
    let mut tries = if text_size(root) > MAX_SOURCE_BYTES / 8 { 0 } else { MAX_TRIES };
    let end = Instant::now() + MAX_SEARCH;
    loop {
        let candidates = parts(place);
        let n_tried = candidates.len().min(tries);
        tries -= n_tried;
        let Some((step, part)) = candidates
            .into_iter()
            .take(n_tried)
            .find(|(_, part)| Instant::now() < end && fails_alike(root, part, reason))
        else {
            return path;
        };
        path += &step;
        place = part;
    }
}

/// Whether a part, with the definitions that it may refer to, fails with the same error.
fn fails_alike(root: &Value, part: &Value, reason: &str) -> bool {
    let Value::Object(part) = part else { return false };
    let mut alone: Map<String, Value> = part.clone();
    for name in ["$defs", "definitions", "x-guidance"] {
        if let (Some(value), false) = (root.get(name), alone.contains_key(name)) {
            alone.insert(name.to_owned(), value.clone());
        }
    }
    compile_error(&Value::Object(alone)).is_some_and(|other| other == reason)
}

/// The schemas directly within a schema, with their paths from it.
fn parts(schema: &Value) -> Vec<(String, &Value)> {
    let mut parts = Vec::new();
    for (keyword, value) in schema.as_object().into_iter().flatten() {
        let step = format!("/{}", escaped(keyword));
        match (holds(keyword), value) {
            (Some(Holds::List | Holds::SchemaOrList), Value::Array(items)) => {
                parts.extend(items.iter().enumerate().map(|(i, item)| (format!("{step}/{i}"), item)));
            }
            (Some(Holds::Map), Value::Object(entries)) => {
                parts
                    .extend(entries.iter().map(|(name, entry)| (format!("{step}/{}", escaped(name)), entry)));
            }
            (Some(Holds::Schema | Holds::SchemaOrList), value) => parts.push((step, value)),
            _ => {}
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(schema: Value, strict: bool) -> (String, String) {
        match prepare(&schema, strict) {
            Err(GrammarError::Schema { path, reason }) => (path, reason),
            other => panic!("{schema}: {other:?}"),
        }
    }

    #[test]
    fn keywords_are_sorted_for_the_search() {
        assert!(KEYWORDS.is_sorted_by_key(|(name, _)| *name));
    }

    #[test]
    fn errors_say_where() {
        let of = |schema: Value| json!({"type": "object", "properties": {"a/b": {"type": "array", "items": schema}}});
        let at = "#/properties/a~1b/items";
        let cases = [
            (json!({"typ": "string"}), "/typ", "unknown"),
            (json!({"not": {"type": "string"}}), "/not", "not supported"),
            (json!({"uniqueItems": true}), "/uniqueItems", "not supported"),
            (json!({"anyOf": {"type": "string"}}), "/anyOf", "list"),
            (json!({"properties": []}), "/properties", "object"),
            (json!("string"), "", "object or a truth value"),
            (json!({"type": "strnig"}), "", "strnig"),
            (json!({"type": 7}), "", "type"),
            (json!({"type": "string", "pattern": "("}), "", "("),
            (json!({"type": "string", "format": "planet"}), "", "planet"),
            (json!({"type": "integer", "minimum": "a"}), "", "minimum"),
            (json!({"type": "integer", "maximum": i64::MAX}), "/maximum", "2^53"),
            (json!({"enum": [1, [9_007_199_254_740_993u64]]}), "/enum", "2^53"),
            (json!({"$ref": "#/$defs/none"}), "", "none"),
            (json!({"$ref": "https://example.com/a"}), "", "example.com"),
            (json!({"anyOf": [{"type": "string"}, {"type": "string", "pattern": "[a"}]}), "/anyOf/1", "[a"),
            (json!({"oneOf": [{"type": "object"}, {"type": "object"}]}), "", "oneOf"),
        ];
        for (schema, path, reason) in cases {
            let text = schema.to_string();
            let (found, why) = error(of(schema), true);
            assert_eq!(found, format!("{at}{path}"), "{text}: {why}");
            assert!(why.contains(reason), "{text}: {why}");
        }
    }

    #[test]
    fn what_nothing_satisfies_is_an_error() {
        for schema in [
            json!({"type": "integer", "minimum": 3, "maximum": 2}),
            json!({"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 2}),
            json!({"enum": []}),
            json!({"type": "object", "properties": {"a": false}, "required": ["a"]}),
            json!(false),
        ] {
            assert_eq!(error(schema, true).0, "#");
        }
    }

    #[test]
    fn a_schema_that_is_not_strict_may_say_what_cannot_be_enforced() {
        prepare(
            &json!({"type": "array", "uniqueItems": true, "items": {"type": "string", "format": "planet"}}),
            false,
        )
        .unwrap();
        prepare(&json!({"oneOf": [{"type": "object"}, {"type": "object"}], "planet": 1}), false).unwrap();
        prepare(&json!({"type": "integer", "minimum": i64::MIN}), false).unwrap();
        assert_eq!(error(json!({"properties": {"a": {"type": "strnig"}}}), false).0, "#/properties/a");
        assert_eq!(error(json!(false), false).0, "#");
    }

    #[test]
    fn options_cannot_be_smuggled_in() {
        let with_options = json!({"type": "string", "x-guidance": {"lenient": true}});
        assert_eq!(error(with_options.clone(), true).0, "#/x-guidance");
        let prepared = prepare(&with_options, false).unwrap();
        assert_eq!(prepared["x-guidance"]["whitespace_pattern"], WHITESPACE);
        // An older draft does not know const, and would let anything pass.
        let old = json!({"$schema": "http://json-schema.org/draft-04/schema#", "const": 5});
        assert!(prepare(&old, true).unwrap().get("$schema").is_none());
    }
}
