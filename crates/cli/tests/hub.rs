//! Downloads from a hub, against a server on this machine that speaks a hub's paths.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod support;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::sync::{Arc, Mutex};
use support::{Folder, demo, fails, json, realizar, succeeds};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

#[derive(Default)]
struct Server {
    files: HashMap<&'static str, Vec<u8>>,
    /// Asks for this token.
    token: Option<&'static str>,
    /// Hangs up after this many bytes of a file.
    cut: Option<usize>,
    /// Requests for more than the first byte of a file, as `FILE FROM`.
    downloads: Vec<String>,
}

/// A server with one repository, `owner/name`.
struct Hub {
    endpoint: String,
    server: Arc<Mutex<Server>>,
}

impl Hub {
    fn start(files: &[(&'static str, &[u8])]) -> Self {
        let files = files.iter().map(|(name, bytes)| (*name, bytes.to_vec())).collect();
        let server = Arc::new(Mutex::new(Server { files, ..Server::default() }));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let shared = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                // A client that hangs up is no failure of the server.
                std::thread::spawn(move || drop(answer(stream, &shared)));
            }
        });
        Self { endpoint, server }
    }

    fn set(&self, change: impl FnOnce(&mut Server)) {
        change(&mut self.server.lock().expect("no request panicked"));
    }

    fn downloads(&self) -> Vec<String> {
        std::mem::take(&mut self.server.lock().expect("no request panicked").downloads)
    }

    fn run(&self, cache: &Folder, args: &[&str]) -> Output {
        run_at(&self.endpoint, cache, args, None)
    }
}

fn run_at(endpoint: &str, cache: &Folder, args: &[&str], token: Option<&str>) -> Output {
    let mut command = realizar();
    command.args(args).env("HF_ENDPOINT", endpoint).env("HF_HOME", cache.path());
    if let Some(token) = token {
        command.env("HF_TOKEN", token);
    }
    command.output().expect("the program starts")
}

fn answer(stream: TcpStream, server: &Mutex<Server>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut range, mut token) = (None, None);
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => range = value.strip_prefix("bytes=").and_then(|r| r.split('-').next()?.parse().ok()),
            "authorization" => token = value.strip_prefix("Bearer ").map(str::to_owned),
            _ => {}
        }
        if value.ends_with("bytes=0-0") {
            range = Some(usize::MAX);
        }
    }
    let mut server = server.lock().expect("no request panicked");
    let respond = |status: &str, headers: &str, length: usize, body: &[u8]| {
        let mut stream = &stream;
        write!(
            stream,
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
        )?;
        stream.write_all(body)
    };
    if server.token.is_some() && server.token != token.as_deref() {
        return respond("401 Unauthorized", "", 0, b"");
    }
    if path == "/api/models/owner/name/revision/main" {
        let siblings: Vec<_> = server.files.keys().map(|f| serde_json::json!({ "rfilename": f })).collect();
        let info = serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string();
        return respond("200 OK", "Content-Type: application/json\r\n", info.len(), info.as_bytes());
    }
    let file = path.strip_prefix("/owner/name/resolve/main/").unwrap_or_default();
    let Some((&name, bytes)) = server.files.get_key_value(file) else {
        return respond("404 Not Found", "", 0, b"");
    };
    let total = bytes.len();
    let headers = |from: usize, to: usize| {
        format!(
            "Content-Range: bytes {from}-{to}/{total}\r\nETag: \"etag-{}\"\r\nX-Repo-Commit: {COMMIT}\r\n",
            name.replace('/', "-")
        )
    };
    match range {
        Some(usize::MAX) => respond("206 Partial Content", &headers(0, 0), 1, &bytes[..1]),
        Some(from) if from >= total => respond("416 Range Not Satisfiable", "", 0, b""),
        from => {
            let from = from.unwrap_or(0);
            let rest = bytes[from..].to_vec();
            let sent = server.cut.map_or(rest.len(), |cut| rest.len().min(cut));
            server.downloads.push(format!("{name} {from}"));
            drop(server);
            respond("206 Partial Content", &headers(from, total - 1), rest.len(), &rest[..sent])
        }
    }
}

#[test]
fn a_model_is_downloaded_once() {
    let model = demo();
    let hub = Hub::start(&[("m-Q4_K_M.gguf", &model), ("m-Q8_0.gguf", b"another"), ("README.md", b"x")]);
    let cache = Folder::new();
    let output = hub.run(&cache, &["pull", "hf:owner/name:q4_k_m"]);
    let path = succeeds(&output).trim_end().to_owned();
    assert!(path.contains(COMMIT) && path.ends_with("m-Q4_K_M.gguf"), "{path}");
    assert_eq!(std::fs::read(&path).expect("it is there"), model);
    assert_eq!(hub.downloads(), ["m-Q4_K_M.gguf 0"]);
    // The layout that other programs share.
    assert!(path.starts_with(&cache.join("hub/models--owner--name/snapshots")), "{path}");

    succeeds(&hub.run(&cache, &["pull", "hf:owner/name:Q4_K_M"]));
    let object = json(&hub.run(&cache, &["inspect", "hf:owner/name", "--json"]));
    assert_eq!(object["architecture"], "llama");
    assert_eq!(hub.downloads(), [""; 0], "all of it was in the cache");
}

#[test]
fn an_interrupted_download_goes_on_where_it_stopped() {
    let model = demo();
    let hub = Hub::start(&[("m.gguf", &model)]);
    let cache = Folder::new();
    hub.set(|server| server.cut = Some(1_000_000));
    fails(&hub.run(&cache, &["pull", "hf:owner/name"]), &["m.gguf"]);
    hub.set(|server| server.cut = None);
    hub.downloads();
    let output = hub.run(&cache, &["pull", "hf:owner/name"]);
    assert_eq!(std::fs::read(succeeds(&output).trim_end()).expect("it is there"), model);
    let downloads = hub.downloads();
    assert!(matches!(&downloads[..], [one] if one != "m.gguf 0"), "{downloads:?}");
}

#[test]
fn a_folder_comes_with_all_that_it_needs() {
    let read = |name: &str| std::fs::read(support::fixture(&format!("qwen2/hf/{name}"))).expect(name);
    let (weights, config, tokenizer) =
        (read("model.safetensors"), read("config.json"), read("tokenizer.json"));
    let hub = Hub::start(&[
        ("model.safetensors", &weights),
        ("config.json", &config),
        ("tokenizer.json", &tokenizer),
        ("pytorch_model.bin", b"left out"),
    ]);
    let cache = Folder::new();
    let object = json(&hub.run(&cache, &["inspect", "hf:owner/name", "--json"]));
    assert_eq!(object["architecture"], "Qwen2ForCausalLM");
    assert_eq!(object["tokenizer_error"], serde_json::Value::Null);
    let mut downloads = hub.downloads();
    downloads.sort();
    assert_eq!(downloads, ["config.json 0", "model.safetensors 0", "tokenizer.json 0"]);
}

#[test]
fn a_token_opens_what_is_private() {
    let hub = Hub::start(&[("m.gguf", &demo())]);
    hub.set(|server| server.token = Some("secret"));
    let cache = Folder::new();
    fails(&hub.run(&cache, &["pull", "hf:owner/name"]), &["owner/name", "HF_TOKEN"]);
    let output = run_at(&hub.endpoint, &cache, &["pull", "hf:owner/name"], Some("secret"));
    assert!(succeeds(&output).trim_end().ends_with("m.gguf"));
}

#[test]
fn what_is_not_there_is_named() {
    let hub = Hub::start(&[("m-Q8_0.gguf", b"x"), ("README.md", b"x")]);
    let cache = Folder::new();
    fails(&hub.run(&cache, &["pull", "hf:owner/other"]), &["hf:owner/other", "has no owner/other"]);
    fails(&hub.run(&cache, &["pull", "hf:owner/name:q2_k"]), &["q2_k", "m-Q8_0.gguf"]);
    fails(&hub.run(&cache, &["pull", "hf:owner/name:README.md"]), &["README.md"]);
    let empty = Hub::start(&[("README.md", b"x")]);
    fails(&empty.run(&cache, &["pull", "hf:owner/name"]), &["no .gguf and no .safetensors"]);
}

#[test]
fn offline_the_cache_serves() {
    let hub = Hub::start(&[("m.gguf", &demo())]);
    let cache = Folder::new();
    let nowhere = "http://127.0.0.1:9";
    fails(&run_at(nowhere, &cache, &["pull", "hf:owner/name"], None), &["owner/name", nowhere]);
    fails(
        &run_at(nowhere, &cache, &["tokenize", "-m", "hf:owner/name", "x"], None),
        &["owner/name", nowhere],
    );
    succeeds(&hub.run(&cache, &["pull", "hf:owner/name"]));
    let output = run_at(nowhere, &cache, &["pull", "hf:owner/name"], None);
    assert!(succeeds(&output).trim_end().ends_with("m.gguf"));
    assert!(support::stderr(&output).contains("using what the cache has"), "{}", support::stderr(&output));
    let ids = run_at(nowhere, &cache, &["tokenize", "-m", "hf:owner/name:m.gguf", "x"], None);
    assert!(succeeds(&ids).trim_end().parse::<u32>().is_ok());
}

#[test]
fn the_cache_is_listed_and_cleared() {
    let model = demo();
    let hub = Hub::start(&[("m-Q4_K_M.gguf", &model), ("m-Q8_0.gguf", &model[..1000]), ("README.md", b"x")]);
    let cache = Folder::new();
    let names = || -> Vec<(String, u64)> {
        let listed = json(&hub.run(&cache, &["list", "--json"]));
        let models = listed["models"].as_array().expect("models");
        let name = |m: &serde_json::Value| (m["name"].as_str().map(str::to_owned), m["bytes"].as_u64());
        models.iter().map(name).map(|(n, b)| (n.expect("a name"), b.expect("bytes"))).collect()
    };
    assert_eq!(names(), [], "an empty cache is no failure");
    succeeds(&hub.run(&cache, &["pull", "owner/name:q4_k_m"]));
    succeeds(&hub.run(&cache, &["pull", "owner/name:q8_0"]));
    let (q4, q8) = ("owner/name:m-Q4_K_M.gguf".to_owned(), "owner/name:m-Q8_0.gguf".to_owned());
    assert_eq!(names(), [(q4.clone(), model.len() as u64), (q8, 1000)]);
    let table = hub.run(&cache, &["ls"]);
    assert!(succeeds(&table).starts_with("NAME") && succeeds(&table).lines().count() == 3);
    assert_eq!(
        json(&hub.run(&cache, &["show", &q4, "--json"]))["architecture"],
        "llama",
        "a name is a model"
    );

    succeeds(&hub.run(&cache, &["rm", "owner/name:q8_0"]));
    assert_eq!(names(), [(q4, model.len() as u64)]);
    let blobs = std::fs::read_dir(cache.join("hub/models--owner--name/blobs")).expect("blobs");
    let sizes = blobs.map(|blob| blob.expect("a blob").metadata().expect("its size").len());
    assert_eq!(sizes.sum::<u64>(), model.len() as u64, "the file's bytes are gone, too");
    fails(&hub.run(&cache, &["rm", "owner/name:q8_0"]), &["owner/name", "q8_0"]);
    succeeds(&hub.run(&cache, &["rm", "owner/name"]));
    assert_eq!(names(), []);
    fails(&hub.run(&cache, &["rm", "owner/name"]), &["owner/name", "realizar list"]);
}
