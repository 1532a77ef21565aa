//! `realizar serve` with several models, as a process: files and folders of models, and `ps` and `stop`.
#![cfg(unix)]
#![allow(missing_docs, unreachable_pub, dead_code)]

mod support;

use serde_json::{Value, json as value};
use std::time::Instant;
use support::server::{PATIENCE, Server};
use support::{Folder, demo, fails, fixture, is_wrong_usage, json, realizar, run, stderr, succeeds};

/// A completion's text.
fn ask(server: &Server, model: &str) -> String {
    let body = value!({"model": model, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 12});
    let answer = server.post("/v1/completions", &body);
    assert_eq!(answer["model"], model);
    answer["choices"][0]["text"].as_str().expect("a text").to_owned()
}

/// Names of the models that `ps` shows.
fn running(server: &Server) -> Vec<String> {
    let report = json(&run(&["ps", "--json", "--url", &server.url("")]));
    let name = |model: &Value| model["name"].as_str().expect("a name").to_owned();
    report["models"].as_array().expect("a list").iter().map(name).collect()
}

#[track_caller]
fn until(server: &Server, names: &[&str]) {
    let start = Instant::now();
    while running(server) != names {
        assert!(start.elapsed() < PATIENCE, "{:?} run, and not {names:?}", running(server));
    }
}

fn listed(server: &Server) -> Vec<String> {
    let models = server.get("/v1/models")["data"].as_array().expect("a list").clone();
    models.iter().map(|model| model["id"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_file_names_models_with_options_of_their_own() {
    let folder = Folder::new();
    folder.write("weights/fox.gguf", &demo());
    let config = "# The server's options.\nmax_loaded = 1\nstep_tokens = 64\nkv-memory = \"16M\"\n\n\
        [models.fox]\nmodel = \"weights/fox.gguf\"\naliases = [\"owl\", \"hare\"]\nctx = 256\npreload = true\n\n\
        [models.\"a/demo\"]\nmodel = \"demo\"\nmax_seqs = 4\ndraft = \"demo\"\nkeep_alive = \"10m\"\n";
    let path = folder.write("models.toml", config.as_bytes());
    let server = Server::start(&["--config", &path]);
    assert!(server.line.starts_with("a server with 2 models is ready at http://"), "{}", server.line);
    assert_eq!(listed(&server), ["fox", "owl", "hare", "a/demo"], "in the order of the file");
    until(&server, &["fox", "owl", "hare"]);
    assert_eq!(server.get("/v1/models/owl")["max_model_len"], 256);
    let text = ask(&server, "hare");
    assert_eq!(ask(&server, "a/demo"), text);
    until(&server, &["a/demo"]);
    let table = run(&["ps", "--url", &server.url("")]);
    let table = succeeds(&table);
    assert!(table.starts_with("NAME ") && table.contains("a/demo ") && table.lines().count() == 2, "{table}");
    succeeds(&run(&["stop", "a/demo", "--url", &server.url("")]));
    until(&server, &[]);
    fails(&run(&["stop", "other", "--url", &server.url("")]), &["other", "fox, owl, hare, a/demo"]);
    server.signal("-TERM");
    assert_eq!(server.end().0.code(), Some(0));
}

#[test]
fn a_folder_of_models_is_served_under_the_names_of_its_files() {
    let folder = Folder::new();
    folder.write("fox.gguf", &demo());
    folder.write("more/owl.gguf", &demo());
    folder.write("more/mmproj-owl.gguf", b"no model");
    folder.write("broken.gguf", b"no model");
    folder.write("README.md", b"no model");
    let qwen = fixture("qwen2/model.gguf");
    std::fs::copy(&qwen, folder.join("qwen.gguf")).expect("it is copied");
    let server = Server::start(&["--models-dir", &folder.join(""), "--keep-alive=-1"]);
    // What is no model is named on stderr, and left out.
    assert!(server.line.contains("broken"), "{}", server.line);
    drop(server);
    std::fs::remove_file(folder.join("broken.gguf")).expect("it was there");
    let server = Server::start(&["--models-dir", &folder.join(""), "--keep-alive=-1"]);
    assert_eq!(listed(&server), ["fox", "owl", "qwen"]);
    assert_eq!(ask(&server, "fox"), ask(&server, "owl"));
    let ids = value!({"model": "qwen", "prompt": [1, 2, 3], "max_tokens": 3});
    assert_eq!(server.post("/v1/completions", &ids)["usage"]["completion_tokens"], 3);
    until(&server, &["fox", "owl", "qwen"]);
}

#[test]
fn one_model_leaves_too_and_comes_back() {
    let server = Server::start(&["--keep-alive", "50ms", "--served-name", "fox"]);
    let text = ask(&server, "fox");
    until(&server, &[]);
    assert_eq!(ask(&server, "fox"), text);
}

#[test]
fn what_is_wrong_with_a_file_is_told_by_its_line() {
    let folder = Folder::new();
    for (text, parts) in [
        ("port = 0\nhots = \"::1\"\n", &[":2: ", "hots", "did you mean host?"][..]),
        ("[serve]\nhots = \"::1\"\n", &[":2: ", "hots", "host, port"]),
        ("[serve]\nmodel = \"demo\"\n[models.a]\nmodel = \"demo\"\n", &["wrong.toml has tables of models"]),
        ("\n\nport = 99999\n", &[":3: ", "99999"]),
        ("port = [1]\nopen_schemas = 1\n", &[":2: ", "open_schemas", "true or false"]),
        ("port = \n", &[":1: "]),
        ("models = 5\n", &[":1: ", "[models.NAME]"]),
        ("[models.a]\nctx = 5\n", &[":1: ", "models.a has no model"]),
        ("[models.a]\nmodel = \"demo\"\n\nctx = \"long\"\n", &[":4: ", "long"]),
        ("[models.a]\nmodel = \"demo\"\nport = 5\n", &[":3: ", "port", "kv_memory"]),
        ("[models.a]\nmodel = \"demo\"\nkeep_alive = \"soon\"\n", &[":3: ", "keep_alive", "soon"]),
        ("[models.a]\nmodel = \"demo\"\naliases = \"b\"\n", &[":3: ", "aliases", "list"]),
    ] {
        let path = folder.write("wrong.toml", text.as_bytes());
        let output = run(&["serve", "--port", "0", "--config", &path]);
        assert!(output.status.code().is_some_and(|code| code > 0), "{text}");
        for part in parts {
            assert!(stderr(&output).contains(part), "{part:?} in {:?} for {text:?}", stderr(&output));
        }
    }
    let twice = "[models.a]\nmodel = \"demo\"\n[models.b]\nmodel = \"demo\"\naliases = [\"a\"]\n";
    let path = folder.write("twice.toml", twice.as_bytes());
    fails(&run(&["serve", "--port", "0", "--config", &path]), &["two models have the name \"a\""]);
    let path = folder.write("gone.toml", b"[models.a]\nmodel = \"./gone.gguf\"\n");
    fails(&run(&["serve", "--port", "0", "--config", &path]), &["could not open a", "gone.gguf"]);
    // A link to itself stands for a file that a failing disk does not let anybody look at. It is not the short name of another model.
    std::os::unix::fs::symlink("qwen3", folder.join("qwen3")).expect("a link");
    let path = folder.write("looped.toml", b"[models.a]\nmodel = \"qwen3\"\n");
    fails(
        &run(&["serve", "--port", "0", "--config", &path]),
        &["could not open a", "/qwen3", "symbolic links"],
    );
    let path = folder.write("one.toml", b"[models.a]\nmodel = \"demo\"\n");
    for one in [&["serve", "demo"][..], &["serve", "-m", "demo"], &["serve", "--served-name", "b"]] {
        is_wrong_usage(&run(&[one, &["--config", &path]].concat()), "one.toml has tables of models");
    }
    fails(&run(&["serve", "--port", "0", "--models-dir", &folder.join("")]), &["there is no model to serve"]);
    is_wrong_usage(&run(&["serve", "--config", "/no/such/file.toml"]), "/no/such/file.toml");
    is_wrong_usage(&run(&["serve", "--keep-alive", "soon"]), "soon");
    fails(&run(&["ps", "--url", "http://127.0.0.1:1"]), &["no server answers", "--url"]);
}

#[test]
fn models_of_the_hub_s_cache_are_served() {
    let cache = Folder::new();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let repo = "hub/models--owner--name";
    cache.write(&format!("{repo}/refs/main"), commit.as_bytes());
    cache.write(&format!("{repo}/snapshots/{commit}/fox-Q6_K.gguf"), &demo());
    let mut command = realizar();
    command.env("HF_HOME", cache.join(""));
    let server = Server::by(command, &["--hub-cache"]);
    assert_eq!(listed(&server), ["owner/name:fox-Q6_K.gguf"]);
    ask(&server, "owner/name:fox-Q6_K.gguf");
}
