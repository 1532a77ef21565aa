//! Tables of the fields that clients are known to send to an API, and what is done with each.
//!
//! Each API has one [`Table`]; docs/serving.md prints it. Fields that are honoured are read by the API's wire types. The others reach
//! [`OtherFields`], which remembers those that would change the answer, so that the request is refused by their names. Fields that
//! are not listed are ignored.

use crate::error::{ApiError, Result};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use std::fmt::{Debug, Formatter, Result as FmtResult};
use std::marker::PhantomData;

/// The fields of an API.
pub(crate) trait Table: Clone + Debug + Default + Send + Sync + 'static {
    /// What may be done differently by different endpoints.
    type Endpoint: Copy + Debug + PartialEq;

    /// What is honoured, what has no effect, what is refused.
    fn fields() -> &'static [Field<Self::Endpoint>];
}

/// What is done with a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handling {
    /// It does what it says.
    Honoured,
    /// It is accepted, because it cannot change the answer.
    NoEffect,
    /// The request is refused, unless the field has a value that asks for nothing.
    Refused(Neutral),
}

/// The value by which a refused field asks for nothing. Null always does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Neutral {
    Null,
    Bool(bool),
    Number(f64),
    /// This number or less.
    AtMost(f64),
    /// One of these texts.
    Text(&'static [&'static str]),
    /// An empty list or object.
    Empty,
    /// A list of nothing but this text.
    Only(&'static str),
}

impl Neutral {
    fn holds(self, value: &Value) -> bool {
        match self {
            _ if value.is_null() => true,
            Self::Null => false,
            Self::Bool(neutral) => *value == Value::Bool(neutral),
            Self::Number(neutral) => value.as_f64() == Some(neutral),
            Self::AtMost(limit) => value.as_f64().is_some_and(|number| number <= limit),
            Self::Text(texts) => value.as_str().is_some_and(|text| texts.contains(&text)),
            Self::Empty => {
                value.as_array().is_some_and(Vec::is_empty)
                    || value.as_object().is_some_and(serde_json::Map::is_empty)
            }
            Self::Only(text) => {
                value.as_array().is_some_and(|list| list.iter().all(|item| item.as_str() == Some(text)))
            }
        }
    }
}

/// A field and what is done with it. `E`: the endpoints of its API.
#[derive(Debug)]
pub(crate) struct Field<E: 'static> {
    pub(crate) name: &'static str,
    pub(crate) endpoints: &'static [E],
    pub(crate) handling: Handling,
    /// What it does, why it has no effect, or why it is refused and what to use instead.
    pub(crate) note: &'static str,
}

impl<E> Field<E> {
    pub(crate) const fn honoured(name: &'static str, endpoints: &'static [E], note: &'static str) -> Self {
        Self { name, endpoints, handling: Handling::Honoured, note }
    }

    pub(crate) const fn no_effect(name: &'static str, endpoints: &'static [E], note: &'static str) -> Self {
        Self { name, endpoints, handling: Handling::NoEffect, note }
    }

    pub(crate) const fn refused(
        name: &'static str,
        endpoints: &'static [E],
        neutral: Neutral,
        note: &'static str,
    ) -> Self {
        Self { name, endpoints, handling: Handling::Refused(neutral), note }
    }
}

/// The listed fields of a request that some endpoint refuses, with their values.
#[derive(Clone, Debug, Default)]
pub(crate) struct OtherFields<T> {
    found: Vec<(&'static str, Value)>,
    table: PhantomData<T>,
}

impl<T: Table> OtherFields<T> {
    /// Errors: a field that would change the answer of this endpoint and is not offered.
    pub(crate) fn check(&self, endpoint: T::Endpoint) -> Result<()> {
        for (name, value) in &self.found {
            let row = T::fields().iter().find(|f| f.name == *name && f.endpoints.contains(&endpoint));
            if let Some(Field { name, handling: Handling::Refused(neutral), note, .. }) = row
                && !neutral.holds(value)
            {
                let message = format!("{name} is not supported here: {note}");
                return Err(ApiError::invalid_param(*name, message).code("unsupported"));
            }
        }
        Ok(())
    }
}

impl<'de, T: Table> Deserialize<'de> for OtherFields<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(Listed(PhantomData))
    }
}

struct Listed<T>(PhantomData<T>);

impl<'de, T: Table> Visitor<'de> for Listed<T> {
    type Value = OtherFields<T>;

    fn expecting(&self, f: &mut Formatter) -> FmtResult {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<OtherFields<T>, A::Error> {
        let mut found = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            let is_refused =
                |f: &&Field<T::Endpoint>| f.name == key && matches!(f.handling, Handling::Refused(_));
            match T::fields().iter().find(is_refused) {
                Some(field) => found.push((field.name, map.next_value()?)),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(OtherFields { found, table: PhantomData })
    }
}

/// What the tests of every table check.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use std::collections::BTreeSet;
    use std::fmt::Write;
    use utoipa::openapi::RefOr;
    use utoipa::openapi::schema::{AllOf, ComponentsBuilder, Schema};
    use utoipa::{PartialSchema, ToSchema};

    fn rows<T: Table>(endpoint: T::Endpoint) -> impl Iterator<Item = &'static Field<T::Endpoint>> {
        T::fields().iter().filter(move |f| f.endpoints.contains(&endpoint))
    }

    /// Each endpoint refuses its refused fields, and none twice listed. `check`: the request's own check of a body with this field.
    #[track_caller]
    pub(crate) fn refused_by_name<T: Table>(
        endpoints: &[T::Endpoint],
        check: fn(T::Endpoint, &str, &Value) -> Result<()>,
    ) {
        for &endpoint in endpoints {
            let mut seen = BTreeSet::new();
            for field in rows::<T>(endpoint) {
                assert!(seen.insert(field.name), "{} twice for {endpoint:?}", field.name);
                let Handling::Refused(neutral) = field.handling else { continue };
                let wanted = serde_json::json!({"anything": [1.5]});
                let error = check(endpoint, field.name, &wanted).expect_err(field.name);
                assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(field.name)));
                assert!(error.message.contains(field.note), "{}", error.message);
                let nothing = match neutral {
                    Neutral::Null => Value::Null,
                    Neutral::Bool(value) => value.into(),
                    Neutral::Number(value) | Neutral::AtMost(value) => value.into(),
                    Neutral::Text(texts) => texts[0].into(),
                    Neutral::Empty => serde_json::json!([]),
                    Neutral::Only(text) => serde_json::json!([text]),
                };
                assert_eq!(check(endpoint, field.name, &nothing), Ok(()), "{}: {nothing}", field.name);
                assert_eq!(check(endpoint, field.name, &Value::Null), Ok(()), "{}", field.name);
            }
        }
    }

    /// The fields that `R` reads are those that are listed as honoured.
    #[track_caller]
    pub(crate) fn honours<T: Table, R: ToSchema + PartialSchema>(endpoint: T::Endpoint) {
        let is_honoured = |f: &&Field<T::Endpoint>| matches!(f.handling, Handling::Honoured);
        let listed: BTreeSet<String> =
            rows::<T>(endpoint).filter(is_honoured).map(|f| f.name.to_owned()).collect();
        assert_eq!(listed, properties::<R>());
    }

    /// All of these names, with blanks between them, are listed.
    #[track_caller]
    pub(crate) fn lists<T: Table>(endpoint: T::Endpoint, names: &str) {
        for name in names.split_whitespace() {
            assert!(rows::<T>(endpoint).any(|field| field.name == name), "{name} of {endpoint:?}");
        }
    }

    /// The names of an object's fields, with those of the objects flattened into it.
    fn properties<R: ToSchema + PartialSchema>() -> BTreeSet<String> {
        let mut schemas = Vec::new();
        R::schemas(&mut schemas);
        let components = ComponentsBuilder::new().schemas_from_iter(schemas).build();
        let mut names = BTreeSet::new();
        let mut left = vec![R::schema()];
        while let Some(schema) = left.pop() {
            match schema {
                RefOr::Ref(reference) => {
                    let name = reference.ref_location.rsplit('/').next().expect("a name").to_owned();
                    left.push(components.schemas[&name].clone());
                }
                RefOr::T(Schema::AllOf(AllOf { items, .. })) => left.extend(items),
                RefOr::T(Schema::Object(object)) => names.extend(object.properties.keys().cloned()),
                RefOr::T(_) => panic!("fields are those of objects"),
            }
        }
        names
    }

    type IsKind = fn(&Handling) -> bool;

    /// docs/serving.md prints the list. `endpoints`: all of the API, with the names that it gives them.
    #[track_caller]
    pub(crate) fn is_printed<T: Table>(endpoints: &[(T::Endpoint, &str)]) {
        let mut printed = String::new();
        let kinds: [(&str, IsKind); 3] = [
            ("Honoured", |h| matches!(h, Handling::Honoured)),
            ("Accepted, because it cannot change the answer", |h| matches!(h, Handling::NoEffect)),
            ("Refused, unless its value asks for nothing", |h| matches!(h, Handling::Refused(_))),
        ];
        for (title, is_kind) in kinds {
            let _ = write!(printed, "| {title} | endpoint | |\n|---|---|---|\n");
            for Field { name, endpoints: of, note, .. } in T::fields().iter().filter(|f| is_kind(&f.handling))
            {
                let mut names = endpoints.iter().filter(|(e, _)| of.contains(e)).map(|(_, name)| *name);
                let endpoint = match (names.next(), of.len() == endpoints.len()) {
                    (_, true) if endpoints.len() == 2 => "both",
                    (_, true) if endpoints.len() > 2 => "all",
                    (first, _) => {
                        &names.fold(first.unwrap_or_default().to_owned(), |all, name| all + ", " + name)
                    }
                };
                let _ = writeln!(printed, "| `{name}` | {endpoint} | {note} |");
            }
            printed.push('\n');
        }
        let docs = include_str!("../../../docs/serving.md");
        assert!(docs.contains(&printed), "docs/serving.md lacks this text:\n\n{printed}");
    }
}
