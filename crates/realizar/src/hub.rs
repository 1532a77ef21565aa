//! Models of the Hugging Face hub.
//!
//! Files go into the cache that all Hugging Face programs share (`HF_HOME`, by default `~/.cache/huggingface`). The token that
//! `hf auth login` saves there opens private repositories, and `HF_ENDPOINT` names another server.

use crate::Error;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Repo, RepoType};
use std::path::PathBuf;

/// Downloads a model, unless it is in the cache, and returns its path, for [`Model::builder`](crate::Model::builder) or
/// [`Embedder::load`](crate::Embedder::load). `repo` is `OWNER/NAME`. `file` names a GGUF file of the repository, the first one of a split model;
/// without it the repository is a folder of safetensors, whose list of files is
/// always asked of the hub.
///
/// ```no_run
/// use realizar::{Model, hub};
///
/// let path = hub::download("bartowski/Llama-3.2-1B-Instruct-GGUF", Some("Llama-3.2-1B-Instruct-Q4_K_M.gguf"))?;
/// let model = Model::builder(path).context(4096).load()?;
/// # Ok::<(), realizar::Error>(())
/// ```
///
/// Errors: the hub cannot be reached, has no such repository or file, or does not permit access to it.
pub fn download(repo: &str, file: Option<&str>) -> Result<PathBuf, Error> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |source: ApiError| Error::Hub { what, source: source.into() }
    };
    let get = |from: &ApiRepo, name: &str| from.get(name).map_err(failed(&format!("{name} of {repo}")));
    let api = ApiBuilder::from_env().with_progress(false).with_retries(3).build().map_err(failed(repo))?;
    let main = api.model(repo.to_owned());
    if let Some(file) = file
        && parts(file).is_none()
    {
        return get(&main, file);
    }
    let info = main.info().map_err(failed(repo))?;
    // The commit becomes the name of a folder.
    if !info.sha.bytes().all(|b| b.is_ascii_hexdigit()) {
        let source = format!("its commit is {:?}", info.sha).into();
        return Err(Error::Hub { what: repo.to_owned(), source });
    }
    // All files of one commit, also where the repository changes meanwhile.
    let commit = api.repo(Repo::with_revision(repo.to_owned(), RepoType::Model, info.sha));
    let (names, first) = match file {
        Some(file) => (parts(file).unwrap_or_default(), file),
        None => (
            info.siblings.into_iter().map(|f| f.rfilename).filter(|n| is_of_folder(n)).collect(),
            "config.json",
        ),
    };
    names.iter().try_for_each(|name| get(&commit, name).map(drop))?;
    let path = get(&commit, first)?;
    Ok(match (file, path.parent()) {
        (None, Some(folder)) => folder.to_owned(),
        _ => path,
    })
}

/// All files of a split GGUF model, by its first, `NAME-00001-of-00003.gguf`; `None` of a model in one file.
fn parts(file: &str) -> Option<Vec<String>> {
    let (rest, count) = file.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let name = rest.strip_suffix("-00001")?;
    let n = count.parse::<u16>().ok().filter(|_| count.len() == 5)?;
    Some((1..=n).map(|i| format!("{name}-{i:05}-of-{count}.gguf")).collect())
}

/// Whether a file of a repository belongs to its model in safetensors: weights, configuration, tokenizer, chat template.
fn is_of_folder(name: &str) -> bool {
    let is_weights = name.starts_with("model") && name.ends_with(".safetensors");
    !name.contains('/') && (is_weights || name.ends_with(".json") || name.ends_with(".jinja"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_model_has_all_its_parts() {
        let both = ["a/b-00001-of-00002.gguf", "a/b-00002-of-00002.gguf"].map(str::to_owned);
        assert_eq!(parts("a/b-00001-of-00002.gguf"), Some(both.to_vec()));
        for whole in ["b.gguf", "b-00002-of-00003.gguf", "b-00001-of-3.gguf", "b-00001-of-00003.safetensors"]
        {
            assert_eq!(parts(whole), None, "{whole}");
        }
    }

    #[test]
    fn a_folder_has_weights_and_what_describes_them() {
        for name in
            ["config.json", "model.safetensors", "model-00001-of-00002.safetensors", "chat_template.jinja"]
        {
            assert!(is_of_folder(name), "{name}");
        }
        for name in
            ["README.md", "consolidated.safetensors", "onnx/model.safetensors", "x.gguf", "../config.json"]
        {
            assert!(!is_of_folder(name), "{name}");
        }
    }
}
