//! The error of every fallible operation in this crate.
//!
//! Messages are one line each and name the file. Names that come from a file are printed quoted and escaped, so that
//! a hostile one cannot break the line or steer a terminal.

use std::io;
use std::path::{Path, PathBuf};

/// Why a model could not be opened, read, written or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("could not {action} {}: {error}", path.display())]
    Io {
        /// What was tried: `open`, `read`, `write`.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The path leads to something that holds no model this program reads.
    #[error("{} is not a model: {reason}", path.display())]
    NotAModel {
        /// The path as it was given.
        path: PathBuf,
        /// What was looked for and what was found.
        reason: String,
    },
    /// The file ends before something that it announces.
    #[error("{} is cut off: {what} needs {needed} bytes at offset {offset}, but the file has {len}", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// What should stand there.
        what: String,
        /// Where it begins, in bytes from the start of the file.
        offset: u64,
        /// Its length, in bytes.
        needed: u64,
        /// Length of the file, in bytes.
        len: u64,
    },
    /// The file contradicts its format.
    #[error("{} is malformed: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What was expected and what was found.
        reason: String,
    },
    /// The file is well-formed but of a kind that this program does not read.
    #[error("{} cannot be read: {reason}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Which kind, and what would be read instead.
        reason: String,
    },
    /// One tensor's entry contradicts the format or the file.
    #[error("{}: tensor {tensor:?} {reason}", path.display())]
    BadTensor {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// What is wrong with it, as the rest of a sentence that begins with the tensor.
        reason: String,
    },
    /// A tensor that the model needs is not there.
    #[error("{}: tensor {tensor:?} is missing", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
    },
    /// Several tensors are missing, wrong, or no part of the model.
    #[error("{}: {n} tensors are wrong: {first}", path.display())]
    BadWeights {
        /// The file or folder.
        path: PathBuf,
        /// How many.
        n: usize,
        /// The first of them, each with what is wrong, and how many there are besides.
        first: String,
    },
    /// A tensor has an element type that no weight can have.
    #[error("{}: tensor {tensor:?} has element type {found}, which this program does not compute with", path.display())]
    UnsupportedType {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Its element type, as the file spells it.
        found: String,
    },
    /// A metadata key that the model needs is not there.
    #[error("{}: metadata key {key:?} is missing", path.display())]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A metadata value has another type or range than its key asks for.
    #[error("{}: metadata key {key:?} must be {expected} but is {found}", path.display())]
    WrongType {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What the key asks for.
        expected: &'static str,
        /// What the file has.
        found: String,
    },
    /// The model's architecture is not one of ours.
    #[error("{}: architecture {found:?} is not supported; known are {known}", path.display())]
    UnknownArchitecture {
        /// The file or folder.
        path: PathBuf,
        /// What the file calls it.
        found: String,
        /// Those we know, by the names of this file format.
        known: String,
    },
    /// The model's architecture is known, and this program does not run it.
    #[error("{}: {family} (architecture {found:?}) is not supported; it needs {needs}", path.display())]
    UnsupportedArchitecture {
        /// The file or folder.
        path: PathBuf,
        /// What the file calls it.
        found: String,
        /// What people call it.
        family: &'static str,
        /// What this program lacks.
        needs: &'static str,
    },
    /// The tokenizer is missing something or contradicts itself.
    #[error("{}: {error}", path.display())]
    Tokenizer {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        error: crate::tokenizer::Error,
    },
    /// There is too little of something to share it among so many devices.
    #[error("{} cannot be shared among {n_ranks} devices: it has {what}", path.display())]
    CannotSplit {
        /// The file or folder.
        path: PathBuf,
        /// What there is too little of.
        what: String,
        /// Devices.
        n_ranks: usize,
    },
    /// The device refused or failed.
    #[error(transparent)]
    Compute(#[from] realizar_compute::Error),
}

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, error: io::Error) -> Self {
        Error::Io { action, path: path.to_owned(), error }
    }

    pub(crate) fn malformed(path: &Path, reason: impl Into<String>) -> Self {
        Error::Malformed { path: path.to_owned(), reason: reason.into() }
    }

    pub(crate) fn unsupported(path: &Path, reason: impl Into<String>) -> Self {
        Error::Unsupported { path: path.to_owned(), reason: reason.into() }
    }

    pub(crate) fn not_a_model(path: &Path, reason: impl Into<String>) -> Self {
        Error::NotAModel { path: path.to_owned(), reason: reason.into() }
    }

    /// What is wrong with some tensors: the error itself where there is one.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn bad_weights(path: &Path, mut problems: Vec<Error>) -> Self {
        const NAMED: usize = 8;
        let n = problems.len();
        if n == 1 {
            return problems.remove(0);
        }
        let text = |e: &Error| match e {
            Error::MissingTensor { tensor, .. } => format!("{tensor:?} is missing"),
            Error::BadTensor { tensor, reason, .. } => format!("{tensor:?} {reason}"),
            Error::UnsupportedType { tensor, found, .. } => {
                format!("{tensor:?} has element type {found}, which this program does not compute with")
            }
            other => other.to_string(),
        };
        let mut first: Vec<String> = problems.iter().take(NAMED).map(text).collect();
        assert!(!first.is_empty(), "no problem");
        if n > NAMED {
            first.push(format!("and {} more", n - NAMED));
        }
        Error::BadWeights { path: path.to_owned(), n, first: first.join("; ") }
    }

    pub(crate) fn bad_tensor(path: &Path, tensor: &str, reason: impl Into<String>) -> Self {
        Error::BadTensor { path: path.to_owned(), tensor: tensor.to_owned(), reason: reason.into() }
    }
}
