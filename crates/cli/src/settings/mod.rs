//! Options from variables of the environment and from the file of `--config`.
//!
//! Both become arguments before the command line is read for good, so that an option is defined, checked and given its default in one
//! place. The command line goes before variables, variables go before the file, and a command's section of the file goes before its top.

mod file;

pub(crate) use file::{File, scalar};

use crate::command::Cli;
use crate::model_arg::ModelArg;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory};
use std::ffi::OsString;
use std::path::PathBuf;

/// Options that only the command line has.
const ON_THE_COMMAND_LINE: [&str; 3] = ["help", "version", "config"];
/// Arguments of `serve` that name its one model.
const OF_ONE_MODEL: [&str; 3] = ["named", "model", "served_name"];

/// An option and the arguments that stand for it: none for one that is switched off.
pub(crate) struct Setting {
    /// clap's name of it.
    pub(crate) id: String,
    pub(crate) arguments: Vec<OsString>,
}

/// The arguments of the process, with those that variables and the file say and the command line does not. `variable`: the value of a
/// variable.
///
/// Errors: what is wrong with a variable or the file.
pub(crate) fn complete(
    mut arguments: Vec<OsString>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Vec<OsString>, String> {
    // What is wrong with the command line is said when it is read for good.
    let Ok(matches) = Cli::command().ignore_errors(true).try_get_matches_from(&arguments) else {
        return Ok(arguments);
    };
    let mut program = Cli::command();
    program.build();
    let (mut command, mut given, mut path) = (&program, &matches, Vec::new());
    while let Some((name, inner)) = given.subcommand() {
        let Some(found) = command.find_subcommand(name) else { break };
        (command, given) = (found, inner);
        path.push(name);
    }
    let (Some(place), false) = (behind(&program, &path, &arguments), path.is_empty()) else {
        return Ok(arguments);
    };
    let mut chosen = Chosen { command, taken: taken(command, given), arguments: Vec::new() };
    let mut config = given.get_one::<PathBuf>("config").cloned();
    if config.is_none()
        && let Some(path) = variable("REALIZAR_CONFIG")
    {
        chosen.arguments.push(OsString::from(format!("--config={path}")));
        config = Some(PathBuf::from(path));
    }
    let mut levels = vec![of_variables(command, variable)?];
    if let Some(path_of_file) = &config {
        let file = File::read(path_of_file)?;
        let (section, top) = file.settings(&program, &path)?;
        if path == ["serve"] && file.has_models() {
            chosen.exclude_one_model(&file, &section)?;
        }
        levels.extend([section, top]);
    }
    levels.into_iter().for_each(|level| chosen.add(level));
    drop(arguments.splice(place..place, chosen.arguments));
    Ok(arguments)
}

/// What of a command is decided.
struct Chosen<'a> {
    command: &'a Command,
    taken: Vec<&'a Arg>,
    arguments: Vec<OsString>,
}

impl Chosen<'_> {
    /// Of a server whose models are in a file: what names one model for other commands does not count.
    ///
    /// Errors: this command is told to serve one model.
    fn exclude_one_model(&mut self, file: &File, section: &[Setting]) -> Result<(), String> {
        let is_told = self.taken.iter().any(|arg| OF_ONE_MODEL.contains(&arg.get_id().as_str()));
        if is_told || section.iter().any(|setting| OF_ONE_MODEL.contains(&&*setting.id)) {
            return Err(format!(
                "{} has tables of models, all of which --config serves: leave out MODEL, --model and --served-name",
                file.path().display()
            ));
        }
        let of_one = self.command.get_arguments().filter(|arg| OF_ONE_MODEL.contains(&arg.get_id().as_str()));
        self.taken.extend(of_one);
        Ok(())
    }

    /// Adds settings that come after all that is there; what contradicts an earlier choice is left out.
    fn add(&mut self, level: Vec<Setting>) {
        // Of two settings of one level that exclude each other, clap tells.
        let before = self.taken.clone();
        for setting in level {
            let Some(argument) = self.command.get_arguments().find(|arg| *arg.get_id() == setting.id) else {
                continue;
            };
            let excludes = |a: &Arg, b: &Arg| self.command.get_arg_conflicts_with(a).contains(&b);
            if before.iter().any(|arg| *arg == argument || excludes(arg, argument) || excludes(argument, arg))
            {
                continue;
            }
            self.taken.push(argument);
            self.arguments.extend(setting.arguments);
        }
    }
}

/// The arguments that the command line has.
fn taken<'a>(command: &'a Command, given: &ArgMatches) -> Vec<&'a Arg> {
    // The first word of `run` may be a model.
    let mut words = given.try_get_many::<String>("words").ok().flatten();
    let names_model =
        words.as_mut().and_then(|words| words.next()).is_some_and(|word| ModelArg::is_meant(word));
    let is_taken = |arg: &&Arg| match arg.get_id().as_str() {
        "help" | "version" => false,
        "model" if names_model => true,
        id => given.value_source(id) == Some(ValueSource::CommandLine),
    };
    command.get_arguments().filter(is_taken).collect()
}

/// The place behind the names of the command and of its subcommand.
fn behind(program: &Command, path: &[&str], arguments: &[OsString]) -> Option<usize> {
    let (mut command, mut at) = (program, 0);
    for name in path {
        let takes_next = |argument: &OsString| {
            let long = argument.to_str().and_then(|text| text.strip_prefix("--"));
            let option =
                command.get_arguments().find(|arg| arg.get_long().is_some() && arg.get_long() == long);
            option.is_some_and(|arg| arg.get_action().takes_values())
        };
        let is_name = |at: usize| {
            let found = command.find_subcommand(&arguments[at]);
            found.is_some_and(|found| found.get_name() == *name) && !takes_next(&arguments[at - 1])
        };
        at = (at + 1..arguments.len()).find(|at| is_name(*at))?;
        command = command.find_subcommand(name)?;
    }
    Some(at + 1)
}

/// The options that variables and files can set.
pub(crate) fn options(command: &Command) -> impl Iterator<Item = (&str, &Arg)> {
    let named = command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg)));
    named.filter(|(long, arg)| !arg.is_hide_set() && !ON_THE_COMMAND_LINE.contains(long))
}

fn of_variables(
    command: &Command,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Vec<Setting>, String> {
    let mut settings = Vec::new();
    for (long, option) in options(command) {
        let name = format!("REALIZAR_{}", long.to_uppercase().replace('-', "_"));
        let Some(text) = variable(&name) else { continue };
        // Kubernetes gives this variable to every container beside a service that is called realizar.
        if name == "REALIZAR_PORT" && text.starts_with("tcp://") {
            continue;
        }
        let arguments = match option.get_action() {
            action if action.takes_values() => vec![OsString::from(format!("--{long}={text}"))],
            ArgAction::Count => {
                let n = text
                    .parse::<u8>()
                    .map_err(|_| format!("{name} is {text:?} and must be a small number"))?;
                vec![OsString::from(format!("--{long}")); n.into()]
            }
            _ => match &*text.to_ascii_lowercase() {
                "1" | "true" | "yes" | "on" => vec![OsString::from(format!("--{long}"))],
                "0" | "false" | "no" | "off" => Vec::new(),
                _ => return Err(format!("{name} is {text:?} and must be true or false")),
            },
        };
        let setting = Setting { id: option.get_id().to_string(), arguments };
        check(command, &setting).map_err(|why| format!("{name}: {why}"))?;
        settings.push(setting);
    }
    Ok(settings)
}

/// Errors: the command does not take the option's value.
fn check(command: &Command, setting: &Setting) -> Result<(), String> {
    let alone = command.clone().no_binary_name(true).try_get_matches_from(&setting.arguments);
    let Err(error) = alone else { return Ok(()) };
    match error.kind() {
        // What it needs or excludes may stand elsewhere.
        ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict => Ok(()),
        _ => {
            let text = error.render().to_string();
            Err(text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(arguments: &str, variables: &[(&str, &str)]) -> Result<String, String> {
        let arguments = arguments.split(' ').map(OsString::from).collect();
        let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let completed = complete(arguments, variable)?;
        Ok(completed.iter().map(|argument| argument.to_str().expect("text")).collect::<Vec<_>>().join(" "))
    }

    #[track_caller]
    fn becomes(arguments: &str, variables: &[(&str, &str)], expected: &str) {
        assert_eq!(completed(arguments, variables).as_deref(), Ok(expected));
    }

    #[test]
    fn variables_stand_behind_the_command_s_name() {
        becomes("realizar serve demo", &[("REALIZAR_PORT", "9")], "realizar serve --port=9 demo");
        becomes("realizar serve -- demo", &[("REALIZAR_PORT", "9")], "realizar serve --port=9 -- demo");
        becomes("realizar -v show demo", &[("REALIZAR_CTX", "9")], "realizar -v show --ctx=9 demo");
        becomes(
            "realizar bench serve",
            &[("REALIZAR_SEED", "5"), ("REALIZAR_GEN", "1")],
            "realizar bench serve --seed=5",
        );
        becomes("realizar run x", &[("REALIZAR_VERBOSE", "2")], "realizar run --verbose --verbose x");
        for unchanged in ["realizar", "realizar serve --help", "realizar nonsense"] {
            becomes(unchanged, &[("REALIZAR_PORT", "9")], unchanged);
        }
    }

    #[test]
    fn the_command_line_goes_before_variables() {
        becomes("realizar serve --port 8", &[("REALIZAR_PORT", "9")], "realizar serve --port 8");
        // An option that excludes the variable's, too.
        becomes(
            "realizar run --draft demo x",
            &[("REALIZAR_SPECULATE", "ngram")],
            "realizar run --draft demo x",
        );
        becomes("realizar run demo x", &[("REALIZAR_MODEL", "qwen3")], "realizar run demo x");
        becomes("realizar run x y", &[("REALIZAR_MODEL", "qwen3")], "realizar run --model=qwen3 x y");
        becomes("realizar inspect demo", &[("REALIZAR_MODEL", "qwen3")], "realizar inspect demo");
        // What it needs on the command line may come from a variable.
        becomes(
            "realizar serve --salt-by-key",
            &[("REALIZAR_API_KEY", "k")],
            "realizar serve --api-key=k --salt-by-key",
        );
    }

    #[test]
    fn switches_are_on_or_off() {
        for (value, expected) in [("yes", "realizar run --exact x"), ("0", "realizar run x")] {
            becomes("realizar run x", &[("REALIZAR_EXACT", value)], expected);
        }
        let wrong = |name, value| completed("realizar serve", &[(name, value)]).expect_err("it is wrong");
        assert_eq!(wrong("REALIZAR_EXACT", "maybe"), "REALIZAR_EXACT is \"maybe\" and must be true or false");
        let error = wrong("REALIZAR_MAX_SEQS", "0");
        assert!(error.starts_with("REALIZAR_MAX_SEQS: ") && error.contains("at least 1"), "{error}");
    }

    #[test]
    fn what_kubernetes_calls_a_port_is_none() {
        becomes("realizar serve", &[("REALIZAR_PORT", "tcp://10.0.0.1:80")], "realizar serve");
    }
}
