//! The library's errors as Python's exceptions.

use pyo3::exceptions::{PyException, PyValueError};
use pyo3::{PyErr, create_exception};
use realizar::{Error, Fault, GenerateError, LoadError};

create_exception!(
    realizar,
    RealizarError,
    PyException,
    "A model could not be loaded or used. Arguments that are wrong raise ValueError or TypeError instead."
);

/// `ValueError` where the request has to change, `RealizarError` for all else.
pub(crate) fn of_request(error: &GenerateError) -> PyErr {
    let is_slow_reader = matches!(error, GenerateError::SlowReader { .. });
    match error.fault() {
        Fault::Client if !is_slow_reader => PyValueError::new_err(error.to_string()),
        _ => RealizarError::new_err(error.to_string()),
    }
}

/// The same for any error of the library.
pub(crate) fn of_library(error: &Error) -> PyErr {
    match error {
        Error::Generate(error) => of_request(error),
        // Named as on the command line.
        Error::Load(LoadError::Option { option, value, reason }) => {
            let option = match *option {
                "--ctx" => "context".to_owned(),
                option => option.trim_start_matches('-').replace('-', "_"),
            };
            PyValueError::new_err(format!("{option} of {value} cannot be: {reason}"))
        }
        error => RealizarError::new_err(chain(error)),
    }
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text += &format!(": {cause}");
        next = cause.source();
    }
    text
}
