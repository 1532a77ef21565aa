//! A validator of JSON schemas, for what the tests' schemas say. Written from the specification (draft 2020-12), not from what the
//! server enforces.

use serde_json::Value;

/// Whether `value` satisfies `schema`, whose references lead into `root`. Panics on keywords that it does not know.
pub(crate) fn validates(root: &Value, schema: &Value, value: &Value) -> bool {
    let Value::Object(keywords) = schema else { return schema == &Value::Bool(true) };
    keywords.iter().all(|(keyword, argument)| holds(root, keywords, keyword, argument, value))
}

fn holds(
    root: &Value,
    schema: &serde_json::Map<String, Value>,
    keyword: &str,
    argument: &Value,
    value: &Value,
) -> bool {
    let any = |schemas: &Value, value: &Value| {
        schemas.as_array().unwrap().iter().filter(|s| validates(root, s, value)).count()
    };
    match (keyword, value) {
        ("$defs" | "title" | "description" | "default", _) => true,
        ("$ref", _) => validates(root, root.pointer(&argument.as_str().unwrap()[1..]).unwrap(), value),
        ("type", _) => match argument {
            Value::Array(types) => types.iter().any(|t| is_type(t.as_str().unwrap(), value)),
            one => is_type(one.as_str().unwrap(), value),
        },
        ("enum", _) => argument.as_array().unwrap().iter().any(|option| equal(option, value)),
        ("const", _) => equal(argument, value),
        ("anyOf", _) => any(argument, value) > 0,
        ("oneOf", _) => any(argument, value) == 1,
        ("allOf", _) => any(argument, value) == argument.as_array().unwrap().len(),
        ("minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf", _) => {
            value.as_f64().is_none_or(|n| holds_for_number(keyword, argument.as_f64().unwrap(), n))
        }
        ("minLength" | "maxLength" | "pattern" | "format", _) => {
            value.as_str().is_none_or(|s| holds_for_string(keyword, argument, s))
        }
        ("minItems" | "maxItems" | "prefixItems" | "items", _) => {
            value.as_array().is_none_or(|items| holds_for_array(root, schema, keyword, argument, items))
        }
        ("properties" | "patternProperties" | "additionalProperties", _)
        | ("required" | "minProperties" | "maxProperties", _) => {
            value.as_object().is_none_or(|entries| holds_for_object(root, schema, keyword, argument, entries))
        }
        (keyword, _) => panic!("unknown keyword {keyword}"),
    }
}

fn holds_for_number(keyword: &str, bound: f64, n: f64) -> bool {
    match keyword {
        "minimum" => n >= bound,
        "maximum" => n <= bound,
        "exclusiveMinimum" => n > bound,
        "exclusiveMaximum" => n < bound,
        "multipleOf" => (n / bound).fract() == 0.0,
        keyword => panic!("unknown keyword {keyword}"),
    }
}

fn holds_for_string(keyword: &str, argument: &Value, s: &str) -> bool {
    let count = || argument.as_u64().unwrap() as usize;
    match keyword {
        "minLength" => s.chars().count() >= count(),
        "maxLength" => s.chars().count() <= count(),
        "pattern" => matches(argument.as_str().unwrap(), s),
        "format" => match argument.as_str().unwrap() {
            "date" => {
                let parts: Vec<u32> = s.split('-').map(|part| part.parse().unwrap()).collect();
                s.len() == 10 && (1..=12).contains(&parts[1]) && (1..=31).contains(&parts[2])
            }
            "ipv4" => s.parse::<std::net::Ipv4Addr>().is_ok(),
            "uuid" => s.len() == 36 && s.split('-').map(str::len).eq([8, 4, 4, 4, 12]),
            format => panic!("unknown format {format}"),
        },
        keyword => panic!("unknown keyword {keyword}"),
    }
}

fn holds_for_array(
    root: &Value,
    schema: &serde_json::Map<String, Value>,
    keyword: &str,
    argument: &Value,
    items: &[Value],
) -> bool {
    let count = || argument.as_u64().unwrap() as usize;
    match keyword {
        "minItems" => items.len() >= count(),
        "maxItems" => items.len() <= count(),
        "prefixItems" => {
            items.iter().zip(argument.as_array().unwrap()).all(|(item, schema)| validates(root, schema, item))
        }
        "items" => {
            let n_before = schema.get("prefixItems").map_or(0, |prefix| prefix.as_array().unwrap().len());
            items.iter().skip(n_before).all(|item| validates(root, argument, item))
        }
        keyword => panic!("unknown keyword {keyword}"),
    }
}

fn holds_for_object(
    root: &Value,
    schema: &serde_json::Map<String, Value>,
    keyword: &str,
    argument: &Value,
    entries: &serde_json::Map<String, Value>,
) -> bool {
    let count = || argument.as_u64().unwrap() as usize;
    match keyword {
        "properties" => entries
            .iter()
            .all(|(name, entry)| argument.get(name).is_none_or(|schema| validates(root, schema, entry))),
        "patternProperties" => entries.iter().all(|(name, entry)| {
            let mut matching =
                argument.as_object().unwrap().iter().filter(|(pattern, _)| matches(pattern, name));
            matching.all(|(_, schema)| validates(root, schema, entry))
        }),
        "additionalProperties" => {
            let known = |name: &String| {
                let has_pattern = |patterns: &Value| {
                    patterns.as_object().unwrap().keys().any(|pattern| matches(pattern, name))
                };
                schema.get("properties").is_some_and(|properties| properties.get(name).is_some())
                    || schema.get("patternProperties").is_some_and(has_pattern)
            };
            entries.iter().all(|(name, entry)| known(name) || validates(root, argument, entry))
        }
        "required" => {
            argument.as_array().unwrap().iter().all(|name| entries.contains_key(name.as_str().unwrap()))
        }
        "minProperties" => entries.len() >= count(),
        "maxProperties" => entries.len() <= count(),
        keyword => panic!("unknown keyword {keyword}"),
    }
}

fn matches(pattern: &str, s: &str) -> bool {
    fancy_regex::Regex::new(pattern).unwrap().is_match(s).unwrap()
}

fn is_type(name: &str, value: &Value) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        name => panic!("unknown type {name}"),
    }
}

/// Numbers are equal by value, whatever they look like.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(name, value)| b.get(name).is_some_and(|other| equal(value, other)))
        }
        _ => a == b,
    }
}
