//! Arguments that several commands have.

use crate::input;
use crate::model_arg::ModelArg;
use anyhow::{Result, ensure};
use clap::{Args, ValueHint};
use realizar_model::quant_mix::{QUANT_MIXES, QuantMix};
use realizar_model::synth::{SYNTH_SHAPES, SynthShape};
use std::path::{Path, PathBuf};

/// The heading, at the end of the long help, of options that few people need.
pub(crate) const RARE: &str = "Rarely needed";

/// A model as an option, for commands that take something else without one.
#[derive(Debug, Args)]
pub(crate) struct ModelOption {
    /// A .gguf file, a folder, OWNER/NAME[:FILE-OR-QUANT] of the Hugging Face hub, a short name such as qwen3:0.6b, or demo.
    #[arg(short, long, value_name = "MODEL", default_value = "demo", value_hint = ValueHint::AnyPath)]
    pub(crate) model: ModelArg,
}

/// A model as the first argument, or as an option.
#[derive(Debug, Args)]
pub(crate) struct ModelPlace {
    /// A .gguf file, a folder, OWNER/NAME[:FILE-OR-QUANT] of the Hugging Face hub, a short name such as qwen3:0.6b, or demo [default:
    /// demo].
    #[arg(value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    named: Option<NamedModel>,
    /// The same as an option.
    #[arg(short, long, alias = "hf-repo", value_name = "MODEL", conflicts_with = "named", value_hint = ValueHint::AnyPath)]
    model: Option<NamedModel>,
}

impl ModelPlace {
    /// The model that was named, or the demo.
    pub(crate) fn get(&self) -> &ModelArg {
        self.named().map_or(&ModelArg::Demo, |named| &named.model)
    }

    /// The model's name as it was given.
    pub(crate) fn text(&self) -> Option<&str> {
        self.named().map(|named| &*named.text)
    }

    fn named(&self) -> Option<&NamedModel> {
        self.named.as_ref().or(self.model.as_ref())
    }
}

/// A model, and the text that names it.
#[derive(Clone, Debug)]
struct NamedModel {
    text: String,
    model: ModelArg,
}

impl std::str::FromStr for NamedModel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self { text: text.to_owned(), model: text.parse()? })
    }
}

/// The key that a server asks for.
#[derive(Debug, Args)]
pub(crate) struct KeyOption {
    /// Key that the server asks for.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// File whose first line is the key.
    #[arg(long, value_name = "FILE", conflicts_with = "api_key", value_hint = ValueHint::FilePath)]
    api_key_file: Option<PathBuf>,
}

impl KeyOption {
    /// Errors: the file has none.
    pub(crate) fn get(&self) -> Result<Option<String>> {
        match &self.api_key_file {
            None => Ok(self.api_key.clone()),
            Some(file) => Ok(keys_of(file)?.into_iter().next()),
        }
    }
}

/// The keys in a file, one on each line, which no list of processes shows; one at least.
pub(crate) fn keys_of(file: &Path) -> Result<Vec<String>> {
    let text = input::file_or_stdin(Some(file))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let keys: Vec<String> = lines.map(str::to_owned).collect();
    ensure!(!keys.is_empty(), "{} has no key", file.display());
    Ok(keys)
}

/// A number in a range, both ends included.
pub(crate) fn between(min: f32, max: f32) -> impl Fn(&str) -> Result<f32, String> + Clone {
    move |text| match text.parse::<f32>() {
        Ok(value) if (min..=max).contains(&value) => Ok(value),
        Ok(_) if max == f32::MAX => Err(format!("it must be a finite number of at least {min}")),
        Ok(_) => Err(format!("it must be between {min} and {max}")),
        Err(_) => Err("it is not a number".to_string()),
    }
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct ThreadsOption {
    /// Threads; by default one per core.
    #[arg(long, short_alias = 't', value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

impl ThreadsOption {
    pub(crate) fn get(&self) -> Option<usize> {
        self.threads.map(usize::from)
    }

    pub(crate) fn or_all_cores(&self) -> usize {
        self.get().unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
    }
}

/// `SHAPE:QUANT`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SynthSpec {
    pub(crate) shape: &'static SynthShape,
    pub(crate) mix: &'static QuantMix,
}

impl std::str::FromStr for SynthSpec {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (shape, mix) = s.split_once(':').ok_or("expected SHAPE:QUANT, such as llama-3.2-1b:q4_k_m")?;
        let known = || SYNTH_SHAPES.iter().map(|s| s.name).collect::<Vec<_>>().join(", ");
        let shape = SynthShape::from_name(shape)
            .ok_or_else(|| format!("no shape is called {shape:?}; there are {}", known()))?;
        Ok(Self { shape, mix: quant_mix(mix)? })
    }
}

/// A mix of types by its name.
pub(crate) fn quant_mix(name: &str) -> Result<&'static QuantMix, String> {
    QuantMix::from_name(name).ok_or_else(|| {
        let known: Vec<_> = QUANT_MIXES.iter().map(|m| m.name).collect();
        format!("no type is called {name:?}; there are {}", known.join(", "))
    })
}
