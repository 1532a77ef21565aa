//! The file of `serve --config`: options of the server, and a table for each model.
//!
//! ```toml
//! host = "0.0.0.0"                  # any option of the command, with `_` or `-`
//! api_key = ["secret"]
//! keep_alive = "10m"
//!
//! [models."qwen3:0.6b"]             # the name that clients ask for
//! model = "Qwen/Qwen3-0.6B-GGUF:Q8_0"
//! aliases = ["small"]
//! preload = true
//! ctx = 8192                        # any option of a model
//! ```
//!
//! Keys are the command's options, so they are checked, documented and given defaults in one place: a key becomes the arguments that it
//! stands for, and what the command line says goes before it.

use super::several::model_command;
use crate::command::Cli;
use crate::model_arg::ModelArg;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Command, CommandFactory};
use realizar_server::KeepAlive;
use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Options of `serve` that a file cannot have.
const NOT_IN_FILES: &[&str] = &["config", "model", "served-name", "help", "version", "verbose"];

/// A model's table.
pub(super) struct ModelTable {
    /// The table's own, then the aliases.
    pub(super) names: Vec<String>,
    pub(super) model: ModelArg,
    pub(super) keep_alive: Option<KeepAlive>,
    pub(super) preload: bool,
    /// Its options as arguments.
    pub(super) arguments: Vec<OsString>,
}

/// A file's text, for errors that name the line.
struct Text<'a> {
    path: &'a Path,
    text: &'a str,
}

/// The arguments of the process with the options of the file that `serve --config` names, unless the command line has them.
///
/// Errors: what is wrong with the file, by its line.
pub(crate) fn with_file(arguments: Vec<OsString>) -> Result<Vec<OsString>, String> {
    // Whatever is wrong with the command line is said when it is read for good.
    let Ok(matches) = Cli::command().ignore_errors(false).try_get_matches_from(&arguments) else {
        return Ok(arguments);
    };
    let Some(("serve", given)) = matches.subcommand() else { return Ok(arguments) };
    let Some(path) = given.get_one::<PathBuf>("config") else { return Ok(arguments) };
    let mut all = arguments.clone();
    let text = read(path)?;
    let file = Text { path, text: &text };
    let mut serve = Cli::command();
    serve.build();
    let serve = serve.find_subcommand("serve").expect("there is one").clone();
    for (key, value) in file.parse()?.get_ref() {
        if key.get_ref() == "models" {
            continue;
        }
        let option = file.option(&serve, NOT_IN_FILES, key, value)?;
        file.check(&option, Cli::command(), ["realizar", "serve"].map(OsString::from).into_iter())?;
        if given.value_source(&option.id) != Some(ValueSource::CommandLine) {
            all.extend(option.arguments);
        }
    }
    Ok(all)
}

/// The models of a file.
///
/// Errors: what is wrong, by its line.
pub(super) fn models(path: &Path) -> Result<Vec<ModelTable>, String> {
    let text = read(path)?;
    let file = Text { path, text: &text };
    let table = file.parse()?;
    let Some((_, models)) = table.get_ref().iter().find(|(key, _)| key.get_ref() == "models") else {
        return Ok(Vec::new());
    };
    let DeValue::Table(tables) = models.get_ref() else {
        return Err(file.wrong(&models.span(), "models must be tables: [models.NAME]"));
    };
    let mut tables: Vec<_> = tables.iter().collect();
    // As they stand in the file: the first is the default.
    tables.sort_by_key(|(name, _)| name.span().start);
    tables.into_iter().map(|(name, table)| file.model(name.get_ref(), table)).collect()
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("could not read {}: {error}", path.display()))
}

/// An option as a file has it.
struct FileOption {
    /// clap's name of it.
    id: String,
    arguments: Vec<OsString>,
    span: Range<usize>,
}

impl Text<'_> {
    /// An error with its place.
    fn wrong(&self, span: &Range<usize>, message: &str) -> String {
        let line = self.text[..span.start.min(self.text.len())].matches('\n').count() + 1;
        format!("{}:{line}: {message}", self.path.display())
    }

    fn parse(&self) -> Result<Spanned<DeTable<'_>>, String> {
        DeTable::parse(self.text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            self.wrong(&span, error.message())
        })
    }

    fn model(&self, name: &str, table: &Spanned<DeValue<'_>>) -> Result<ModelTable, String> {
        let DeValue::Table(keys) = table.get_ref() else {
            return Err(self.wrong(&table.span(), &format!("models.{name} must be a table")));
        };
        let mut names = vec![name.to_owned()];
        let (mut model, mut keep_alive, mut preload, mut arguments) = (None, None, false, Vec::new());
        let command = model_command();
        for (key, value) in keys {
            let wrong = |message: &str| self.wrong(&key.span(), &format!("{}: {message}", key.get_ref()));
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("model", DeValue::String(text)) => {
                    model = Some(self.place(text).map_err(|why| wrong(&why))?)
                }
                ("aliases", DeValue::Array(aliases)) => {
                    for alias in aliases {
                        let alias = alias.get_ref().as_str();
                        names.push(alias.ok_or_else(|| wrong("expected a list of names"))?.to_owned());
                    }
                }
                ("preload", DeValue::Boolean(value)) => preload = *value,
                ("keep_alive" | "keep-alive", value) => {
                    let text = scalar(value).ok_or_else(|| wrong("expected a duration such as \"5m\""))?;
                    keep_alive = Some(text.parse().map_err(|why: String| wrong(&why))?);
                }
                ("model", _) => return Err(wrong("expected a text")),
                ("aliases", _) => return Err(wrong("expected a list of names")),
                ("preload", _) => return Err(wrong("expected true or false")),
                _ => {
                    let option = self.option(&command, &["help"], key, value)?;
                    self.check(&option, command.clone(), std::iter::empty())?;
                    arguments.extend(option.arguments);
                }
            }
        }
        let model = model.ok_or_else(|| self.wrong(&table.span(), &format!("models.{name} has no model")))?;
        Ok(ModelTable { names, model, keep_alive, preload, arguments })
    }

    /// A model; its path is that from the file's own folder.
    fn place(&self, text: &str) -> Result<ModelArg, String> {
        let beside = self.path.parent().unwrap_or(Path::new("")).join(text);
        match Path::new(text).is_relative() && beside.exists() {
            true => Ok(ModelArg::Path(beside)),
            false => text.parse(),
        }
    }

    /// A key as the arguments that it stands for.
    fn option(
        &self,
        command: &Command,
        excluded: &[&str],
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<FileOption, String> {
        let long = key.get_ref().replace('_', "-");
        let known: Vec<&clap::Arg> = command.get_arguments().filter(|arg| !arg.is_hide_set()).collect();
        let found = known.iter().find(|arg| arg.get_long() == Some(&long) && !excluded.contains(&&*long));
        let Some(argument) = found else {
            let known = known.iter().filter_map(|arg| arg.get_long()).filter(|name| !excluded.contains(name));
            let known: Vec<String> = known.map(|name| name.replace('-', "_")).collect();
            let message = format!("there is no option {:?}; there are {}", key.get_ref(), known.join(", "));
            return Err(self.wrong(&key.span(), &message));
        };
        let with = |value: &str| OsString::from(format!("--{long}={value}"));
        let takes_values = argument.get_action().takes_values();
        let arguments = match value.get_ref() {
            DeValue::Boolean(is_set) if !takes_values => {
                is_set.then(|| OsString::from(format!("--{long}"))).into_iter().collect()
            }
            DeValue::Array(values) if takes_values => {
                let texts = values.iter().map(|value| Some(with(&scalar(value.get_ref())?)));
                texts.collect::<Option<Vec<_>>>().ok_or_else(|| {
                    self.wrong(&value.span(), &format!("{}: expected texts or numbers", key.get_ref()))
                })?
            }
            other => match scalar(other).filter(|_| takes_values) {
                Some(text) => vec![with(&text)],
                None => {
                    let expected = if takes_values { "a text, a number or a list" } else { "true or false" };
                    let message = format!("{}: expected {expected}", key.get_ref());
                    return Err(self.wrong(&value.span(), &message));
                }
            },
        };
        Ok(FileOption { id: argument.get_id().to_string(), arguments, span: key.span() })
    }

    /// Errors: the command does not take the option's value.
    fn check(
        &self,
        option: &FileOption,
        command: Command,
        before: impl Iterator<Item = OsString>,
    ) -> Result<(), String> {
        let Err(error) = command.try_get_matches_from(before.chain(option.arguments.iter().cloned())) else {
            return Ok(());
        };
        match error.kind() {
            // What it needs or excludes may stand elsewhere.
            ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict => Ok(()),
            _ => {
                let text = error.render().to_string();
                let line = text.lines().next().unwrap_or_default();
                Err(self.wrong(&option.span, line.trim_start_matches("error: ")))
            }
        }
    }
}

/// A text or a number as an argument has it.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        _ => None,
    }
}
