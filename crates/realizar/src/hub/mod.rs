//! Models of the Hugging Face hub, in the cache that all Hugging Face programs share.
//!
//! ```no_run
//! use realizar::Model;
//! use realizar::hub::Hub;
//!
//! let path = Hub::from_env()?.get(&"bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M".parse()?)?;
//! let model = Model::builder(path).context(4096).load()?;
//! # Ok::<(), realizar::Error>(())
//! ```

mod error;
mod files;
mod name;

pub use error::HubError;
pub use name::{HUB_HOSTS, HubModel, is_path};

use error::{Context, Result};
use files::{Files, INDEX, is_plain, models};
use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, CacheRepo, Repo};
use std::cell::Cell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// The hub, and what of it is on this machine.
pub struct Hub {
    endpoint: String,
    api: Api,
    cache: Cache,
    is_offline: bool,
    on_progress: Rc<dyn Fn(Download<'_>)>,
}

/// How far the download of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Download<'a> {
    /// The file's name in its repository.
    pub file: &'a str,
    /// Bytes that have come.
    pub done: u64,
    /// The file's size in bytes.
    pub total: u64,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("endpoint", &self.endpoint).field("cache", &self.cache.path()).finish()
    }
}

impl Hub {
    /// The hub as the variables say that Hugging Face's own programs read: `HF_HOME` (default `~/.cache/huggingface`) has the cache and the
    /// token that `hf auth login` saves, which `HF_TOKEN` overrules; `HF_ENDPOINT` is another server; with `HF_HUB_OFFLINE` only the cache
    /// is used.
    ///
    /// Errors: there is no home directory for the cache.
    pub fn from_env() -> Result<Self> {
        if environment("HF_HOME").is_none()
            && std::env::home_dir().is_none_or(|home| home.as_os_str().is_empty())
        {
            return Err(HubError::new("there is no home directory for the cache; set HF_HOME"));
        }
        let endpoint = environment("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let cache = Cache::from_env();
        let token = environment("HF_TOKEN").or_else(|| cache.token());
        let api = ApiBuilder::from_cache(cache.clone())
            .with_endpoint(endpoint.clone())
            .with_token(token)
            .with_retries(3)
            .with_user_agent("realizar", env!("CARGO_PKG_VERSION"))
            .build()
            .context(|| "the hub's client cannot be made".into())?;
        let is_offline = environment("HF_HUB_OFFLINE")
            .is_some_and(|value| !matches!(value.as_str(), "0" | "false" | "no" | "off"));
        Ok(Self { endpoint, api, cache, is_offline, on_progress: Rc::new(|_| ()) })
    }

    /// Calls `listener` as files come: at the beginning and at the end of each, and between them.
    #[must_use = "the hub without a listener is gone"]
    pub fn on_progress(mut self, listener: impl Fn(Download<'_>) + 'static) -> Self {
        self.on_progress = Rc::new(listener);
        self
    }

    /// The folder of all repositories in the cache.
    pub fn cache_folder(&self) -> &Path {
        self.cache.path()
    }

    /// The path of a model in the cache, downloaded only where something of it is missing: of a GGUF file, or of the folder that holds
    /// safetensors.
    ///
    /// Errors: the hub cannot be reached, has no such repository or file, or does not permit access to it; the model's name could mean
    /// several files.
    pub fn get(&self, model: &HubModel) -> Result<PathBuf> {
        match self.cached(model) {
            Ok(path) => Ok(path),
            Err(reason) => {
                tracing::debug!("not in the cache: {}", reason.chain());
                self.update(model)
            }
        }
    }

    /// As [`Hub::get`], downloaded also where the hub has something newer.
    ///
    /// Errors: as [`Hub::get`].
    pub fn update(&self, model: &HubModel) -> Result<PathBuf> {
        if self.is_offline {
            return self
                .cached(model)
                .context(|| "HF_HUB_OFFLINE is set and the model is not in the cache".into());
        }
        let repository = self.repository(model);
        let info = match self.api.repo(repository.repo.clone()).info() {
            Ok(info) => info,
            Err(error) => {
                let unreachable = is_unreachable(&error);
                let error = self.explain(error, &model.repo);
                return match self.cached(model) {
                    Ok(path) if unreachable => {
                        tracing::warn!("{}; using what the cache has", error.chain());
                        Ok(path)
                    }
                    _ => Err(error),
                };
            }
        };
        if !info.sha.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(HubError::new(format!("the hub answered with a commit {:?}", info.sha)));
        }
        let snapshot = repository.cache.pointer_path(&info.sha);
        // A name goes into paths and addresses, so only plain ones count.
        let names: Vec<String> =
            info.siblings.into_iter().map(|f| f.rfilename).filter(|n| is_plain(n)).collect();
        let files = Files::choose(&names, model.file.as_deref(), |index| {
            self.download(&repository, &snapshot, index)?;
            read_index(&snapshot.join(index))
        })?;
        for name in &files.names {
            self.download(&repository, &snapshot, name)?;
        }
        Ok(snapshot.join(files.open))
    }

    fn repository(&self, model: &HubModel) -> Repository {
        let repo = Repo::model(model.repo.clone());
        let folder = self.cache.path().join(repo.folder_name());
        Repository { folder, cache: self.cache.repo(repo.clone()), repo }
    }

    /// The model from the cache alone. Errors: some file of it is not there.
    fn cached(&self, model: &HubModel) -> Result<PathBuf> {
        let repository = self.repository(model);
        let main = repository.folder.join("refs").join("main");
        let commit = std::fs::read_to_string(&main).context(|| format!("{} is not there", main.display()))?;
        let snapshot = repository.cache.pointer_path(commit.trim());
        let mut names = Vec::new();
        list(&snapshot, "", &mut names)?;
        let files = Files::choose(&names, model.file.as_deref(), |index| read_index(&snapshot.join(index)))?;
        match files.names.iter().find(|name| !snapshot.join(name).exists()) {
            Some(missing) => Err(HubError::new(format!("{missing} is not in the cache"))),
            None => Ok(snapshot.join(files.open)),
        }
    }

    fn download(&self, repository: &Repository, snapshot: &Path, name: &str) -> Result<()> {
        let target = snapshot.join(name);
        if target.exists() {
            return Ok(());
        }
        let api = self.api.repo(repository.repo.clone());
        let size = Rc::new(Cell::new(0));
        let progress = || Progress {
            file: name.to_owned(),
            done: 0,
            size: size.clone(),
            listener: self.on_progress.clone(),
        };
        let download = || api.download_with_progress(name, progress());
        let path = match download() {
            // What an earlier attempt left is not the beginning of this file, or all of it.
            Err(ApiError::RequestError(e)) if matches!(*e, ureq::Error::StatusCode(416)) => {
                repository.forget_partial_downloads()?;
                download()
            }
            Err(ApiError::InvalidResume) => {
                repository.forget_partial_downloads()?;
                download()
            }
            other => other,
        };
        let path = path.map_err(|e| self.explain(e, name))?;
        let length = std::fs::metadata(&path).context(|| format!("could not read {}", path.display()))?.len();
        if length != size.get() {
            // The blob first: without it the link leads nowhere.
            if let Ok(blob) = path.canonicalize() {
                drop(std::fs::remove_file(blob));
            }
            drop(std::fs::remove_file(&path));
            let size = size.get();
            return Err(HubError::new(format!("{name} has {size} bytes, but only {length} came")));
        }
        if path != target {
            let url = repository.repo.url();
            return Err(HubError::new(format!("{url} changed while it was being downloaded; try again")));
        }
        Ok(())
    }

    /// What a person can do about an error of the hub.
    fn explain(&self, error: ApiError, what: &str) -> HubError {
        let endpoint = &self.endpoint;
        let status = match &error {
            ApiError::RequestError(e) => match **e {
                ureq::Error::StatusCode(status) => Some(status),
                _ => None,
            },
            _ => None,
        };
        match status {
            Some(401 | 403) => HubError::new(format!(
                "{endpoint} does not let us have {what}; it may be private or ask for consent: set HF_TOKEN"
            )),
            Some(404) => HubError::new(format!("{endpoint} has no {what}")),
            Some(429) => HubError::new(format!("{endpoint} asks us to wait before the next request")),
            Some(status) => HubError::new(format!("{endpoint} answered {what} with status {status}")),
            None => HubError::because(format!("could not get {what} from {endpoint}"), error),
        }
    }
}

/// The models that are whole in a snapshot: the file that names each, or none for safetensors, and all its files.
///
/// Errors: the folder or an index in it cannot be read.
pub fn models_in(snapshot: &Path) -> Result<Vec<(Option<String>, Vec<String>)>> {
    let mut names = Vec::new();
    list(snapshot, "", &mut names)?;
    let ggufs = models(&names).into_iter().map(|file| (Some(file.to_owned()), Files::gguf(file).names));
    let mut found: Vec<_> = ggufs.collect();
    if names.iter().any(|name| name == "model.safetensors" || name == INDEX) {
        let files = Files::choose(&names, None, |index| read_index(&snapshot.join(index)))?;
        found.push((None, files.names));
    }
    found.retain(|(_, files)| files.iter().all(|file| snapshot.join(file).exists()));
    Ok(found)
}

/// The one of a repository's GGUF models that `wanted` names, by its file or its type.
///
/// Errors: none or several could be meant.
pub fn file_of(names: &[&str], wanted: &str) -> Result<String> {
    if names.contains(&wanted) {
        return Ok(wanted.to_owned());
    }
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    Ok(Files::of_type(&names, wanted)?.open.to_string_lossy().into_owned())
}

/// One repository, here and there.
struct Repository {
    repo: Repo,
    /// Its folder in the cache.
    folder: PathBuf,
    cache: CacheRepo,
}

impl Repository {
    fn forget_partial_downloads(&self) -> Result<()> {
        let blobs = self.folder.join("blobs");
        let could_not_read = || format!("could not read {}", blobs.display());
        for entry in std::fs::read_dir(&blobs).context(could_not_read)? {
            let path = entry.context(could_not_read)?.path();
            if path.extension().is_some_and(|e| e == "part") {
                std::fs::remove_file(&path).context(|| format!("could not remove {}", path.display()))?;
            }
        }
        Ok(())
    }
}

/// A variable of the environment; one that is empty or not UTF-8 counts as absent.
#[expect(clippy::disallowed_methods, reason = "the variables of all Hugging Face programs")]
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether the hub could not be asked at all.
fn is_unreachable(error: &ApiError) -> bool {
    matches!(error, ApiError::RequestError(e) if !matches!(**e, ureq::Error::StatusCode(status) if status < 500))
}

/// Paths of all files below a folder, with `/` between their parts.
fn list(folder: &Path, prefix: &str, names: &mut Vec<String>) -> Result<()> {
    let could_not_read = || format!("could not read {}", folder.display());
    for entry in std::fs::read_dir(folder).context(could_not_read)? {
        let entry = entry.context(could_not_read)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = format!("{prefix}{name}");
        if entry.path().is_dir() {
            list(&entry.path(), &format!("{name}/"), names)?;
        } else if entry.path().exists() {
            names.push(name);
        }
    }
    names.sort();
    Ok(())
}

/// The shards that a safetensors index names.
fn read_index(path: &Path) -> Result<Vec<String>> {
    let name = path.display();
    let text = std::fs::read(path).context(|| format!("could not read {name}"))?;
    let index: serde_json::Value = serde_json::from_slice(&text).context(|| format!("{name} is not JSON"))?;
    let map = index["weight_map"].as_object();
    let map = map.ok_or_else(|| HubError::new(format!("{name} has no weight_map")))?;
    let mut shards: Vec<String> = map.values().filter_map(|v| v.as_str()).map(str::to_owned).collect();
    shards.sort();
    shards.dedup();
    match shards.iter().all(|s| is_plain(s)) {
        true => Ok(shards),
        false => Err(HubError::new(format!("{name} names files in a way we do not follow"))),
    }
}

/// Tells a listener of a download, and remembers how long the file should be.
struct Progress {
    file: String,
    done: u64,
    size: Rc<Cell<u64>>,
    listener: Rc<dyn Fn(Download<'_>)>,
}

impl Progress {
    fn tell(&self) {
        (self.listener)(Download { file: &self.file, done: self.done, total: self.size.get() });
    }
}

impl hf_hub::api::Progress for Progress {
    fn init(&mut self, size: usize, _: &str) {
        self.size.set(size as u64);
        self.done = 0;
        self.tell();
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        self.tell();
    }

    fn finish(&mut self) {
        self.done = self.size.get();
        self.tell();
    }
}
