//! The extension module `realizar._native`: the library for Python.
//!
//! It has what Python cannot do itself: a [`Model`](model::Model) on its device, the [`Answer`](answer::Answer)s that it is generating, and
//! waiting for them without the interpreter's lock. The package around it, `python/realizar`, gives this its types and documentation;
//! `_native.pyi` declares what is here.
#![forbid(unsafe_code)]

mod answer;
mod arguments;
mod blocking;
mod error;
mod forked;
mod model;

use pyo3::prelude::*;

/// The parts of the package that are written in Rust.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::answer::{Answer, wait};
    #[pymodule_export]
    use super::error::RealizarError;
    #[pymodule_export]
    use super::model::Model;
}
