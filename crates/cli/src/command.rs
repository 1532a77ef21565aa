//! The commands. Help texts, completions and the man page all come from here and from the commands' arguments.

use crate::logging::LogFormat;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;

/// Run GGUF and safetensors language models on any CPU and on NVIDIA GPUs.
///
/// Results go to stdout; logs and progress go to stderr. Exit codes: 0 fine, 1 failed, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "realizar", version, propagate_version = true, max_term_width = 100)]
#[command(arg_required_else_help = true, after_help = SETTINGS)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Logs more: once for what happens, twice for details. RUST_LOG overrides it.
    #[arg(short, long, global = true, help_heading = LOGS, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Takes options from this TOML file, where neither the command line nor a variable has them.
    #[arg(long, global = true, help_heading = LOGS, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// How logs are written.
    #[arg(long, global = true, help_heading = LOGS, value_enum, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

/// The heading of what all commands take.
const LOGS: &str = "Settings and logs";
/// What all commands' options have in common.
const SETTINGS: &str = "Each option is also a variable of the environment, such as REALIZAR_PORT for --port, and a key of the file that --config names.";

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
    #[command(visible_alias = "show")]
    Inspect(crate::inspect::InspectArgs),
    /// Turn texts into vectors by an embedding model, or into scores by a reranker.
    Embed(crate::embed::EmbedArgs),
    /// Measure how well a model predicts a text.
    Perplexity(crate::perplexity::PerplexityArgs),
    /// Measure tokens per second, of a model or of a server.
    Bench(Box<crate::bench::BenchArgs>),
    /// Download a model into the cache that all Hugging Face programs share.
    Pull(crate::pull::PullArgs),
    /// List the models in that cache.
    #[command(visible_alias = "ls")]
    List(crate::models::ListArgs),
    /// Remove models from that cache.
    Rm(crate::models::RemoveArgs),
    /// Convert a Hugging Face folder or a GGUF file to a GGUF file of another type.
    Quantize(crate::quantize::QuantizeArgs),
    /// Measure on text which weights of a model matter, for better quantization. Runs on the CPU.
    Imatrix(crate::imatrix::ImatrixArgs),
    /// Write a file of random weights at the real shape of a known model.
    Synth(crate::synth::SynthArgs),
    /// Print a shell's completions.
    Completions(crate::manual::CompletionsArgs),
    /// Print the man page of the program or of a command.
    Man(crate::manual::ManArgs),
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
            Some(flag) if has_letters_behind_h(flag) => {
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

/// Whether an argument is `-h`, alone or behind `-v`, with letters behind it.
fn has_letters_behind_h(argument: &str) -> bool {
    let letters = argument.strip_prefix('-').unwrap_or_default().trim_start_matches('v');
    letters.len() > 1 && letters.starts_with('h')
}

/// Flags of llama.cpp and vLLM, and what stands for them here.
const FLAGS_OF_OTHERS: &[(&str, &str)] = &[
    ("--alias", "--served-name NAME"),
    ("--batch-size", "--step-tokens N"),
    ("--cache-type-k", "--kv-type TYPE, for keys and values"),
    ("--cache-type-v", "--kv-type TYPE, for keys and values"),
    ("--chat-template-file", "--chat-template FILE"),
    ("--enable-auto-tool-choice", NOT_NEEDED),
    ("--enable-prefix-caching", NOT_NEEDED),
    ("--flash-attn", NOT_NEEDED),
    ("--gpu-memory-utilization", "--kv-memory SIZE"),
    ("--jinja", NOT_NEEDED),
    ("--kv-cache-dtype", "--kv-type TYPE"),
    ("--max-model-len", "--ctx N"),
    ("--max-num-batched-tokens", "--step-tokens N"),
    ("--max-num-seqs", "--max-seqs N"),
    ("--model-draft", "--draft MODEL"),
    ("--models-preset", "--config FILE"),
    ("--no-enable-prefix-caching", "--no-prefix-cache"),
    ("--parallel", "--max-seqs N"),
    ("--reasoning-parser", NOT_NEEDED),
    ("--served-model-name", "--served-name NAME"),
    ("--speculative-config", "--speculate ngram or --draft MODEL"),
    ("--tensor-parallel-size", "--tp N"),
    ("--tensor-split", "--tp N"),
    ("--tool-call-parser", NOT_NEEDED),
    ("--ubatch-size", "--step-tokens N"),
];
const NOT_NEEDED: &str = "nothing: it is not needed";

/// Adds to an error about a flag of another program what stands for it here.
pub(crate) fn explained(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return error };
    let Some((flag, ours)) = FLAGS_OF_OTHERS.iter().find(|(theirs, _)| theirs == flag) else { return error };
    let tip = StyledStr::from(format!("here, {ours} stands for {flag}; see docs/coming-from.md"));
    error.remove(ContextKind::SuggestedArg);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::path::Path;

    /// The text of README.md and all pages of docs/, by their paths.
    fn pages() -> Vec<(String, String)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut paths = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
        for folder in ["docs", "docs/measurements"] {
            let entries = std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
            paths.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
        }
        let read =
            |path: &std::path::PathBuf| (path.display().to_string(), std::fs::read_to_string(path).unwrap());
        paths.iter().map(read).collect()
    }

    /// Command lines of this program: lines of code blocks, and spans between backticks.
    fn command_lines<'a>(page: &'a str) -> Vec<&'a str> {
        let lines = page.lines().filter(|line| line.starts_with("realizar "));
        let spans = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
        let commands = lines.chain(spans.filter(|span| span.starts_with("realizar ")));
        // What stands behind is for the shell or the reader.
        let own = |line: &'a str| line.split(['#', '|', '>', '&', ';']).next().unwrap_or(line);
        commands.map(own).collect()
    }

    /// Whether a subcommand takes a flag, under any of its names.
    fn takes(command: &clap::Command, flag: &str) -> bool {
        command.get_arguments().any(|argument| match flag.strip_prefix("--") {
            Some(name) => {
                let mut aliases = argument.get_all_aliases().into_iter().flatten();
                argument.get_long() == Some(name) || aliases.any(|alias| alias == name)
            }
            None => {
                let name = flag.chars().nth(1);
                let mut aliases = argument.get_all_short_aliases().into_iter().flatten();
                name.is_some() && (argument.get_short() == name || aliases.any(|alias| Some(alias) == name))
            }
        })
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_stands_for_flags_of_others_exists_and_they_do_not() {
        let mut program = Cli::command();
        program.build();
        let serve = program.find_subcommand("serve").expect("a command");
        for (theirs, ours) in FLAGS_OF_OTHERS {
            assert!(!takes(serve, theirs), "{theirs} is a flag of ours");
            for flag in ours.split_whitespace().filter(|word| word.starts_with("--")) {
                assert!(takes(serve, flag.trim_end_matches(',')), "{flag}");
            }
        }
    }

    #[test]
    fn commands_and_flags_in_the_documents_exist() {
        let mut program = Cli::command();
        program.build();
        let mut n_flags = 0;
        for (path, page) in pages() {
            for line in command_lines(&page) {
                let mut words = line.split_whitespace().skip(1).peekable();
                let mut command = &program;
                while let Some(inner) = words.peek().and_then(|word| command.find_subcommand(word)) {
                    command = inner;
                    words.next();
                }
                assert!(command.get_name() != program.get_name(), "{path}: {line:?} names no command");
                for flag in words.take_while(|word| *word != "--").filter(|word| word.starts_with('-')) {
                    let flag = flag.split('=').next().unwrap_or(flag);
                    assert!(
                        takes(command, flag),
                        "{path}: {line:?} has {flag}, which the command does not take"
                    );
                    n_flags += 1;
                }
            }
        }
        assert!(n_flags > 50, "the documents name only {n_flags} flags");
    }
}
