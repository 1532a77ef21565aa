//! What `MODEL` means on the command line, and how it is opened.

use crate::{hub, short_names};
use anyhow::{Result, anyhow};
use bytes::Bytes;
use realizar::hub::{HUB_HOSTS, HubModel, is_path};
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

impl FromStr for ModelArg {
    type Err = String;

    /// What is on this machine goes before what the hub may have.
    fn from_str(s: &str) -> Result<Self, String> {
        if s.is_empty() {
            return Err("a model needs a name".to_owned());
        }
        if s == "demo" {
            return Ok(Self::Demo);
        }
        if s.starts_with("hf:") || HUB_HOSTS.iter().any(|host| s.starts_with(host)) {
            return hub_name(s).map(Self::Hub);
        }
        match if is_path(s) { None } else { hub_model(s).ok() } {
            Some(model) => Ok(Self::Hub(model)),
            None => Ok(Self::Path(PathBuf::from(s))),
        }
    }
}

impl ModelArg {
    /// Whether `word` can only mean a model, even if there is none of that name.
    pub(crate) fn is_meant(word: &str) -> bool {
        !word.contains(char::is_whitespace)
            && match word.parse() {
                Ok(Self::Demo | Self::Hub(_)) => true,
                Ok(Self::Path(_)) => is_path(word),
                Err(_) => word.starts_with("hf:") || HUB_HOSTS.iter().any(|host| word.starts_with(host)),
            }
    }
}

/// A repository of the hub by its name, its address or a short name.
pub(crate) fn hub_model(s: &str) -> Result<HubModel, String> {
    short_names::find(s).map_or_else(|| hub_name(s), Ok)
}

fn hub_name(s: &str) -> Result<HubModel, String> {
    s.parse::<HubModel>().map_err(|e| e.to_string())
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

impl ModelArg {
    /// The name that clients ask for, where the server is given no other.
    pub(crate) fn served_name(&self) -> String {
        match self {
            Self::Demo => "demo".to_owned(),
            Self::Hub(hub) => hub.repo.clone(),
            Self::Path(path) => {
                // A folder named . has a name, too.
                let path = path.canonicalize().unwrap_or_else(|_| path.clone());
                let stem = if path.is_dir() { path.file_name() } else { path.file_stem() };
                stem.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
            }
        }
    }

    /// Opens the model, downloading it first where it is on the hub and not in the cache.
    pub(crate) fn open(&self) -> Result<Box<dyn TensorSource>> {
        match self {
            Self::Demo => Ok(source::open_gguf_bytes("demo", Bytes::from_static(DEMO))?),
            Self::Path(path) => match source::open(path) {
                Err(_) if !is_path(&path.to_string_lossy()) => Err(unknown(&path.to_string_lossy())),
                opened => Ok(opened?),
            },
            Self::Hub(hub) => Ok(source::open(&hub::find_or_pull(hub)?)?),
        }
    }
}

/// Why a name that is neither a path nor a known model cannot be opened, and which ones are near.
fn unknown(name: &str) -> anyhow::Error {
    anyhow!(
        "there is no file and no model {name:?}; short names are {}; other models of the hub are named OWNER/NAME:QUANT",
        short_names::similar(name).join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(repo: &str, file: Option<&str>) -> Result<ModelArg, String> {
        Ok(ModelArg::Hub(HubModel { repo: repo.into(), file: file.map(Into::into) }))
    }

    #[test]
    fn models_are_named_in_many_ways() {
        assert_eq!("demo".parse(), Ok(ModelArg::Demo));
        for path in ["./demo", "/a/b", "a/b.gguf", "model.safetensors", "x.json", "~/m"] {
            assert_eq!(path.parse(), Ok(ModelArg::Path(path.into())), "{path}");
        }
        assert_eq!("src".parse(), Ok(ModelArg::Path("src".into())), "what is there goes before the hub");
        for prefix in ["hf:", "", "hf.co/", "https://huggingface.co/"] {
            let parse = |name: &str| format!("{prefix}{name}").parse::<ModelArg>();
            assert_eq!(parse("a/b"), hub("a/b", None));
            assert_eq!(parse("a/b-GGUF:Q4_K_M"), hub("a/b-GGUF", Some("Q4_K_M")));
        }
        assert_eq!("hf:a/b:sub/x.gguf".parse::<ModelArg>(), hub("a/b", Some("sub/x.gguf")));
        for wrong in
            ["", "hf:", "hf:a", "hf:/b", "hf:a/", "hf:a/b:", "hf:a/b/c", "hf:../b", "hf:a/b:../c", "hf:a/b?x"]
        {
            assert!(wrong.parse::<ModelArg>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_of_the_hub_are_taken_as_a_browser_shows_them() {
        let parse = |path: &str| format!("https://huggingface.co/{path}").parse::<ModelArg>();
        assert_eq!(parse("a/b/"), hub("a/b", None));
        assert_eq!(parse("a/b/tree/main"), hub("a/b", None));
        assert_eq!(parse("a/b/blob/main/sub/x.gguf"), hub("a/b", Some("sub/x.gguf")));
        assert_eq!(parse("a/b/resolve/main/x.gguf?download=true"), hub("a/b", Some("x.gguf")));
        for wrong in ["a", "a/b/resolve/main", "a/b/blob/v2/x.gguf", "a/b/discussions", "a/b/blob/main/../x"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_word_is_meant_as_a_model_by_its_form() {
        for model in ["demo", "model.gguf", "./x", "a/b", "qwen3:0.6b", "llama3.2", "hf:a", "src"] {
            assert!(ModelArg::is_meant(model), "{model}");
        }
        for prompt in ["hello", "What is a/b?", "tell me", "1+1"] {
            assert!(!ModelArg::is_meant(prompt), "{prompt}");
        }
    }

    #[test]
    fn a_name_prints_as_it_was_given() {
        for name in ["demo", "a/b.gguf", "hf:a/b", "hf:a/b:q8_0"] {
            assert_eq!(name.parse::<ModelArg>().map(|m| m.to_string()).as_deref(), Ok(name));
        }
    }
}
