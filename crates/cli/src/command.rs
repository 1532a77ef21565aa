//! The commands. Help texts, completions and the man page all come from here and from the commands' arguments.

use clap::{Parser, Subcommand};
use std::ffi::OsString;

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
    /// Serve models over HTTP, compatible with the APIs of OpenAI, Anthropic, Ollama and llama.cpp.
    Serve(Box<crate::serve::ServeArgs>),
    /// List the models that a server has loaded.
    Ps(crate::server_models::PsArgs),
    /// Unload a model of a server.
    Stop(crate::server_models::StopArgs),
    /// Start a coding agent that uses a model of this program, and a server for it if there is none.
    Launch(crate::launch::LaunchArgs),
    /// Turn text into token ids, or back.
    Tokenize(crate::tokenize::TokenizeArgs),
    /// Print what a conversation becomes by a model's chat template.
    Template(crate::template::TemplateArgs),
    /// Show what a model is, what it takes, and where it can run.
    #[command(alias = "show")]
    Inspect(crate::inspect::InspectArgs),
    /// Turn texts into vectors by an embedding model, or into scores by a reranker.
    Embed(crate::embed::EmbedArgs),
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
    Quantize(crate::quantize::QuantizeArgs),
    /// Write a file of random weights at the real shape of a known model.
    Synth(crate::synth::SynthArgs),
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
