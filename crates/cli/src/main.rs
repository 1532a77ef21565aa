//! The `realizar` command.
//!
//! Each subcommand is a file with its arguments; `command.rs` lists them. stdout carries results only, everything else goes to stderr. Exit
//! codes: 0 fine, 1 failed, 2 wrong usage.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod bench_serve;
mod chat;
mod chat_commands;
mod command;
mod conversation;
mod embed;
mod hub;
mod imatrix;
mod input;
mod inspect;
#[cfg(feature = "cuda")]
mod inspect_kernels;
mod inspect_server;
mod kv_events;
mod launch;
mod license;
mod live;
mod load;
mod logging;
mod manual;
mod markdown;
mod model_arg;
mod models;
mod output;
mod perplexity;
mod profile;
mod progress;
mod pull;
mod quantize;
mod run;
mod serve;
mod server_models;
mod settings;
mod short_names;
mod sockets;
mod speculation;
mod synth;
#[cfg(target_os = "linux")]
mod takeover;
mod template;
mod thinking;
mod tokenize;

use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use command::{Cli, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    // Wrong usage ends here, with exit code 2.
    let wrong = |kind, why| Cli::command().error(kind, why).exit();
    let arguments =
        command::arguments(std::env::args_os()).unwrap_or_else(|why| wrong(ErrorKind::UnknownArgument, why));
    let arguments = settings::complete(arguments, environment)
        .unwrap_or_else(|why| wrong(ErrorKind::ValueValidation, why));
    let matches = Cli::command()
        .try_get_matches_from(arguments)
        .unwrap_or_else(|error| command::explained(error).exit());
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let given = matches.subcommand().map_or(&matches, |(_, given)| given);
    let done = logging::start(cli.verbose, cli.log_format).and_then(|()| run(&cli, given));
    match done {
        Ok(code) => code,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            logging::report(&error, cli.log_format);
            ExitCode::FAILURE
        }
    }
}

/// `given`: the arguments of the command.
fn run(cli: &Cli, given: &ArgMatches) -> anyhow::Result<ExitCode> {
    let done = match &cli.command {
        // Ends with the agent's exit code.
        Command::Launch(args) => return launch::run(args),
        Command::Run(args) => run::run(args),
        Command::Serve(args) => serve::run(args, given, cli),
        Command::Ps(args) => server_models::ps(args),
        Command::Stop(args) => server_models::stop(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Template(args) => template::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Embed(args) => embed::run(args),
        Command::Perplexity(args) => perplexity::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Pull(args) => pull::run(args),
        Command::List(args) => models::list(args),
        Command::Rm(args) => models::remove(args),
        Command::Quantize(args) => quantize::run(args),
        Command::Imatrix(args) => imatrix::run(args),
        Command::Synth(args) => synth::run(args),
        Command::Completions(args) => manual::completions(args),
        Command::Man(args) => manual::man(args),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// A variable of the environment; one that is empty or not UTF-8 counts as absent.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
