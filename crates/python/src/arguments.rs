//! Keyword arguments as the library takes them. One that is `None` counts as not given.

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use realizar::{CacheSize, Options, TextParams};
use std::collections::BTreeMap;

/// Parameters of a request: those given, and the model's own for the others.
///
/// Errors: `TypeError` for an unknown name or a value of another type, `ValueError` for a number that its parameter cannot have. Ranges are
/// the library's to check.
pub(crate) fn params(mut params: TextParams, given: Option<&Bound<'_, PyDict>>) -> PyResult<TextParams> {
    for (name, value) in given.into_iter().flatten().filter(|(_, value)| !value.is_none()) {
        let argument = Argument { name: name.extract()?, value };
        let sampling = &mut params.sampling;
        match argument.name.as_str() {
            "max_tokens" => params.max_tokens = Some(argument.get()?),
            "temperature" => sampling.temperature = argument.get()?,
            "top_p" => sampling.top_p = argument.get()?,
            // Other programs turn it off by -1.
            "top_k" if argument.get::<i64>().is_ok_and(|k| k == -1) => sampling.top_k = 0,
            "top_k" => sampling.top_k = argument.get()?,
            "min_p" => sampling.min_p = argument.get()?,
            "repetition_penalty" => sampling.repetition_penalty = argument.get()?,
            "frequency_penalty" => sampling.frequency_penalty = argument.get()?,
            "presence_penalty" => sampling.presence_penalty = argument.get()?,
            "logit_bias" => {
                sampling.logit_bias = argument.get::<BTreeMap<u32, f32>>()?.into_iter().collect();
            }
            "seed" => sampling.seed = Some(argument.get()?),
            "stop" => params.stop = argument.texts()?,
            "ignore_eos" => params.ignore_eos = argument.get()?,
            "logprobs" => params.n_logprobs = Some(argument.get()?),
            name => return Err(PyTypeError::new_err(format!("there is no parameter {name:?}"))),
        }
    }
    Ok(params)
}

/// How a model is loaded.
///
/// Errors: as [`params`].
pub(crate) fn options(given: Option<&Bound<'_, PyDict>>) -> PyResult<Options> {
    // As the program has it.
    let mut options = Options { draft_layer: true, ..Options::default() };
    for (name, value) in given.into_iter().flatten().filter(|(_, value)| !value.is_none()) {
        let argument = Argument { name: name.extract()?, value };
        match argument.name.as_str() {
            "context" => options.n_ctx = Some(argument.get()?),
            "device" => {
                options.device = argument.get::<String>()?.parse().map_err(PyValueError::new_err)?;
            }
            "threads" => options.n_threads = argument.get()?,
            "cache_tokens" => options.cache = CacheSize::Tokens(argument.get()?),
            "max_seqs" => options.max_seqs = Some(argument.get()?),
            "deterministic" => options.deterministic = argument.get()?,
            "exact" => options.exact = argument.get()?,
            name => return Err(PyTypeError::new_err(format!("there is no option {name:?}"))),
        }
    }
    Ok(options)
}

/// What is to be continued.
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Prompt {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return object.extract().map(Self::Text);
        }
        let wrong =
            |_| PyTypeError::new_err("a prompt must be a str or a list of token ids, which are ints from 0");
        object.extract().map(Self::Tokens).map_err(wrong)
    }
}

impl<'a> From<&'a Prompt> for realizar::Prompt<'a> {
    fn from(prompt: &'a Prompt) -> Self {
        match prompt {
            Prompt::Text(text) => Self::Text(text),
            Prompt::Tokens(tokens) => Self::Tokens(tokens),
        }
    }
}

/// A keyword argument.
struct Argument<'py> {
    name: String,
    value: Bound<'py, PyAny>,
}

impl<'py> Argument<'py> {
    /// Errors: they name the argument.
    fn get<T: FromPyObjectOwned<'py>>(&self) -> PyResult<T> {
        let Self { name, value } = self;
        value.extract::<T>().map_err(|error| {
            let error: PyErr = error.into();
            if error.is_instance_of::<PyOverflowError>(value.py()) {
                return PyValueError::new_err(format!("{name} is {value}, which is out of range"));
            }
            PyTypeError::new_err(format!("{name}: {}", error.value(value.py())))
        })
    }

    /// A text, or a list of texts.
    fn texts(&self) -> PyResult<Vec<String>> {
        match self.value.is_instance_of::<PyString>() {
            true => Ok(vec![self.get()?]),
            false => self.get(),
        }
    }
}
