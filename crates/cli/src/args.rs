//! The command line as data. Help texts, completions and the man page all come from here.

use crate::model_arg::ModelArg;
use clap::{Args, Parser, Subcommand, ValueHint};
use realizar_model::quant_mix::{QUANT_MIXES, QuantMix};
use realizar_model::synth::{SYNTH_SHAPES, SynthShape};
use std::ffi::OsString;
use std::path::PathBuf;

/// Run GGUF and safetensors language models on any CPU and on NVIDIA GPUs.
///
/// Results go to stdout; logs and progress go to stderr. Exit codes: 0 fine, 1 failed, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "realizar", version, propagate_version = true, max_term_width = 100)]
#[command(arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Logs more: once for what happens, twice for details. RUST_LOG overrides it.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer a prompt, or chat.
    Run(crate::run::RunArgs),
    /// Serve a model over HTTP, as OpenAI's API has it.
    Serve(crate::serve::ServeArgs),
    /// Turn text into token ids, or back.
    Tokenize(crate::tokenize::TokenizeArgs),
    /// Print what a conversation becomes by a model's chat template.
    Template(crate::template::TemplateArgs),
    /// Show what a model is, what it takes, and where it can run.
    #[command(alias = "show")]
    Inspect(crate::inspect::InspectArgs),
    /// Measure how well a model predicts a text.
    Perplexity(crate::perplexity::PerplexityArgs),
    /// Measure tokens per second, of a model or of a server.
    Bench(crate::bench::BenchArgs),
    /// Download a model into the cache that all Hugging Face programs share.
    Pull(crate::pull::PullArgs),
    /// List the models in that cache.
    #[command(visible_alias = "ls")]
    List(crate::models::ListArgs),
    /// Remove models from that cache.
    Rm(crate::models::RemoveArgs),
    /// Convert a Hugging Face folder or a GGUF file to a GGUF file of another type.
    Quantize(QuantizeArgs),
    /// Write a file of random weights at the real shape of a known model.
    Synth(SynthArgs),
    /// Print a shell's completions.
    #[command(hide = true)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the man page.
    #[command(hide = true)]
    Man,
}

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
    named: Option<ModelArg>,
    /// The same as an option.
    #[arg(short, long, alias = "hf-repo", value_name = "MODEL", conflicts_with = "named", value_hint = ValueHint::AnyPath)]
    model: Option<ModelArg>,
}

impl ModelPlace {
    /// The model that was named, or the demo.
    pub(crate) fn get(&self) -> &ModelArg {
        self.named.as_ref().or(self.model.as_ref()).unwrap_or(&ModelArg::Demo)
    }
}

/// The arguments of the process, with llama.cpp's flags of several letters behind one dash spelled as long ones.
///
/// Errors: `-h` with letters behind it, which would print help for what was meant as another flag.
pub(crate) fn arguments(given: impl Iterator<Item = OsString>) -> Result<Vec<OsString>, String> {
    let mut arguments: Vec<OsString> = given.collect();
    for argument in arguments.iter_mut().take_while(|a| *a != "--") {
        let long = match argument.to_str() {
            Some("-hf" | "-hfr") => "--model",
            Some("-ngl") => "--n-gpu-layers",
            Some("-help") => "--help",
            Some(flag) if flag.starts_with("-h") && flag.len() > 2 => {
                return Err(format!(
                    "unexpected argument '{flag}'; -h or --help prints help, -hf names a model of the hub"
                ));
            }
            _ => continue,
        };
        *argument = long.into();
    }
    Ok(arguments)
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

#[derive(Debug, Args)]
pub(crate) struct SynthArgs {
    /// Shape and type, such as llama-3.2-1b:q4_k_m.
    #[arg(value_name = "SHAPE:QUANT", long_help = synth_help())]
    pub(crate) spec: SynthSpec,
    /// The file to write.
    #[arg(value_name = "OUT.gguf", value_hint = ValueHint::FilePath)]
    pub(crate) out: PathBuf,
    /// Another seed gives other weights.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) threads: ThreadsOption,
}

#[derive(Debug, Args)]
pub(crate) struct QuantizeArgs {
    /// A .gguf file, a Hugging Face folder, OWNER/NAME[:FILE-OR-QUANT], a short name, or demo.
    #[arg(value_name = "IN", value_hint = ValueHint::AnyPath)]
    pub(crate) input: ModelArg,
    /// The file to write.
    #[arg(value_name = "OUT", value_hint = ValueHint::FilePath)]
    pub(crate) out: PathBuf,
    /// f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_0, q4_k_m, q4_0, q3_k_m, q2_k or mxfp4_moe.
    #[arg(value_name = "TYPE", value_parser = quant_mix)]
    pub(crate) mix: &'static QuantMix,
    #[command(flatten)]
    pub(crate) threads: ThreadsOption,
}

#[derive(Debug, Args)]
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

fn synth_help() -> String {
    let shapes: Vec<_> = SYNTH_SHAPES.iter().map(|s| s.name).collect();
    format!("Shape and type, such as llama-3.2-1b:q4_k_m. Shapes: {}.", shapes.join(", "))
}

fn quant_mix(name: &str) -> Result<&'static QuantMix, String> {
    QuantMix::from_name(name).ok_or_else(|| {
        let known: Vec<_> = QUANT_MIXES.iter().map(|m| m.name).collect();
        format!("no type is called {name:?}; there are {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
