//! Closes the objects of a JSON schema: without `additionalProperties`, an object has the properties that the schema names and no
//! others.
//!
//! The standard allows any further ones. But most tools that generate schemas leave the keyword out, and small models then invent
//! properties without end.

use serde_json::{Map, Value};
use std::collections::HashSet;

/// Keywords whose schemas, or lists or objects of schemas, are about other values than the schema itself.
const INNER: &[&str] = &["items", "prefixItems", "additionalItems", "additionalProperties", "contains"];
/// Keywords whose entries are schemas by name.
const NAMED: &[&str] = &["properties", "patternProperties", "$defs", "definitions"];
/// Keywords that put several schemas about the same value together.
const COMPOSING: &[&str] = &["allOf", "anyOf", "oneOf", "$ref"];
/// Keywords that say themselves what further properties there may be.
const EXPLICIT: &[&str] = &["additionalProperties", "unevaluatedProperties", "patternProperties"];

/// Adds `additionalProperties: false` wherever an object's schema names properties and does not say whether there may be others.
///
/// A schema that holds together with others for the same object stays open, since one would forbid what the other names: members of
/// `allOf`, what they refer to, and schemas with properties beside `allOf`, `anyOf`, `oneOf` or `$ref`.
pub fn close_objects(schema: &mut Value) {
    let open = composed_definitions(schema);
    close(schema, false, "#", &open);
}

fn close(schema: &mut Value, composed: bool, path: &str, open: &HashSet<String>) {
    let Value::Object(keywords) = schema else { return };
    let composed = composed || open.contains(path);
    let shared = shares(keywords);
    for (keyword, value) in keywords.iter_mut() {
        let composed = COMPOSING.contains(&keyword.as_str()) && (composed || shared);
        for_schemas(keyword, value, path, &mut |schema, path| close(schema, composed, path, open));
    }
    let has_properties = keywords.get("properties").is_some_and(Value::is_object);
    let is_explicit = EXPLICIT.iter().any(|keyword| keywords.contains_key(*keyword));
    let composes = COMPOSING.iter().any(|keyword| keywords.contains_key(*keyword));
    if has_properties && !is_explicit && !composed && !composes {
        keywords.insert("additionalProperties".to_owned(), false.into());
    }
}

/// Whether several parts of a schema hold for the same value.
fn shares(keywords: &Map<String, Value>) -> bool {
    let n_members = |keyword: &str| match keywords.get(keyword) {
        Some(Value::Array(members)) if keyword == "allOf" => members.len(),
        Some(_) => 1,
        None => 0,
    };
    let n = COMPOSING.iter().chain(&["properties"]).map(|keyword| n_members(keyword)).sum::<usize>();
    n > 1
}

/// Calls `act` with each schema right under a keyword and its JSON pointer.
fn for_schemas(keyword: &str, value: &mut Value, path: &str, act: &mut dyn FnMut(&mut Value, &str)) {
    let is_list = ["allOf", "anyOf", "oneOf"].contains(&keyword) || INNER.contains(&keyword);
    match value {
        Value::Array(schemas) if is_list => {
            schemas.iter_mut().enumerate().for_each(|(i, s)| act(s, &format!("{path}/{keyword}/{i}")));
        }
        Value::Object(schemas) if NAMED.contains(&keyword) => {
            for (name, schema) in schemas {
                let name = name.replace('~', "~0").replace('/', "~1");
                act(schema, &format!("{path}/{keyword}/{name}"));
            }
        }
        Value::Object(_) if INNER.contains(&keyword) => act(value, &format!("{path}/{keyword}")),
        _ => {}
    }
}

/// Pointers to what schemas refer to that hold together with others.
fn composed_definitions(root: &mut Value) -> HashSet<String> {
    let mut found = HashSet::new();
    let mut left: Vec<(String, bool)> = vec![("#".to_owned(), false)];
    while let Some((path, composed)) = left.pop() {
        let Some(schema) = root.pointer_mut(&path[1..]) else { continue };
        let mut referred = Vec::new();
        collect(schema, composed, &path, &mut referred);
        for path in referred {
            if path.starts_with('#') && found.insert(path.clone()) {
                left.push((path, true));
            }
        }
    }
    found
}

fn collect(schema: &mut Value, composed: bool, path: &str, out: &mut Vec<String>) {
    let Value::Object(keywords) = schema else { return };
    let shared = shares(keywords);
    if let (true, Some(Value::String(reference))) = (composed || shared, keywords.get("$ref")) {
        out.push(reference.clone());
    }
    for (keyword, value) in keywords.iter_mut() {
        let composed = COMPOSING.contains(&keyword.as_str()) && (composed || shared);
        for_schemas(keyword, value, path, &mut |schema, path| collect(schema, composed, path, out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn is_closed_as(mut schema: Value, expected: Value) {
        close_objects(&mut schema);
        assert_eq!(schema, expected);
    }

    #[test]
    fn objects_with_named_properties_are_closed_at_every_depth() {
        is_closed_as(
            json!({"$defs": {"A": {"properties": {"x": {}}}},
                "properties": {"a": {"items": {"properties": {"properties": {"type": "string"}}}},
                               "b": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}, {"properties": {}}]}}}),
            json!({"$defs": {"A": {"properties": {"x": {}}, "additionalProperties": false}},
                "properties": {"a": {"items": {"properties": {"properties": {"type": "string"}}, "additionalProperties": false}},
                               "b": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"},
                                               {"properties": {}, "additionalProperties": false}]}},
                "additionalProperties": false}),
        );
    }

    #[test]
    fn what_the_schema_says_itself_stays() {
        for schema in [
            json!({"type": "object"}),
            json!({"properties": {"a": {}}, "additionalProperties": true}),
            json!({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}),
            json!({"properties": {"a": {}}, "patternProperties": {"^x": {}}}),
            json!({"properties": {"a": {}}, "unevaluatedProperties": false}),
            json!({"const": {"properties": {"a": {}}}}),
            json!(true),
        ] {
            is_closed_as(schema.clone(), schema);
        }
    }

    #[test]
    fn schemas_for_the_same_object_stay_open() {
        let base = json!({"properties": {"a": {}}});
        for schema in [
            json!({"allOf": [base, {"properties": {"b": {}}}]}),
            json!({"$defs": {"Base": base}, "allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"b": {}}}]}),
            json!({"$defs": {"Base": base, "Alias": {"$ref": "#/$defs/Base"}},
                "allOf": [{"$ref": "#/$defs/Alias"}, {"required": ["a"]}]}),
            json!({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"properties": {"b": {}}}]}),
            json!({"$defs": {"Base": base}, "$ref": "#/$defs/Base", "properties": {"b": {}}}),
        ] {
            is_closed_as(schema.clone(), schema);
        }
        // One member alone is the object's whole schema.
        is_closed_as(
            json!({"$defs": {"A": base}, "allOf": [{"$ref": "#/$defs/A"}]}),
            json!({"$defs": {"A": {"properties": {"a": {}}, "additionalProperties": false}}, "allOf": [{"$ref": "#/$defs/A"}]}),
        );
        // Definitions may refer to themselves.
        let mut circle = json!({"$defs": {"A": {"allOf": [{"$ref": "#/$defs/A"}, {"properties": {}}]}}});
        close_objects(&mut circle);
    }
}
