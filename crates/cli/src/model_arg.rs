//! What `MODEL` means on the command line, and how it is opened.

use crate::hub;
use anyhow::{Context, Result};
use bytes::Bytes;
use realizar_model::source::{self, TensorSource};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The model in the program: small stories, and questions about them.
static DEMO: &[u8] = include_bytes!("../../../assets/demo.gguf");

/// A model as a person names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelArg {
    /// The model in the program.
    Demo,
    /// A file or a folder.
    Path(PathBuf),
    /// A repository of the Hugging Face hub.
    Hub(HubModel),
}

/// `hf:OWNER/NAME[:FILE-OR-QUANT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HubModel {
    /// `OWNER/NAME`.
    pub(crate) repo: String,
    /// A file of the repository, or a type such as `Q4_K_M` that picks the GGUF file with it in its name.
    pub(crate) file: Option<String>,
}

impl FromStr for ModelArg {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if s.is_empty() {
            return Err("a model needs a name".to_owned());
        }
        if s == "demo" {
            return Ok(Self::Demo);
        }
        match s.strip_prefix("hf:") {
            Some(rest) => rest.parse().map(Self::Hub),
            None => Ok(Self::Path(PathBuf::from(s))),
        }
    }
}

impl FromStr for HubModel {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let s = s.strip_prefix("hf:").unwrap_or(s);
        let (repo, file) = match s.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (s, None),
        };
        let part = |p: &str| {
            !p.is_empty()
                && !p.starts_with('.')
                && p.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        };
        let plain_file =
            |f: &str| !f.is_empty() && f.split('/').all(|p| !p.is_empty() && p != "." && p != "..");
        match repo.split_once('/') {
            Some((owner, name)) if part(owner) && part(name) && file.is_none_or(plain_file) => {
                Ok(Self { repo: repo.to_owned(), file: file.map(str::to_owned) })
            }
            _ => Err("expected hf:OWNER/NAME or hf:OWNER/NAME:FILE-OR-QUANT".to_owned()),
        }
    }
}

impl fmt::Display for ModelArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Demo => f.write_str("demo"),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Hub(hub) => hub.fmt(f),
        }
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        self.file.as_ref().map_or(Ok(()), |file| write!(f, ":{file}"))
    }
}

impl ModelArg {
    /// Opens the model, downloading it first where it is on the hub and not in the cache.
    pub(crate) fn open(&self) -> Result<Box<dyn TensorSource>> {
        match self {
            Self::Demo => Ok(source::open_gguf_bytes("demo", Bytes::from_static(DEMO))?),
            Self::Path(path) => Ok(source::open(path)?),
            Self::Hub(hub) => {
                let path = hub::find_or_pull(hub).with_context(|| format!("could not get {hub}"))?;
                Ok(source::open(&path)?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_named_in_four_ways() {
        let hub = |repo: &str, file: Option<&str>| {
            Ok(ModelArg::Hub(HubModel { repo: repo.into(), file: file.map(Into::into) }))
        };
        assert_eq!("demo".parse(), Ok(ModelArg::Demo));
        assert_eq!("./demo".parse(), Ok(ModelArg::Path("./demo".into())));
        assert_eq!("hf:a/b".parse::<ModelArg>(), hub("a/b", None));
        assert_eq!("hf:a/b-GGUF:Q4_K_M".parse::<ModelArg>(), hub("a/b-GGUF", Some("Q4_K_M")));
        assert_eq!("hf:a/b:sub/x.gguf".parse::<ModelArg>(), hub("a/b", Some("sub/x.gguf")));
        for wrong in
            ["", "hf:", "hf:a", "hf:/b", "hf:a/", "hf:a/b:", "hf:a/b/c", "hf:../b", "hf:a/b:../c", "hf:a/b?x"]
        {
            assert!(wrong.parse::<ModelArg>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_name_prints_as_it_was_given() {
        for name in ["demo", "a/b.gguf", "hf:a/b", "hf:a/b:q8_0"] {
            assert_eq!(name.parse::<ModelArg>().map(|m| m.to_string()).as_deref(), Ok(name));
        }
    }
}
