//! The sampling parameters that are one number, as fields of a request: all of [`PARAMS`], under their names.

use realizar_engine::{PARAMS, Param, SamplingOverrides};
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use std::fmt::{Formatter, Result as FmtResult};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{KnownFormat, Object, ObjectBuilder, Schema, SchemaFormat, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

/// Parameters that are part of OpenAI's API; the others are extensions.
const OPENAI: &[&str] = &["temperature", "top_p", "frequency_penalty", "presence_penalty"];

/// Other names of parameters.
const ALIASES: &[(&str, &str)] = &[("repeat_penalty", "repetition_penalty")];

/// How to choose tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct ParamFields(pub(crate) SamplingOverrides);

impl<'de> Deserialize<'de> for ParamFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = ParamFields;

    fn expecting(&self, f: &mut Formatter) -> FmtResult {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ParamFields, A::Error> {
        let (mut overrides, mut seen) = (SamplingOverrides::default(), Vec::new());
        while let Some(key) = map.next_key::<String>()? {
            let name = ALIASES.iter().find(|(alias, _)| *alias == key).map_or(key.as_str(), |(_, name)| name);
            let Some(param) = Param::find(name) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if seen.contains(&param.name) {
                return Err(A::Error::duplicate_field(param.name));
            }
            seen.push(param.name);
            let value = match param.is_integer {
                true => map.next_value::<Option<i64>>()?.map(|value| value as f32),
                false => map.next_value()?,
            };
            if let Some(value) = value {
                overrides.set(param.name, value);
            }
        }
        Ok(ParamFields(overrides))
    }
}

impl PartialSchema for ParamFields {
    fn schema() -> RefOr<Schema> {
        let object = ObjectBuilder::new().description(Some("How to choose tokens."));
        let object = PARAMS.iter().fold(object, |object, param| object.property(param.name, field(param)));
        let aliases = ALIASES.iter().filter_map(|(alias, name)| Some((alias, Param::find(name)?)));
        aliases.fold(object, |object, (alias, param)| object.property(*alias, field(param))).into()
    }
}

impl ToSchema for ParamFields {}

/// The schema of a parameter, which may be left out or null.
fn field(param: &Param) -> Object {
    let extension = if OPENAI.contains(&param.name) { "" } else { "Extension: " };
    let (kind, format) = match param.is_integer {
        true => (Type::Integer, KnownFormat::Int64),
        false => (Type::Number, KnownFormat::Float),
    };
    let bound = |value: f64| value.is_finite().then_some(value);
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([kind, Type::Null]))
        .format(Some(SchemaFormat::KnownFormat(format)))
        .description(Some(format!("{extension}{}", param.description)))
        .minimum(bound(*param.range.start()))
        .maximum(bound(*param.range.end()))
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::CompletionRequest;
    use utoipa::openapi::schema::Schema;

    fn parse(body: &str) -> Result<SamplingOverrides, String> {
        let request: Result<CompletionRequest, _> = serde_json::from_str(body);
        request.map(|r| r.common.params.0).map_err(|error| error.to_string())
    }

    #[test]
    fn a_request_sets_parameters_by_their_names() {
        let mut want = SamplingOverrides::default();
        want.set("temperature", 0.5);
        want.set("top_k", -1.0);
        let body = r#"{"prompt": "a", "temperature": 0.5, "top_k": -1, "top_p": null, "user": {"min_p": 1}}"#;
        assert_eq!(parse(body), Ok(want));
    }

    #[test]
    fn a_parameter_may_have_another_name_but_one_value() {
        let mut want = SamplingOverrides::default();
        want.set("repetition_penalty", 1.5);
        assert_eq!(parse(r#"{"prompt": "a", "repeat_penalty": 1.5}"#), Ok(want));
        let error = parse(r#"{"prompt": "a", "repeat_penalty": 1.5, "repetition_penalty": 1}"#).unwrap_err();
        assert!(error.contains("duplicate field `repetition_penalty`"), "{error}");
    }

    #[test]
    fn whole_numbers_and_single_values_are_demanded() {
        let error = parse(r#"{"prompt": "a", "top_k": 1.5}"#).unwrap_err();
        assert!(error.contains("floating point"), "{error}");
        let error = parse(r#"{"prompt": "a", "min_p": 0, "min_p": 1}"#).unwrap_err();
        assert!(error.contains("duplicate field `min_p`"), "{error}");
    }

    #[test]
    fn the_schema_lists_every_parameter_with_its_range() {
        let RefOr::T(Schema::Object(object)) = ParamFields::schema() else { panic!("an object") };
        assert_eq!(object.properties.len(), PARAMS.len() + ALIASES.len());
        let json = serde_json::to_value(&object).expect("a schema is JSON");
        let penalty = &json["properties"]["repetition_penalty"];
        assert_eq!((&penalty["minimum"], &penalty["maximum"]), (&0.01.into(), &100.into()));
        assert!(penalty["description"].as_str().is_some_and(|d| d.starts_with("Extension: ")));
        assert!(json["properties"]["temperature"].get("maximum").is_none());
        assert_eq!(json["properties"]["top_k"]["type"], serde_json::json!(["integer", "null"]));
    }
}
