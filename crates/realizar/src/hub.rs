//! Models of the Hugging Face hub.
//!
//! Files go into the cache that all Hugging Face programs share (`HF_HOME`, by default `~/.cache/huggingface`). The token that
//! `hf auth login` saves there opens private repositories, and `HF_ENDPOINT` names another server.

use crate::Error;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Repo, RepoType};
use std::path::PathBuf;

/// Downloads a model, unless it is in the cache, and returns its path, for [`Model::builder`](crate::Model::builder) or
/// [`Embedder::load`](crate::Embedder::load). `repo` is `OWNER/NAME`. `file` names a GGUF file of the repository, the first one of a split
/// model; without it the repository is a folder of safetensors. A folder or a split model needs the hub even if all files are in the cache,
/// since the hub lists them.
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
    let api = ApiBuilder::from_env().with_progress(false).with_retries(3).build().map_err(failed(repo))?;
    download_by(&api, repo, file)
}

fn failed(what: &str) -> impl FnOnce(ApiError) -> Error {
    let what = what.to_owned();
    move |source| Error::Hub { what, source: source.into() }
}

fn download_by(api: &Api, repo: &str, file: Option<&str>) -> Result<PathBuf, Error> {
    let get = |from: &ApiRepo, name: &str| from.get(name).map_err(failed(&format!("{name} of {repo}")));
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
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    /// What the hub's only repository, `owner/name`, has; the contents of a file are its name.
    const FILES: [&str; 7] = [
        "config.json",
        "tokenizer.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "README.md",
        "q-00001-of-00002.gguf",
        "q-00002-of-00002.gguf",
    ];

    /// A client of a hub on this machine, with an empty cache of its own.
    fn api(test: &str) -> (Api, PathBuf) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            // A client that hangs up is no failure of the server.
            listener.incoming().flatten().for_each(|stream| drop(answer(stream)));
        });
        let cache = std::env::temp_dir().join(format!("realizar-hub-{}-{test}", std::process::id()));
        let api =
            ApiBuilder::new().with_endpoint(endpoint).with_cache_dir(cache.clone()).with_progress(false);
        (api.build().unwrap(), cache)
    }

    fn answer(mut stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let request = lines.next().transpose()?.unwrap_or_default();
        let is_probe = lines
            .map_while(Result::ok)
            .take_while(|line| !line.is_empty())
            .any(|line| line.ends_with("bytes=0-0"));
        let path = request.split(' ').nth(1).unwrap_or_default();
        let mut respond = |status: &str, headers: &str, body: &str| {
            let n = body.len();
            write!(
                stream,
                "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {n}\r\n{headers}\r\n{body}"
            )
        };
        if path == "/api/models/owner/name/revision/main" {
            let siblings: Vec<_> = FILES.iter().map(|f| serde_json::json!({ "rfilename": f })).collect();
            let info = serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string();
            return respond("200 OK", "Content-Type: application/json\r\n", &info);
        }
        let name =
            ["main", COMMIT].iter().find_map(|at| path.strip_prefix(&format!("/owner/name/resolve/{at}/")));
        let Some(name) = name.filter(|name| FILES.contains(name)) else {
            return respond("404 Not Found", "", "");
        };
        let sent = if is_probe { &name[..1] } else { name };
        let range = format!("Content-Range: bytes 0-{}/{}", sent.len() - 1, name.len());
        respond(
            "206 Partial Content",
            &format!("{range}\r\nETag: \"{name}\"\r\nX-Repo-Commit: {COMMIT}\r\n"),
            sent,
        )
    }

    fn names_in(folder: &std::path::Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_folder_is_downloaded_whole() {
        let (api, cache) = api("folder");
        let folder = download_by(&api, "owner/name", None).unwrap();
        assert!(folder.ends_with(COMMIT), "{}", folder.display());
        let mut expected: Vec<_> = FILES.into_iter().filter(|name| is_of_folder(name)).collect();
        expected.sort();
        assert_eq!(names_in(&folder), expected);
        assert_eq!(std::fs::read_to_string(folder.join("config.json")).unwrap(), "config.json");
        std::fs::remove_dir_all(cache).unwrap();
    }

    #[test]
    fn a_split_file_is_downloaded_with_its_parts() {
        let (api, cache) = api("split");
        let path = download_by(&api, "owner/name", Some("q-00001-of-00002.gguf")).unwrap();
        assert_eq!(names_in(path.parent().unwrap()), ["q-00001-of-00002.gguf", "q-00002-of-00002.gguf"]);
        let single = download_by(&api, "owner/name", Some("README.md")).unwrap();
        assert_eq!(std::fs::read_to_string(single).unwrap(), "README.md");
        std::fs::remove_dir_all(cache).unwrap();
    }

    #[test]
    fn what_the_hub_does_not_have_is_an_error() {
        let (api, _) = api("missing");
        for (repo, file) in [("owner/name", Some("no.gguf")), ("owner/other", None)] {
            let error = download_by(&api, repo, file).unwrap_err();
            assert!(matches!(&error, Error::Hub { what, .. } if what.ends_with(repo)), "{error}");
        }
    }

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
