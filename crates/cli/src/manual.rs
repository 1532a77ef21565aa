//! `realizar completions` and `realizar man`.

use crate::command::Cli;
use crate::output;
use anyhow::{Context, Result};
use clap::{Args, Command, CommandFactory, ValueHint};
use clap_complete::Shell;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The command, such as serve or bench serve; the program itself by default.
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Write the pages of the program and of all its commands to this folder instead.
    #[arg(long, value_name = "DIR", conflicts_with = "command", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "realizar", &mut text);
    output::print(String::from_utf8_lossy(&text))
}

pub(crate) fn man(args: &ManArgs) -> Result<()> {
    let mut program = Cli::command();
    program.build();
    if let Some(folder) = &args.dir {
        let could_not = || format!("could not write man pages to {}", folder.display());
        std::fs::create_dir_all(folder).with_context(could_not)?;
        return write_pages(&program, folder).with_context(could_not);
    }
    let mut command = &program;
    for name in &args.command {
        let inner = command.find_subcommand(name);
        command = inner.with_context(|| format!("{} has no command {name:?}", command.get_name()))?;
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    output::print(String::from_utf8_lossy(&text))
}

/// Writes the pages of a command and of those in it.
fn write_pages(command: &Command, folder: &Path) -> std::io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        write_pages(inner, folder)?;
    }
    clap_mangen::Man::new(command.clone()).generate_to(folder).map(drop)
}
