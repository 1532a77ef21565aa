//! Values that calls write without quotation marks: what a tool's schema says that they are.

use super::python_literal;
use serde_json::{Map, Value};

/// References that are followed one after the other, at most.
const MAX_REFERENCES: usize = 16;

/// The types of JSON that a schema allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    pub(super) const STRING: Self = Self(1);
    pub(super) const NUMBER: Self = Self(2);
    pub(super) const BOOLEAN: Self = Self(4);
    pub(super) const NULL: Self = Self(8);
    pub(super) const OBJECT: Self = Self(16);
    pub(super) const ARRAY: Self = Self(32);
    const NONE: Self = Self(0);
    const ALL: Self = Self(63);

    pub(super) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "number" | "integer" => Self::NUMBER,
            "boolean" => Self::BOOLEAN,
            "null" => Self::NULL,
            "object" => Self::OBJECT,
            "array" => Self::ARRAY,
            _ => Self::NONE,
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::String(_) => Self::STRING,
            Value::Number(_) => Self::NUMBER,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Null => Self::NULL,
            Value::Object(_) => Self::OBJECT,
            Value::Array(_) => Self::ARRAY,
        }
    }

    fn any(all: impl Iterator<Item = Self>) -> Self {
        Self(all.fold(0, |all, one| all | one.0))
    }

    /// What a schema allows. `root`: the document that its references are in.
    pub(super) fn of(schema: &Value, root: &Value) -> Self {
        Self::within(schema, root, 0)
    }

    fn within(schema: &Value, root: &Value, depth: usize) -> Self {
        let Some(keywords) = resolve(schema, root).as_object().filter(|_| depth < MAX_REFERENCES) else {
            return Self::ALL;
        };
        if let Some(value) = keywords.get("const") {
            return Self::of_value(value);
        }
        if let Some(values) = keywords.get("enum").and_then(Value::as_array) {
            return Self::any(values.iter().map(Self::of_value));
        }
        let list = |keyword: &str| keywords.get(keyword).and_then(Value::as_array);
        let mut types = match keywords.get("type") {
            Some(Value::String(name)) => Self::named(name),
            Some(Value::Array(names)) => Self::any(names.iter().filter_map(Value::as_str).map(Self::named)),
            _ if keywords.contains_key("properties") => Self::OBJECT,
            _ if keywords.contains_key("items") => Self::ARRAY,
            _ => Self::ALL,
        };
        for alternatives in ["anyOf", "oneOf"].into_iter().filter_map(list) {
            types.0 &= Self::any(alternatives.iter().map(|one| Self::within(one, root, depth + 1))).0;
        }
        for part in list("allOf").into_iter().flatten() {
            types.0 &= Self::within(part, root, depth + 1).0;
        }
        types
    }
}

/// A schema, or what it refers to within its document.
pub(super) fn resolve<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let mut found = schema;
    for _ in 0..MAX_REFERENCES {
        let Some(Value::String(reference)) = found.get("$ref") else { break };
        let Some(target) = reference.strip_prefix('#').and_then(|path| root.pointer(path)) else { break };
        found = target;
    }
    found
}

/// The schema of an argument; `true`, which allows anything, where the tool's has none.
pub(super) fn of_argument<'a>(parameters: &'a Value, key: &str) -> &'a Value {
    let object = resolve(parameters, parameters);
    let property = object["properties"].get(key);
    property.or_else(|| object.get("additionalProperties")).unwrap_or(&Value::Bool(true))
}

/// A value as JSON, from the text that a model wrote for it without saying what it is.
///
/// A text that can be read as JSON of a type that the schema allows is that; a string is only what is nothing else, or stands in the
/// schema as it is.
pub(super) fn to_json(text: &str, schema: &Value, root: &Value) -> String {
    let types = Types::of(schema, root);
    let plain = text.trim();
    if types == Types::STRING || types.contains(Types::STRING) && is_constant(text, schema, root, 0) {
        return Value::from(text).to_string();
    }
    match serde_json::from_str::<Value>(plain) {
        Ok(value) if types.contains(Types::of_value(&value)) => return plain.to_owned(),
        // A type that the schema does not know is still no string.
        Ok(_) if !types.contains(Types::STRING) => return plain.to_owned(),
        // A number may be larger than what we compute with.
        Err(error) if error.to_string().starts_with("number out of range") => return plain.to_owned(),
        _ => {}
    }
    for (word, kind) in [("true", Types::BOOLEAN), ("false", Types::BOOLEAN), ("null", Types::NULL)] {
        let is_word = plain.eq_ignore_ascii_case(word) || word == "null" && plain == "None";
        if is_word && types.contains(kind) {
            return word.to_owned();
        }
    }
    if let Some(json) = python_literal::to_json(plain).filter(|json| json.starts_with(['{', '['])) {
        let kind = if json.starts_with('{') { Types::OBJECT } else { Types::ARRAY };
        if types.contains(kind) {
            return json;
        }
    }
    Value::from(text).to_string()
}

/// Whether the schema names this string.
fn is_constant(text: &str, schema: &Value, root: &Value, depth: usize) -> bool {
    let is_text = |value: &Value| value.as_str() == Some(text);
    let no = Map::new();
    let keywords = resolve(schema, root).as_object().unwrap_or(&no);
    let list = |keyword: &str| keywords.get(keyword).and_then(Value::as_array).into_iter().flatten();
    depth < MAX_REFERENCES
        && (keywords.get("const").is_some_and(is_text)
            || list("enum").any(is_text)
            || list("anyOf").chain(list("oneOf")).any(|one| is_constant(text, one, root, depth + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_schema_decides_what_a_text_is() {
        let root = json!({"$defs": {"n": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}});
        let cases = [
            (json!({"type": "string"}), "123", json!("123")),
            (json!({"type": "string"}), " true\n", json!(" true\n")),
            (json!({"type": "integer"}), "123", json!(123)),
            (json!({"type": "integer"}), "many", json!("many")),
            (json!({"type": "integer"}), " 1.5 ", json!(1.5)),
            (json!({"type": ["string", "null"]}), "null", json!(null)),
            (json!({"type": ["null", "string"]}), "hello world", json!("hello world")),
            (json!({"type": ["string", "object"]}), "{\"a\": 1}", json!({"a": 1})),
            (json!({"type": ["string", "object"]}), "{no json", json!("{no json")),
            (json!({"anyOf": [{"type": "string"}, {"type": "number"}]}), "42", json!(42)),
            (json!({"anyOf": [{"type": "string"}, {"type": "number"}]}), "2 dollars", json!("2 dollars")),
            (json!({"anyOf": [{"enum": ["1"]}, {"type": "number"}]}), "1", json!("1")),
            (json!({"enum": ["celsius", "fahrenheit"]}), "celsius", json!("celsius")),
            (json!({"type": "boolean"}), "True", json!(true)),
            (json!({"type": ["integer", "null"]}), "None", json!(null)),
            (json!({"type": "array"}), "[{'a': True, \"b\": None}]", json!([{"a": true, "b": null}])),
            (json!({"$ref": "#/$defs/n"}), "7", json!(7)),
            (json!({"$ref": "#/$defs/loop"}), "7", json!(7)),
            (json!(true), "[1, 2]", json!([1, 2])),
            (json!({}), "x", json!("x")),
        ];
        for (schema, text, value) in cases {
            let found: Value = serde_json::from_str(&to_json(text, &schema, &root)).unwrap();
            assert_eq!(found, value, "{schema} {text:?}");
        }
        assert_eq!(to_json("1e999", &json!({"type": "number"}), &root), "1e999");
    }
}
