//! Models of the Hugging Face hub: which files of a repository make a model, and how they get into the shared cache.

use crate::environment;
use crate::hub_model::HubModel;
use crate::progress::download_bar;
use anyhow::{Context, Result, anyhow, bail, ensure};
use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, CacheRepo, Repo};
use indicatif::ProgressBar;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// What a folder of safetensors may have beside its weights.
const COMPANIONS: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];
const INDEX: &str = "model.safetensors.index.json";

/// The model's path in the cache, downloaded only where something is missing.
pub(crate) fn find_or_pull(model: &HubModel) -> Result<PathBuf> {
    let hub = Hub::new(model)?;
    match hub.cached(model) {
        Ok(path) => Ok(path),
        Err(reason) => {
            tracing::debug!("not in the cache: {reason:#}");
            hub.pull(model)
        }
    }
}

/// The model's path in the cache, downloaded where something is missing or newer on the hub.
pub(crate) fn pull(model: &HubModel) -> Result<PathBuf> {
    Hub::new(model)?.pull(model)
}

/// The folder of all repositories in the cache.
pub(crate) fn cache_folder() -> Result<PathBuf> {
    ensure!(
        environment("HF_HOME").is_some()
            || std::env::home_dir().is_some_and(|home| !home.as_os_str().is_empty()),
        "there is no home directory for the cache; set HF_HOME"
    );
    Ok(Cache::from_env().path().clone())
}

/// The models that are whole in a snapshot: the file that names each, or none for safetensors, and all its files.
pub(crate) fn models_in(snapshot: &Path) -> Result<Vec<(Option<String>, Vec<String>)>> {
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
pub(crate) fn file_of(names: &[&str], wanted: &str) -> Result<String> {
    if names.contains(&wanted) {
        return Ok(wanted.to_owned());
    }
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    Ok(Files::of_type(&names, wanted)?.open.to_string_lossy().into_owned())
}

/// One repository, here and there.
struct Hub {
    endpoint: String,
    api: Api,
    repo: Repo,
    /// The repository's folder in the cache.
    folder: PathBuf,
    cache: CacheRepo,
}

impl Hub {
    fn new(model: &HubModel) -> Result<Self> {
        let folder = cache_folder()?;
        let endpoint = environment("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let cache = Cache::from_env();
        let token = environment("HF_TOKEN").or_else(|| cache.token());
        let api = ApiBuilder::from_cache(cache.clone())
            .with_endpoint(endpoint.clone())
            .with_token(token)
            .with_retries(3)
            .with_user_agent("realizar", env!("CARGO_PKG_VERSION"))
            .build()?;
        let repo = Repo::model(model.repo.clone());
        let folder = folder.join(repo.folder_name());
        Ok(Self { endpoint, api, folder, cache: cache.repo(repo.clone()), repo })
    }

    /// The model from the cache alone. Errors: some file of it is not there.
    fn cached(&self, model: &HubModel) -> Result<PathBuf> {
        let main = self.folder.join("refs").join("main");
        let commit =
            std::fs::read_to_string(&main).with_context(|| format!("{} is not there", main.display()))?;
        let snapshot = self.cache.pointer_path(commit.trim());
        let mut names = Vec::new();
        list(&snapshot, "", &mut names)?;
        let files = Files::choose(&names, model.file.as_deref(), |index| read_index(&snapshot.join(index)))?;
        match files.names.iter().find(|name| !snapshot.join(name).exists()) {
            Some(missing) => bail!("{missing} is not in the cache"),
            None => Ok(snapshot.join(files.open)),
        }
    }

    /// The model, with what is missing downloaded.
    fn pull(&self, model: &HubModel) -> Result<PathBuf> {
        if environment("HF_HUB_OFFLINE").is_some_and(|v| !matches!(v.as_str(), "0" | "false" | "no" | "off"))
        {
            return self.cached(model).context("HF_HUB_OFFLINE is set and the model is not in the cache");
        }
        let info = match self.api.repo(self.repo.clone()).info() {
            Ok(info) => info,
            Err(error) => {
                let unreachable = is_unreachable(&error);
                let error = self.explain(error, &model.repo);
                return match self.cached(model) {
                    Ok(path) if unreachable => {
                        tracing::warn!("{error:#}; using what the cache has");
                        Ok(path)
                    }
                    _ => Err(error),
                };
            }
        };
        ensure!(
            info.sha.bytes().all(|b| b.is_ascii_hexdigit()),
            "the hub answered with a commit {:?}",
            info.sha
        );
        let snapshot = self.cache.pointer_path(&info.sha);
        // A name goes into paths and addresses, so only plain ones count.
        let names: Vec<String> =
            info.siblings.into_iter().map(|f| f.rfilename).filter(|n| is_plain(n)).collect();
        let files = Files::choose(&names, model.file.as_deref(), |index| {
            self.download(&snapshot, index)?;
            read_index(&snapshot.join(index))
        })?;
        for name in &files.names {
            self.download(&snapshot, name)?;
        }
        Ok(snapshot.join(files.open))
    }

    fn download(&self, snapshot: &Path, name: &str) -> Result<()> {
        let target = snapshot.join(name);
        if target.exists() {
            return Ok(());
        }
        let api = self.api.repo(self.repo.clone());
        let size = Rc::new(Cell::new(0));
        let download =
            || api.download_with_progress(name, Bar { bar: download_bar(name), size: size.clone() });
        let path = match download() {
            // What an earlier attempt left is not the beginning of this file, or all of it.
            Err(ApiError::RequestError(e)) if matches!(*e, ureq::Error::StatusCode(416)) => {
                self.forget_partial_downloads()?;
                download()
            }
            Err(ApiError::InvalidResume) => {
                self.forget_partial_downloads()?;
                download()
            }
            other => other,
        };
        let path = path.map_err(|e| self.explain(e, name))?;
        let length =
            std::fs::metadata(&path).with_context(|| format!("could not read {}", path.display()))?.len();
        if length != size.get() {
            // The blob first: without it the link leads nowhere.
            if let Ok(blob) = path.canonicalize() {
                drop(std::fs::remove_file(blob));
            }
            drop(std::fs::remove_file(&path));
            bail!("{name} has {} bytes, but only {length} came", size.get());
        }
        ensure!(path == target, "{} changed while it was being downloaded; try again", self.repo.url());
        Ok(())
    }

    fn forget_partial_downloads(&self) -> Result<()> {
        let blobs = self.folder.join("blobs");
        for entry in
            std::fs::read_dir(&blobs).with_context(|| format!("could not read {}", blobs.display()))?
        {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "part") {
                std::fs::remove_file(&path)
                    .with_context(|| format!("could not remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// What a person can do about an error of the hub.
    fn explain(&self, error: ApiError, what: &str) -> anyhow::Error {
        let endpoint = &self.endpoint;
        let status = match &error {
            ApiError::RequestError(e) => match **e {
                ureq::Error::StatusCode(status) => Some(status),
                _ => None,
            },
            _ => None,
        };
        match status {
            Some(401 | 403) => {
                anyhow!(
                    "{endpoint} does not let us have {what}; it may be private or ask for consent: set HF_TOKEN"
                )
            }
            Some(404) => anyhow!("{endpoint} has no {what}"),
            Some(429) => anyhow!("{endpoint} asks us to wait before the next request"),
            Some(status) => anyhow!("{endpoint} answered {what} with status {status}"),
            None => anyhow!(error).context(format!("could not get {what} from {endpoint}")),
        }
    }
}

/// Whether the hub could not be asked at all.
fn is_unreachable(error: &ApiError) -> bool {
    matches!(error, ApiError::RequestError(e) if !matches!(**e, ureq::Error::StatusCode(status) if status < 500))
}

fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '/');
    name.chars().all(plain) && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Paths of all files below a folder, with `/` between their parts.
fn list(folder: &Path, prefix: &str, names: &mut Vec<String>) -> Result<()> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("could not read {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
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
    let text = std::fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
    let index: serde_json::Value =
        serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    let map =
        index["weight_map"].as_object().with_context(|| format!("{} has no weight_map", path.display()))?;
    let mut shards: Vec<String> = map.values().filter_map(|v| v.as_str()).map(str::to_owned).collect();
    shards.sort();
    shards.dedup();
    ensure!(shards.iter().all(|s| is_plain(s)), "{} names files in a way we do not follow", path.display());
    Ok(shards)
}

/// The files of a repository that make one model.
#[derive(Debug, PartialEq, Eq)]
struct Files {
    names: Vec<String>,
    /// What to open: one of them, or the folder they are in.
    open: PathBuf,
}

impl Files {
    /// `wanted` is a file, a type such as `Q4_K_M`, or nothing: then safetensors are preferred to GGUF, and among several GGUF
    /// models the one of type Q4_K_M. `shards` lists the files that an index names.
    fn choose(
        names: &[String],
        wanted: Option<&str>,
        shards: impl FnOnce(&str) -> Result<Vec<String>>,
    ) -> Result<Self> {
        let has = |name: &str| names.iter().any(|n| n == name);
        if let Some(file) = wanted.filter(|file| has(file)) {
            if file.ends_with(".gguf") {
                return Ok(Self::gguf(file));
            }
            ensure!(file.ends_with(".safetensors"), "{file} is neither a .gguf nor a .safetensors file");
        } else if let Some(quant) = wanted {
            return Self::of_type(names, quant);
        }
        let mut weights = match wanted {
            Some(file) => vec![file.to_owned()],
            None if has("model.safetensors") => vec!["model.safetensors".to_owned()],
            None if has(INDEX) => shards(INDEX)?,
            None => match models(names)[..] {
                [] => bail!("it has no .gguf and no .safetensors files that make a model"),
                [one] => return Ok(Self::gguf(one)),
                _ => {
                    return Self::of_type(names, "Q4_K_M")
                        .context("it has several models and none was named");
                }
            },
        };
        if has(INDEX) && wanted.is_none() && !has("model.safetensors") {
            weights.push(INDEX.to_owned());
        }
        weights.extend(COMPANIONS.iter().filter(|c| has(c)).map(|c| (*c).to_owned()));
        let open = match wanted {
            Some(file) => PathBuf::from(file),
            None => PathBuf::new(),
        };
        Ok(Self { names: weights, open })
    }

    /// The GGUF model with this type in its name.
    fn of_type(names: &[String], quant: &str) -> Result<Self> {
        let all = models(names);
        let is_wanted = |name: &&str| {
            let (name, quant) = (name.to_ascii_lowercase(), quant.to_ascii_lowercase());
            // Between two signs that separate, so that Q4_K does not mean Q4_K_M.
            name.match_indices(&quant).any(|(at, _)| {
                let edge = |c: Option<char>| c.is_none_or(|c| matches!(c, '-' | '.' | '/'));
                edge(name[..at].chars().next_back()) && edge(name[at + quant.len()..].chars().next())
            })
        };
        let found: Vec<&str> = all.iter().copied().filter(is_wanted).collect();
        match found[..] {
            [one] => Ok(Self::gguf(one)),
            [] => bail!("it has no file {quant:?}; its GGUF models are: {}", all.join(", ")),
            _ => bail!("{quant:?} may mean {}", found.join(", ")),
        }
    }

    /// A GGUF file and, if it is one of several parts, the others.
    fn gguf(name: &str) -> Self {
        let names = match split_of(name) {
            Some((prefix, count)) => {
                (1..=count).map(|i| format!("{prefix}-{i:05}-of-{count:05}.gguf")).collect()
            }
            None => vec![name.to_owned()],
        };
        Self { open: PathBuf::from(&names[0]), names }
    }
}

/// GGUF models by their only or first file; vision encoders and importance matrices are none.
fn models(names: &[String]) -> Vec<&str> {
    let file = |name: &str| name.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    names
        .iter()
        .map(String::as_str)
        .filter(|n| n.ends_with(".gguf") && !file(n).starts_with("mmproj") && !file(n).contains("imatrix"))
        .filter(|n| {
            split_of(n).is_none_or(|(prefix, count)| *n == format!("{prefix}-00001-of-{count:05}.gguf"))
        })
        .collect()
}

/// What stands before the number of a part, and the number of parts.
fn split_of(name: &str) -> Option<(&str, usize)> {
    let number = |s: &str| (s.len() == 5).then(|| s.parse::<usize>().ok()).flatten();
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, part) = rest.rsplit_once('-')?;
    let (part, count) = (number(part)?, number(count)?);
    (1..=count).contains(&part).then_some((prefix, count))
}

/// Shows a download and remembers how long the file should be.
struct Bar {
    bar: ProgressBar,
    size: Rc<Cell<u64>>,
}

impl Progress for Bar {
    fn init(&mut self, size: usize, _: &str) {
        self.size.set(size as u64);
        self.bar.set_length(size as u64);
        self.bar.set_position(0);
    }

    fn update(&mut self, size: usize) {
        self.bar.inc(size as u64);
    }

    fn finish(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(names: &[&str], wanted: Option<&str>) -> Result<Files> {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        Files::choose(&names, wanted, |_| Ok(vec!["model-00001-of-00001.safetensors".to_owned()]))
    }

    fn opened(names: &[&str], wanted: Option<&str>) -> String {
        choose(names, wanted).expect("chosen").open.display().to_string()
    }

    const GGUFS: [&str; 5] =
        ["README.md", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "mmproj-m-Q4_K_M.gguf", "sub/m.Q8_0.gguf"];

    #[test]
    fn a_type_picks_the_file_with_it_in_its_name() {
        assert_eq!(opened(&GGUFS, Some("q4_k_s")), "m-Q4_K_S.gguf");
        assert_eq!(opened(&GGUFS, Some("Q8_0")), "sub/m.Q8_0.gguf");
        assert_eq!(opened(&GGUFS, None), "m-Q4_K_M.gguf");
        assert_eq!(opened(&GGUFS, Some("sub/m.Q8_0.gguf")), "sub/m.Q8_0.gguf");
        let error = choose(&GGUFS, Some("Q4_K")).expect_err("no such type").to_string();
        assert!(error.contains("m-Q4_K_M.gguf"), "{error}");
    }

    #[test]
    fn all_parts_of_a_split_model_belong_to_it() {
        let names = ["q8/m-Q8_0-00001-of-00002.gguf", "q8/m-Q8_0-00002-of-00002.gguf"];
        for wanted in [None, Some("q8_0"), Some("q8/m-Q8_0-00002-of-00002.gguf")] {
            let files = choose(&names, wanted).expect("chosen");
            assert_eq!(files.names, names);
            assert_eq!(files.open, Path::new(names[0]));
        }
    }

    #[test]
    fn safetensors_come_with_what_stands_beside_them() {
        let one = choose(&["config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json"], None);
        assert_eq!(one.expect("chosen").names, ["model.safetensors", "config.json", "tokenizer.json"]);
        let shards = choose(&["config.json", INDEX, "model-00001-of-00001.safetensors", "x.gguf"], None);
        assert_eq!(shards.expect("chosen").names, ["model-00001-of-00001.safetensors", INDEX, "config.json"]);
        assert!(choose(&["pytorch_model.bin", "config.json"], None).is_err());
    }

    #[test]
    fn names_that_lead_elsewhere_are_not_plain() {
        assert!(is_plain("a/b-c_1.gguf"));
        for name in ["../a", "a/../b", "/a", "a//b", "a b", "a\\b", "a?b", ""] {
            assert!(!is_plain(name), "{name:?}");
        }
    }
}
