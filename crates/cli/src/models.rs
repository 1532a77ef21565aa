//! `realizar list` and `realizar rm`: the models in the cache that all Hugging Face programs share.

use crate::model_arg::hub_model;
use crate::output;
use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::HumanBytes;
use realizar::hub::{self, Hub, HubModel};
use serde::Serialize;
use std::collections::HashSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// What `list` calls it: OWNER/NAME with all its files, OWNER/NAME:FILE-OR-QUANT, or a short name.
    #[arg(value_name = "MODEL", required = true, value_parser = hub_model)]
    models: Vec<HubModel>,
}

#[derive(Serialize)]
struct Report {
    models: Vec<Model>,
}

/// A model of the cache: a GGUF file with all its parts, or the safetensors of a repository.
#[derive(Serialize)]
struct Model {
    /// As every command takes it.
    name: String,
    bytes: u64,
    /// When its newest file came, in seconds since 1970.
    modified: u64,
    #[serde(skip)]
    files: Vec<PathBuf>,
}

/// The models of the cache, by name.
fn all() -> Result<Vec<Model>> {
    let mut models = Vec::new();
    for repository in repositories()? {
        models.extend(models_of(&repository)?);
    }
    models.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(models)
}

/// The models of the cache: their names, and the file or folder of each.
pub(crate) fn cached() -> Result<Vec<(String, PathBuf)>> {
    let place = |model: Model| {
        let first = model.files.into_iter().next()?;
        let is_file = first.extension().is_some_and(|extension| extension == "gguf");
        let path = if is_file { first } else { first.parent()?.to_owned() };
        Some((model.name, path))
    };
    Ok(all()?.into_iter().filter_map(place).collect())
}

pub(crate) fn list(args: &ListArgs) -> Result<()> {
    let models = all()?;
    if args.json {
        return output::print_json(&Report { models });
    }
    let width = models.iter().map(|m| m.name.len()).max().unwrap_or(0).max(4);
    let mut text = format!("{:width$}  {:>10}  MODIFIED\n", "NAME", "SIZE");
    for m in &models {
        let age = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(m.modified);
        let age = indicatif::HumanDuration(age.elapsed().unwrap_or_default());
        let size = HumanBytes(m.bytes).to_string();
        writeln!(text, "{:width$}  {size:>10}  {age} ago", m.name)?;
    }
    output::print(text)
}

pub(crate) fn remove(args: &RemoveArgs) -> Result<()> {
    args.models.iter().try_for_each(remove_one)
}

/// Removes a model's files; the whole repository where nothing of it is left or it was named alone.
fn remove_one(model: &HubModel) -> Result<()> {
    let could_not = || format!("could not remove {model}");
    let repository = repositories()?
        .into_iter()
        .find(|r| r.name == model.repo)
        .with_context(|| format!("the cache has no {}; realizar list shows what it has", model.repo))?;
    let models = models_of(&repository)?;
    let Some(wanted) = &model.file else {
        return std::fs::remove_dir_all(&repository.folder).with_context(could_not);
    };
    let names: Vec<&str> =
        models.iter().filter_map(|m| m.name.split_once(':')).map(|(_, file)| file).collect();
    let chosen = hub::file_of(&names, wanted).with_context(could_not)?;
    let (removed, kept): (Vec<&Model>, Vec<&Model>) =
        models.iter().partition(|m| m.name.split_once(':').is_some_and(|(_, file)| file == chosen));
    if kept.is_empty() {
        return std::fs::remove_dir_all(&repository.folder).with_context(could_not);
    }
    let links: HashSet<&Path> = removed.iter().flat_map(|m| &m.files).map(PathBuf::as_path).collect();
    let blobs: HashSet<PathBuf> = links.iter().filter_map(|link| link.canonicalize().ok()).collect();
    for link in &links {
        std::fs::remove_file(link).with_context(could_not)?;
    }
    // Another snapshot may share a file.
    let mut shared = Vec::new();
    files_below(&repository.folder.join("snapshots"), &mut shared)?;
    let shared: HashSet<PathBuf> = shared.iter().filter_map(|link| link.canonicalize().ok()).collect();
    for blob in blobs.difference(&shared).filter(|blob| blob.exists()) {
        std::fs::remove_file(blob).with_context(could_not)?;
    }
    Ok(())
}

/// A repository in the cache.
struct Repository {
    /// `OWNER/NAME`.
    name: String,
    folder: PathBuf,
}

fn repositories() -> Result<Vec<Repository>> {
    let hub = Hub::from_env()?;
    let cache = hub.cache_folder();
    let entries = match std::fs::read_dir(cache) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("could not read {}", cache.display()))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let folder = entry.with_context(|| format!("could not read {}", cache.display()))?.path();
        let name =
            folder.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("models--"));
        if let Some((owner, name)) = name.and_then(|name| name.split_once("--")) {
            found.push(Repository { name: format!("{owner}/{name}"), folder });
        }
    }
    Ok(found)
}

/// The models that are whole in the newest snapshot of a repository.
fn models_of(repository: &Repository) -> Result<Vec<Model>> {
    let Ok(commit) = std::fs::read_to_string(repository.folder.join("refs").join("main")) else {
        return Ok(Vec::new());
    };
    let commit = commit.trim();
    if commit.is_empty() || !commit.bytes().all(|b| b.is_ascii_alphanumeric()) {
        bail!("{} names a snapshot {commit:?}", repository.folder.join("refs/main").display());
    }
    let snapshot = repository.folder.join("snapshots").join(commit);
    let whole = hub::models_in(&snapshot)?;
    Ok(whole
        .into_iter()
        .map(|(file, names)| {
            let files: Vec<PathBuf> = names.iter().map(|name| snapshot.join(name)).collect();
            let metadata: Vec<_> = files.iter().filter_map(|f| std::fs::metadata(f).ok()).collect();
            let modified = metadata.iter().filter_map(|m| m.modified().ok()).max();
            let modified = modified.and_then(|t| t.duration_since(SystemTime::UNIX_EPOCH).ok());
            Model {
                name: file
                    .map_or_else(|| repository.name.clone(), |file| format!("{}:{file}", repository.name)),
                bytes: metadata.iter().map(std::fs::Metadata::len).sum(),
                modified: modified.unwrap_or_default().as_secs(),
                files,
            }
        })
        .collect())
}

fn files_below(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("could not read {}", folder.display()))? {
        let path = entry?.path();
        match path.is_dir() {
            true => files_below(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}
