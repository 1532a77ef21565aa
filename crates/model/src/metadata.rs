//! What a model says about itself, by key, whatever its format.
//!
//! GGUF: the key-value section, each value with the type the file gave it. Hugging Face: `config.json` with nested
//! objects flattened by dots (`rope_scaling.factor`, `text_config.hidden_size`), and `generation_config.json` under the
//! prefix `generation_config.`. The getters convert between widths where the value fits and name file and key where it
//! does not, so that callers need not know which program wrote the file.

pub(crate) mod config;

use crate::{Error, Result};
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// One value with the type that its file gave it.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// A list of values of one type, stored as compactly as the file does.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Strings(Strings),
}

/// A list of byte strings in one piece of memory: a vocabulary has hundreds of thousands.
///
/// Bytes and not `str`, because the tokens of some vocabularies are pieces of UTF-8 characters.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Strings {
    bytes: Vec<u8>,
    /// End of each string in `bytes`; it begins where the one before it ends.
    ends: Vec<usize>,
}

impl Strings {
    /// No strings yet, but room for the ends of `n`.
    pub fn with_capacity(n: usize) -> Self {
        Strings { bytes: Vec::new(), ends: Vec::with_capacity(n) }
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.bytes[start..end])
    }

    /// Adds one string at the end.
    pub fn push(&mut self, string: &[u8]) {
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index).expect("index below len"))
    }
}

impl<S: AsRef<[u8]>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut all = Strings::default();
        for string in strings {
            all.push(string.as_ref());
        }
        all
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(String::from_utf8_lossy)).finish()
    }
}

macro_rules! from {
    ($($rust:ty => $variant:ident),*) => {$(
        impl From<$rust> for Value {
            fn from(value: $rust) -> Self {
                Value::$variant(value)
            }
        }
        impl From<Vec<$rust>> for Value {
            fn from(values: Vec<$rust>) -> Self {
                Value::Array(Array::$variant(values))
            }
        }
    )*};
}
from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
      f32 => F32, f64 => F64, bool => Bool);

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Value::String(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Value::String(value)
    }
}

impl From<Strings> for Value {
    fn from(strings: Strings) -> Self {
        Value::Array(Array::Strings(strings))
    }
}

impl Value {
    /// The number, if it is an integer of any width.
    fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// The number as a float, integers too: JSON writes `10000` where it means `10000.0`.
    fn float(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => self.integer().map(|v| v as f64),
        }
    }
}

/// A value as a person wants to see it: scalars in full, strings quoted, arrays by type and length.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(v) => v.fmt(f),
            Value::I8(v) => v.fmt(f),
            Value::U16(v) => v.fmt(f),
            Value::I16(v) => v.fmt(f),
            Value::U32(v) => v.fmt(f),
            Value::I32(v) => v.fmt(f),
            Value::U64(v) => v.fmt(f),
            Value::I64(v) => v.fmt(f),
            Value::F32(v) => v.fmt(f),
            Value::F64(v) => v.fmt(f),
            Value::Bool(v) => v.fmt(f),
            Value::String(v) => write!(f, "{v:?}"),
            Value::Array(v) => write!(f, "an array of {} {}", v.len(), v.type_name()),
        }
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::F64(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::Strings(v) => v.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Name of the element type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F32(_) => "f32",
            Array::F64(_) => "f64",
            Array::Bool(_) => "bool",
            Array::Strings(_) => "strings",
        }
    }

    /// The integers; an empty array counts as one of any type.
    fn integers(&self) -> Option<Vec<i64>> {
        Some(match self {
            Array::U8(v) => v.iter().map(|&v| v.into()).collect(),
            Array::I8(v) => v.iter().map(|&v| v.into()).collect(),
            Array::U16(v) => v.iter().map(|&v| v.into()).collect(),
            Array::I16(v) => v.iter().map(|&v| v.into()).collect(),
            Array::U32(v) => v.iter().map(|&v| v.into()).collect(),
            Array::I32(v) => v.iter().map(|&v| v.into()).collect(),
            Array::U64(v) => v.iter().map(|&v| i64::try_from(v).ok()).collect::<Option<_>>()?,
            Array::I64(v) => v.clone(),
            other => return other.is_empty().then(Vec::new),
        })
    }

    /// The numbers as floats; an empty array counts as one of any type.
    fn floats(&self) -> Option<Vec<f32>> {
        Some(match self {
            Array::F32(v) => v.clone(),
            Array::F64(v) => v.iter().map(|&v| v as f32).collect(),
            other => other.integers()?.into_iter().map(|v| v as f32).collect(),
        })
    }
}

/// The values of one model by key, in the order of the file.
#[derive(Clone, Debug)]
pub struct Metadata {
    path: PathBuf,
    entries: Vec<(String, Value)>,
    by_key: HashMap<String, usize>,
    config: Option<serde_json::Value>,
}

impl Metadata {
    /// No values yet. `path` is the file that errors will name.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Metadata { path: path.into(), entries: Vec::new(), by_key: HashMap::new(), config: None }
    }

    /// Adds a value. Errors: `Malformed` for a key that is already there.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Result<()> {
        let key = key.into();
        if self.by_key.contains_key(&key) {
            return Err(Error::malformed(&self.path, format!("metadata key {key:?} stands there twice")));
        }
        self.by_key.insert(key.clone(), self.entries.len());
        self.entries.push((key, value.into()));
        Ok(())
    }

    /// The file that the values come from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All keys and values in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.by_key.get(key).map(|&index| &self.entries[index].1)
    }

    /// `config.json` as it was parsed, for what has no flat form (arrays of mixed types or of objects). `None` for GGUF.
    pub fn config_json(&self) -> Option<&serde_json::Value> {
        self.config.as_ref()
    }

    /// A size or count. Errors: `WrongType` unless it is an integer of any width that fits.
    pub fn get_usize(&self, key: &str) -> Result<Option<usize>> {
        let usize = |v: &Value| v.integer().and_then(|v| usize::try_from(v).ok());
        self.convert(key, "a non-negative integer", usize)
    }

    /// An integer. Errors: `WrongType` unless it is an integer of any width that fits.
    pub fn get_i64(&self, key: &str) -> Result<Option<i64>> {
        self.convert(key, "an integer", |v| v.integer().and_then(|v| i64::try_from(v).ok()))
    }

    /// A number, rounded to f32 where the file has more digits. Errors: `WrongType` unless it is a number.
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>> {
        self.convert(key, "a number", |v| match *v {
            Value::F32(v) => Some(v),
            _ => v.float().map(|v| v as f32),
        })
    }

    /// A number. Errors: `WrongType` unless it is a number.
    pub fn get_f64(&self, key: &str) -> Result<Option<f64>> {
        self.convert(key, "a number", Value::float)
    }

    /// A truth value. Errors: `WrongType` unless it is one.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>> {
        self.convert(key, "true or false", |v| if let Value::Bool(v) = v { Some(*v) } else { None })
    }

    /// A text. Errors: `WrongType` unless it is one.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>> {
        self.convert(key, "a string", |v| if let Value::String(v) = v { Some(v.as_str()) } else { None })
    }

    /// A list of texts. Errors: `WrongType` unless it is one and all of it is UTF-8; see [`Self::get_byte_strings`].
    pub fn get_strings(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some(strings) = self.get_byte_strings(key)? else { return Ok(None) };
        let text = |(index, bytes)| {
            std::str::from_utf8(bytes).map_err(|_| {
                let found = format!("{:?} at index {index}", String::from_utf8_lossy(bytes));
                self.wrong_type(key, "an array of UTF-8 strings", found)
            })
        };
        strings.iter().enumerate().map(text).collect::<Result<_>>().map(Some)
    }

    /// A list of byte strings: the tokens of a vocabulary need not be UTF-8. Errors: `WrongType` unless it is one.
    pub fn get_byte_strings(&self, key: &str) -> Result<Option<&Strings>> {
        static NONE: Strings = Strings { bytes: Vec::new(), ends: Vec::new() };
        self.convert(key, "an array of strings", |v| match v {
            Value::Array(Array::Strings(v)) => Some(v),
            Value::Array(v) if v.is_empty() => Some(&NONE),
            _ => None,
        })
    }

    /// A list of integers; a single one counts as a list of one. Errors: `WrongType` unless all are integers.
    pub fn get_i64s(&self, key: &str) -> Result<Option<Vec<i64>>> {
        self.convert(key, "an array of integers", |v| match v {
            Value::Array(v) => v.integers(),
            _ => v.integer().and_then(|v| i64::try_from(v).ok()).map(|v| vec![v]),
        })
    }

    /// A list of numbers; a single one counts as a list of one. Errors: `WrongType` unless all are numbers.
    pub fn get_f32s(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.convert(key, "an array of numbers", |v| match v {
            Value::Array(v) => v.floats(),
            _ => v.float().map(|v| vec![v as f32]),
        })
    }

    /// A list of truth values; a single one counts as a list of one. Errors: `WrongType` unless all are.
    pub fn get_bools(&self, key: &str) -> Result<Option<Vec<bool>>> {
        self.convert(key, "an array of true or false", |v| match v {
            Value::Array(Array::Bool(v)) => Some(v.clone()),
            Value::Array(v) if v.is_empty() => Some(Vec::new()),
            Value::Bool(v) => Some(vec![*v]),
            _ => None,
        })
    }

    /// The error for a key that the model needs and the file lacks.
    pub fn missing(&self, key: &str) -> Error {
        Error::MissingKey { path: self.path.clone(), key: key.to_owned() }
    }

    /// The error for a value that its key does not allow.
    pub fn wrong_type(&self, key: &str, expected: &'static str, found: impl fmt::Display) -> Error {
        Error::WrongType { path: self.path.clone(), key: key.to_owned(), expected, found: found.to_string() }
    }

    fn convert<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.wrong_type(key, expected, value))
    }
}
