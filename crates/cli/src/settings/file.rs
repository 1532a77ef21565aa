//! The TOML file of `--config`.
//!
//! ```toml
//! device = "cuda"                   # options of all commands that have them, with `_` or `-`
//!
//! [serve]                           # options of one command
//! host = ["127.0.0.1", "::1"]
//!
//! [bench.serve]
//! concurrency = 64
//!
//! [models."qwen3:0.6b"]             # models of `serve`
//! model = "Qwen/Qwen3-0.6B-GGUF:Q8_0"
//! ```

use super::{Setting, check, options};
use clap::{ArgAction, Command};
use std::borrow::Cow;
use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The table that has the models of `serve`.
const MODELS: &str = "models";
/// Options whose values are paths from the file's own folder, where there is such a path.
const MODEL_OPTIONS: [&str; 2] = ["model", "draft"];
/// How alike a key and an option must be for a proposal.
const ALIKE: f64 = 0.7;

/// A key of a file.
pub(crate) type Key<'a> = Spanned<Cow<'a, str>>;

/// A file and its text, for errors that name the line.
pub(crate) struct File {
    path: PathBuf,
    text: String,
}

impl File {
    /// Errors: it cannot be read.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("could not read {}: {error}", path.display()))?;
        Ok(Self { path: path.to_owned(), text })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// An error with its place.
    pub(crate) fn wrong(&self, span: &Range<usize>, message: &str) -> String {
        let line = self.text[..span.start.min(self.text.len())].matches('\n').count() + 1;
        format!("{}:{line}: {message}", self.path.display())
    }

    fn table(&self) -> Result<Spanned<DeTable<'_>>, String> {
        DeTable::parse(&self.text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            self.wrong(&span, error.message())
        })
    }

    /// Whether it has tables of models.
    pub(crate) fn has_models(&self) -> bool {
        self.table().is_ok_and(|table| table.get_ref().iter().any(|(key, _)| key.get_ref() == MODELS))
    }

    /// The options of the command at `path`: those of its section, and those of the file's top.
    ///
    /// Errors: anything that is wrong with the file, but for its models.
    pub(crate) fn settings(
        &self,
        program: &Command,
        path: &[&str],
    ) -> Result<(Vec<Setting>, Vec<Setting>), String> {
        let (mut section, mut top) = (Vec::new(), Vec::new());
        let used = path.iter().try_fold(program, |command, name| command.find_subcommand(name));
        for (key, value) in self.table()?.get_ref() {
            match value.get_ref() {
                _ if key.get_ref() == MODELS => {}
                DeValue::Table(keys) => self.section(program, path, key, keys, &mut section)?,
                _ => match used.filter(|command| has(command, key.get_ref())) {
                    Some(command) => top.push(self.setting(command, key, value)?),
                    None => self.must_be_known(program, key)?,
                },
            }
        }
        Ok((section, top))
    }

    /// Reads a command's section, and those in it. Keeps what is for the command at `path`, from `outer` on.
    fn section(
        &self,
        outer: &Command,
        path: &[&str],
        key: &Key<'_>,
        keys: &DeTable<'_>,
        kept: &mut Vec<Setting>,
    ) -> Result<(), String> {
        let name: &str = key.get_ref();
        let Some(command) = outer.get_subcommands().find(|command| command.get_name() == name) else {
            let known: Vec<&str> =
                outer.get_subcommands().filter(|c| !c.is_hide_set()).map(Command::get_name).collect();
            let message = format!("there is no command {name:?}; there are {}", known.join(", "));
            return Err(self.wrong(&key.span(), &message));
        };
        let is_used = path.first() == Some(&name);
        for (key, value) in keys {
            match value.get_ref() {
                DeValue::Table(keys) if command.has_subcommands() => {
                    let path = if is_used { &path[1..] } else { &[] };
                    self.section(command, path, key, keys, kept)?;
                }
                _ => {
                    let setting = self.setting(command, key, value)?;
                    if is_used && path.len() == 1 {
                        kept.push(setting);
                    }
                }
            }
        }
        Ok(())
    }

    /// Errors: no command has the option.
    fn must_be_known(&self, program: &Command, key: &Key<'_>) -> Result<(), String> {
        let commands: Vec<&Command> =
            program.get_subcommands().flat_map(|c| std::iter::once(c).chain(c.get_subcommands())).collect();
        if commands.iter().any(|command| has(command, key.get_ref())) {
            return Ok(());
        }
        let known = commands.iter().flat_map(|command| options(command)).map(|(long, _)| long);
        let near = known.map(|long| (strsim::jaro(&spelled(key.get_ref()), long), long));
        let nearest = near.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(alike, _)| *alike > ALIKE);
        let proposal = nearest.map_or_else(
            || "the commands' --help lists them".to_owned(),
            |(_, long)| format!("did you mean {}?", long.replace('-', "_")),
        );
        Err(self.wrong(&key.span(), &format!("there is no option {:?}; {proposal}", key.get_ref())))
    }

    /// A key as the option that it stands for, with a value that the command takes.
    pub(crate) fn setting(
        &self,
        command: &Command,
        key: &Key<'_>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Setting, String> {
        let long = spelled(key.get_ref());
        let Some((_, argument)) = options(command).find(|(name, _)| *name == long) else {
            let known: Vec<String> = options(command).map(|(name, _)| name.replace('-', "_")).collect();
            let message =
                format!("there is no option {:?} here; there are {}", key.get_ref(), known.join(", "));
            return Err(self.wrong(&key.span(), &message));
        };
        let with = |text: String| {
            let beside = self.beside(&text).filter(|_| MODEL_OPTIONS.contains(&&*long));
            let mut argument = OsString::from(format!("--{long}="));
            argument.push(beside.map_or_else(|| text.into(), PathBuf::into_os_string));
            argument
        };
        let action = argument.get_action();
        let arguments = match (value.get_ref(), action.takes_values()) {
            (DeValue::Boolean(is_set), false) if !matches!(action, ArgAction::Count) => {
                is_set.then(|| OsString::from(format!("--{long}"))).into_iter().collect()
            }
            (DeValue::Integer(n), false) if matches!(action, ArgAction::Count) => {
                let n = n.to_string().parse::<u8>().map_err(|_| {
                    self.wrong(&value.span(), &format!("{}: expected a small number", key.get_ref()))
                })?;
                vec![OsString::from(format!("--{long}")); n.into()]
            }
            (DeValue::Array(values), true) => {
                let texts = values.iter().map(|value| Some(with(scalar(value.get_ref())?)));
                texts.collect::<Option<Vec<_>>>().ok_or_else(|| {
                    self.wrong(&value.span(), &format!("{}: expected texts or numbers", key.get_ref()))
                })?
            }
            (other, takes_values) => match scalar(other).filter(|_| takes_values) {
                Some(text) => vec![with(text)],
                None => {
                    let expected = match action {
                        ArgAction::Count => "a number",
                        _ if takes_values => "a text, a number or a list",
                        _ => "true or false",
                    };
                    let message = format!("{}: expected {expected}", key.get_ref());
                    return Err(self.wrong(&value.span(), &message));
                }
            },
        };
        let setting = Setting { id: argument.get_id().to_string(), arguments };
        check(command, &setting).map_err(|why| self.wrong(&key.span(), &why))?;
        Ok(setting)
    }

    /// What a relative path names in the file's own folder, if anything. What cannot be looked at, as on a disk that fails, counts as there:
    /// otherwise the path could be taken for the name of another model.
    pub(crate) fn beside(&self, path: &str) -> Option<PathBuf> {
        use std::io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
        let beside = self.path.parent().unwrap_or(Path::new("")).join(path);
        let is_there = match beside.metadata() {
            Ok(_) => true,
            Err(error) => !matches!(error.kind(), NotFound | NotADirectory | InvalidFilename),
        };
        (Path::new(path).is_relative() && is_there).then_some(beside)
    }

    /// Calls `read` with each model's name and table, as they stand in the file.
    ///
    /// Errors: the file's models are no tables; those of `read`.
    pub(crate) fn models<T>(
        &self,
        mut read: impl FnMut(&str, &Spanned<DeValue<'_>>) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let table = self.table()?;
        let Some((_, models)) = table.get_ref().iter().find(|(key, _)| key.get_ref() == MODELS) else {
            return Ok(Vec::new());
        };
        let DeValue::Table(tables) = models.get_ref() else {
            return Err(self.wrong(&models.span(), "models must be tables: [models.NAME]"));
        };
        let mut tables: Vec<_> = tables.iter().collect();
        tables.sort_by_key(|(name, _)| name.span().start);
        tables.into_iter().map(|(name, table)| read(name.get_ref(), table)).collect()
    }
}

/// A key as the command line spells it.
fn spelled(key: &str) -> String {
    key.replace('_', "-")
}

fn has(command: &Command, key: &str) -> bool {
    options(command).any(|(long, _)| long == spelled(key))
}

/// A text or a number as an argument has it.
pub(crate) fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        _ => None,
    }
}
