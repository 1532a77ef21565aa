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
    let count = || argument.as_u64().unwrap() as usize;
    let number = || argument.as_f64().unwrap();
    let any = |schemas: &Value, value: &Value| {
        schemas.as_array().unwrap().iter().filter(|s| validates(root, s, value)).count()
    };
    let field = |name: &str| schema.get(name);
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
        ("minimum", Value::Number(n)) => n.as_f64().unwrap() >= number(),
        ("maximum", Value::Number(n)) => n.as_f64().unwrap() <= number(),
        ("exclusiveMinimum", Value::Number(n)) => n.as_f64().unwrap() > number(),
        ("exclusiveMaximum", Value::Number(n)) => n.as_f64().unwrap() < number(),
        ("multipleOf", Value::Number(n)) => (n.as_f64().unwrap() / number()).fract() == 0.0,
        ("minLength", Value::String(s)) => s.chars().count() >= count(),
        ("maxLength", Value::String(s)) => s.chars().count() <= count(),
        ("pattern", Value::String(s)) => {
            fancy_regex::Regex::new(argument.as_str().unwrap()).unwrap().is_match(s).unwrap()
        }
        ("format", Value::String(s)) => match argument.as_str().unwrap() {
            "date" => {
                let parts: Vec<u32> = s.split('-').map(|part| part.parse().unwrap()).collect();
                s.len() == 10 && (1..=12).contains(&parts[1]) && (1..=31).contains(&parts[2])
            }
            "ipv4" => s.parse::<std::net::Ipv4Addr>().is_ok(),
            "uuid" => s.len() == 36 && s.split('-').map(str::len).eq([8, 4, 4, 4, 12]),
            format => panic!("unknown format {format}"),
        },
        ("minItems", Value::Array(items)) => items.len() >= count(),
        ("maxItems", Value::Array(items)) => items.len() <= count(),
        ("prefixItems", Value::Array(items)) => {
            items.iter().zip(argument.as_array().unwrap()).all(|(item, schema)| validates(root, schema, item))
        }
        ("items", Value::Array(items)) => {
            let n_before = field("prefixItems").map_or(0, |prefix| prefix.as_array().unwrap().len());
            items.iter().skip(n_before).all(|item| validates(root, argument, item))
        }
        ("properties", Value::Object(entries)) => entries
            .iter()
            .all(|(name, entry)| argument.get(name).is_none_or(|schema| validates(root, schema, entry))),
        ("patternProperties", Value::Object(entries)) => entries.iter().all(|(name, entry)| {
            let patterns = argument.as_object().unwrap().iter();
            let mut matching = patterns
                .filter(|(pattern, _)| fancy_regex::Regex::new(pattern).unwrap().is_match(name).unwrap());
            matching.all(|(_, schema)| validates(root, schema, entry))
        }),
        ("additionalProperties", Value::Object(entries)) => {
            let known = |name: &String| {
                field("properties").is_some_and(|properties| properties.get(name).is_some())
                    || field("patternProperties").is_some_and(|patterns| {
                        let mut patterns = patterns.as_object().unwrap().keys();
                        patterns
                            .any(|pattern| fancy_regex::Regex::new(pattern).unwrap().is_match(name).unwrap())
                    })
            };
            entries.iter().all(|(name, entry)| known(name) || validates(root, argument, entry))
        }
        ("required", Value::Object(entries)) => {
            argument.as_array().unwrap().iter().all(|name| entries.contains_key(name.as_str().unwrap()))
        }
        ("minProperties", Value::Object(entries)) => entries.len() >= count(),
        ("maxProperties", Value::Object(entries)) => entries.len() <= count(),
        (
            "minimum"
            | "maximum"
            | "exclusiveMinimum"
            | "exclusiveMaximum"
            | "multipleOf"
            | "minLength"
            | "maxLength"
            | "pattern"
            | "format"
            | "minItems"
            | "maxItems"
            | "prefixItems"
            | "items"
            | "properties"
            | "patternProperties"
            | "additionalProperties"
            | "required"
            | "minProperties"
            | "maxProperties",
            _,
        ) => true,
        (keyword, _) => panic!("unknown keyword {keyword}"),
    }
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
