//! Servers with several models: where the models come from, and how one of them is loaded beside others.

use super::file::ModelTable;
use super::model::{ModelOptions, Ready, facts};
use super::positive;
use crate::args::ModelPlace;
use crate::model_arg::ModelArg;
use crate::models;
use anyhow::{Context, Result, anyhow, bail};
use clap::{ArgMatches, Args, CommandFactory, Parser, ValueHint};
use realizar_engine::load::{self, Device};
use realizar_server::{
    KeepAlive, LoadError, LoadedModel, ModelEntry, ModelFacts, ModelLimits, ModelLoader, Models,
};
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Models that share a device unless --max-loaded says another number.
const DEFAULT_SHARE: usize = 4;

/// Where several models come from, and how long each stays.
#[derive(Debug, Args)]
#[command(next_help_heading = "Several models")]
pub(super) struct SeveralOptions {
    /// Serves each model in this folder and those below it, under the name of its file or folder.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with_all = ["named", "model"])]
    models_dir: Option<PathBuf>,
    /// Serves each model of the Hugging Face cache, under the name by which `list` shows it.
    #[arg(long, conflicts_with_all = ["named", "model"])]
    hub_cache: bool,
    /// Models that are loaded at the same time at most; by default as many as memory holds.
    #[arg(long, value_name = "N", value_parser = positive)]
    max_loaded: Option<usize>,
    /// How long a model stays loaded after its last request, such as 300, 5m or 1h30m; by default until its room is needed.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    keep_alive: Option<KeepAlive>,
}

/// The options of one model alone.
#[derive(Parser)]
#[command(no_binary_name = true, args_override_self = true)]
struct OneModel {
    #[command(flatten)]
    options: ModelOptions,
}

/// The options that a model's table in a file may have.
pub(super) fn model_command() -> clap::Command {
    OneModel::command()
}

/// A model that is loaded when somebody asks for it.
struct Spec {
    names: Vec<String>,
    model: ModelArg,
    options: ModelOptions,
    keep_alive: Option<KeepAlive>,
    preload: bool,
}

impl SeveralOptions {
    /// Whether models come and go.
    pub(super) fn is_asked_for(&self) -> bool {
        self.models_dir.is_some() || self.hub_cache || self.keep_alive.is_some()
    }

    /// The models, and how many they are. `tables`: those of a file; `names`: of the model that is named on the command line; `given`:
    /// the command's arguments.
    pub(super) fn models(
        &self,
        tables: Vec<ModelTable>,
        place: &ModelPlace,
        names: Vec<String>,
        given: &ArgMatches,
        stall_timeout: Duration,
    ) -> Result<(Models, usize)> {
        let shared = given_options(given);
        let specs = self.specs(tables, place, names, &shared)?;
        let limits =
            ModelLimits { max_loaded: self.max_loaded, keep_alive: self.keep_alive.unwrap_or_default() };
        let entries = specs.iter().map(Spec::entry).collect::<Result<Vec<_>>>()?;
        let preload: Vec<String> = specs.iter().filter(|s| s.preload).map(|s| s.names[0].clone()).collect();
        let n = specs.len();
        let share = self.max_loaded.unwrap_or(DEFAULT_SHARE).min(n);
        let specs = specs.into_iter().map(|spec| (spec.names[0].clone(), spec)).collect();
        let models = Models::many(entries, Arc::new(Loader { specs, stall_timeout, share }), limits)?;
        for name in preload {
            models.load(&name).map_err(|error| anyhow!("could not load {name}: {error}"))?;
        }
        Ok((models, n))
    }

    fn specs(
        &self,
        tables: Vec<ModelTable>,
        place: &ModelPlace,
        names: Vec<String>,
        shared: &[OsString],
    ) -> Result<Vec<Spec>> {
        let options = OneModel::parse_from(shared).options;
        let spec = |names: Vec<String>, model: ModelArg| Spec {
            names,
            model,
            options: options.clone(),
            keep_alive: None,
            preload: false,
        };
        let names_one = tables.is_empty() && self.models_dir.is_none() && !self.hub_cache;
        let mut specs: Vec<Spec> = tables.into_iter().map(|table| Spec::of_table(table, shared)).collect();
        let mut found = Vec::new();
        if let Some(folder) = &self.models_dir {
            found.extend(models_in(folder)?);
        }
        if self.hub_cache {
            found.extend(models::cached()?);
        }
        let found = found.into_iter().map(|(name, path)| spec(vec![name], ModelArg::Path(path)));
        // What was found by itself may be something else than a language model.
        specs.extend(found.filter(|spec| match spec.entry() {
            Ok(_) => true,
            Err(why) => {
                tracing::warn!(model = spec.names[0], "left out: {why:#}");
                false
            }
        }));
        if names_one {
            specs.push(Spec { preload: true, ..spec(names, place.get().clone()) });
        }
        if specs.is_empty() {
            bail!("there is no model to serve in what --models-dir and --hub-cache name");
        }
        Ok(specs)
    }
}

impl Spec {
    fn of_table(table: ModelTable, shared: &[OsString]) -> Self {
        let ModelTable { names, model, keep_alive, preload, arguments, off } = table;
        let shared = shared.iter().filter(|argument| !off.contains(argument)).cloned();
        let options = OneModel::parse_from(shared.chain(arguments)).options;
        Self { names, model, options, keep_alive, preload }
    }

    /// What is known without loading it; of a model on the hub, which may have to be downloaded first, nothing.
    ///
    /// Errors: it cannot be opened.
    fn entry(&self) -> Result<ModelEntry> {
        let (facts, context) = match &self.model {
            ModelArg::Hub(_) => (ModelFacts::default(), self.options.ctx()),
            ModelArg::Demo | ModelArg::Path(_) => {
                let source =
                    self.model.open().with_context(|| format!("could not open {}", self.names[0]))?;
                let config = realizar_model::arch::configure(&*source)
                    .with_context(|| format!("could not use {}", self.names[0]))?;
                (facts(&*source), self.options.ctx().or(Some(config.context_length)))
            }
        };
        Ok(ModelEntry { names: self.names.clone(), facts, context, keep_alive: self.keep_alive })
    }
}

/// The options of models among a command's arguments.
fn given_options(given: &ArgMatches) -> Vec<OsString> {
    let mut arguments = Vec::new();
    for argument in OneModel::command().get_arguments() {
        let (id, Some(long)) = (argument.get_id().as_str(), argument.get_long()) else { continue };
        if given.value_source(id) != Some(clap::parser::ValueSource::CommandLine) {
            continue;
        }
        match argument.get_action().takes_values() {
            false => arguments.push(format!("--{long}").into()),
            true => {
                for value in given.get_raw(id).into_iter().flatten() {
                    let mut option = OsString::from(format!("--{long}="));
                    option.push(value);
                    arguments.push(option);
                }
            }
        }
    }
    arguments
}

/// The models in a folder and those below it, by the names of their files or folders.
fn models_in(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("could not read {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let name = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            match path.join("config.json").exists() {
                true => found.push((name(path.file_name()), path)),
                false => found.extend(models_in(&path)?),
            }
        } else if path.extension().is_some_and(|extension| extension == "gguf") {
            let stem = name(path.file_stem());
            // The first part of a split file names all, and a projector of images is no model.
            match stem.rsplit_once("-of-").and_then(|(start, _)| start.rsplit_once('-')) {
                _ if stem.starts_with("mmproj") => {}
                Some((start, part)) if part.bytes().all(|b| b.is_ascii_digit()) => {
                    if part.parse() == Ok(1u32) {
                        found.push((start.to_owned(), path));
                    }
                }
                _ => found.push((stem, path)),
            }
        }
    }
    Ok(found)
}

/// Loads models by their names.
struct Loader {
    specs: HashMap<String, Spec>,
    stall_timeout: Duration,
    /// Models that share what memory is left for caches.
    share: usize,
}

impl ModelLoader for Loader {
    fn load(&self, name: &str, alone: bool) -> Result<LoadedModel, LoadError> {
        let spec = self.specs.get(name);
        let spec = spec.ok_or_else(|| LoadError::Failed("nobody knows where it is".to_owned()))?;
        let ready = self.load_beside(spec, alone).map_err(|error| match is_lack_of_memory(&error) {
            true => LoadError::Memory(format!("{error:#}")),
            false => LoadError::Failed(format!("{error:#}")),
        })?;
        tracing::info!(name, "{}", ready.about.join(", "));
        Ok(ready.model)
    }
}

impl Loader {
    /// `alone`: as of [`ModelLoader::load`].
    fn load_beside(&self, spec: &Spec, alone: bool) -> Result<Ready> {
        let load = |device| spec.options.load(&spec.model, self.stall_timeout, self.share, device);
        if alone {
            return load(None);
        }
        let options = spec.options.load_options();
        if options.device == Device::Auto {
            // A GPU that others fill is no reason to run on the CPU: they can be unloaded.
            match load(Some(Device::Cuda((0..options.tp).collect()))) {
                Err(error) if !is_lack_of_memory(&error) => tracing::info!("running on the CPU: {error:#}"),
                done => return done,
            }
            return load(Some(Device::Cpu));
        }
        load(None)
    }
}

fn is_lack_of_memory(error: &anyhow::Error) -> bool {
    let says_so = |cause: &(dyn std::error::Error + 'static)| {
        matches!(cause.downcast_ref(), Some(load::LoadError::Memory { .. }))
    };
    error.chain().any(says_so)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_one_model_are_well_formed() {
        OneModel::command().debug_assert();
    }

    #[test]
    fn a_model_is_deterministic_by_its_table_or_by_the_command() {
        let file = std::env::temp_dir().join(format!("realizar-tables-{}.toml", std::process::id()));
        let tables = "[models.a]\nmodel = \"demo\"\ndeterministic = true\n[models.b]\nmodel = \"demo\"\n\
                      [models.c]\nmodel = \"demo\"\ndeterministic = false\n";
        std::fs::write(&file, tables).expect("a file");
        let deterministic = |shared: &[&str]| {
            let shared: Vec<OsString> = shared.iter().map(OsString::from).collect();
            let tables = super::super::file::models(&file).expect("tables");
            let options = |table| Spec::of_table(table, &shared).options.load_options();
            let options: Vec<_> = tables.into_iter().map(options).collect();
            assert!(options.iter().all(|options| !options.exact));
            options.iter().map(|options| options.deterministic).collect::<Vec<_>>()
        };
        assert_eq!(deterministic(&[]), [true, false, false]);
        assert_eq!(deterministic(&["--deterministic"]), [true, true, false]);
        std::fs::remove_file(&file).expect("it was there");
        assert!(OneModel::try_parse_from(["--deterministic", "--exact"]).is_err());
    }

    #[test]
    fn a_folder_s_models_have_the_names_of_their_files() {
        let folder = std::env::temp_dir().join(format!("realizar-models-in-{}", std::process::id()));
        let files = [
            "a.gguf",
            "b-00001-of-00002.gguf",
            "b-00002-of-00002.gguf",
            "b-Q4_K-of-x.gguf",
            "mmproj-a.gguf",
            "notes.txt",
            "owner/c/config.json",
            "owner/c/part.gguf",
            "owner/d.gguf",
        ];
        for file in files {
            let path = folder.join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, "").expect("a file");
        }
        let found = models_in(&folder).expect("models");
        std::fs::remove_dir_all(&folder).expect("it was there");
        let place = |(name, path): (String, PathBuf)| {
            (name, path.strip_prefix(&folder).expect("below it").to_string_lossy().into_owned())
        };
        let found: Vec<(String, String)> = found.into_iter().map(place).collect();
        let expected = [
            ("a", "a.gguf"),
            ("b", "b-00001-of-00002.gguf"),
            ("b-Q4_K-of-x", "b-Q4_K-of-x.gguf"),
            ("c", "owner/c"),
            ("d", "owner/d.gguf"),
        ];
        assert_eq!(found, expected.map(|(name, path)| (name.to_owned(), path.to_owned())));
        assert!(models_in(&folder).is_err());
    }
}
