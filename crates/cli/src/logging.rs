//! Logs and errors on stderr.

use anyhow::{Context, Result};
use std::io::IsTerminal;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// Prints logs on stderr from now on: what `RUST_LOG` asks for, else warnings, or more for each `-v`.
pub(crate) fn start(verbose: u8) -> Result<()> {
    let filter = match crate::environment("RUST_LOG") {
        Some(directives) => directives.parse().with_context(|| format!("RUST_LOG is {directives:?}"))?,
        None => Targets::new().with_default(match verbose {
            0 => LevelFilter::WARN,
            1 => LevelFilter::INFO,
            2 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        }),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(verbose > 1);
    tracing_subscriber::registry().with(filter).with(lines).try_init().context("could not start logging")
}

/// Prints an error and its causes as one line.
pub(crate) fn report(error: &anyhow::Error) {
    let mut line = String::new();
    // A cause that its consequence has quoted already says nothing new.
    for cause in error.chain().map(ToString::to_string) {
        if !line.contains(&cause) {
            line = if line.is_empty() { cause } else { format!("{line}: {cause}") };
        }
    }
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    crate::output::note(&format!("error: {line}\n"));
}
