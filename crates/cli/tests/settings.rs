//! Options from variables and from the file of `--config`, as they are used, and which of them wins.
#![cfg(unix)]
#![allow(missing_docs, unreachable_pub, dead_code)]

mod support;

use serde_json::json as value;
use std::process::Output;
use support::server::Server;
use support::{Folder, demo, fails, is_wrong_usage, json, realizar, run};

fn run_with(variables: &[(&str, &str)], args: &[&str]) -> Output {
    realizar().args(args).envs(variables.iter().copied()).output().expect("it starts")
}

/// The context for which `inspect` states the memory.
#[track_caller]
fn context(variables: &[(&str, &str)], args: &[&str]) -> u64 {
    json(&run_with(variables, &[&["inspect", "demo", "--json"], args].concat()))["context"]
        .as_u64()
        .expect("a number")
}

#[test]
fn the_command_line_goes_before_variables_and_these_before_the_file() {
    let folder = Folder::new();
    let file = folder.write(
        "settings.toml",
        b"ctx = 100\nthreads = 1\n\n[inspect]\nctx = 200\n\n[bench.serve]\nrequests = 5\n",
    );
    let top = folder.write("top.toml", b"ctx = 100\n");
    assert_eq!(context(&[], &[]), 1024);
    assert_eq!(context(&[], &["--config", &top]), 100);
    assert_eq!(context(&[], &["--config", &file]), 200, "a command's section goes before the top");
    assert_eq!(context(&[("REALIZAR_CTX", "300")], &["--config", &file]), 300);
    assert_eq!(context(&[("REALIZAR_CTX", "300")], &["--config", &file, "--ctx", "400"]), 400);
    assert_eq!(context(&[("REALIZAR_CONFIG", &file)], &[]), 200, "the file may be a variable, too");
    assert_eq!(context(&[("REALIZAR_CTX", "")], &[]), 1024, "a variable that is empty says nothing");
    let json_alone = realizar().args(["--config", &file, "inspect", "--json"]).output().expect("it starts");
    assert_eq!(json(&json_alone)["context"], 200, "also before the command's name");
}

#[test]
fn a_prompt_and_its_model_may_come_from_settings() {
    let folder = Folder::new();
    let model = folder.write("models/fox.gguf", &demo());
    // Relative to the file, as the models of a server are.
    let file =
        folder.write("settings.toml", b"[run]\nmodel = \"models/fox.gguf\"\ntemp = 0\nmax_tokens = 3\n");
    let report = json(&run(&["run", "--config", &file, "--json", "Hello"]));
    assert_eq!(report["model"], model.as_str());
    assert_eq!(report["tokens"].as_array().map(Vec::len), Some(3));
    let report = json(&run(&["run", "--config", &file, "--json", "demo", "Hello"]));
    assert_eq!(report["model"], "demo", "a model on the command line is the model");
}

#[test]
fn what_is_wrong_with_settings_is_told_with_its_place() {
    is_wrong_usage(
        &run_with(&[("REALIZAR_CTX", "long")], &["inspect"]),
        "REALIZAR_CTX: invalid value 'long'",
    );
    is_wrong_usage(&run_with(&[("REALIZAR_EXACT", "maybe")], &["run", "x"]), "REALIZAR_EXACT is \"maybe\"");
    let folder = Folder::new();
    for (text, part) in [
        ("threads = 1\ntreads = 1\n", ":2: there is no option \"treads\"; did you mean threads?"),
        ("[inspect]\nport = 1\n", ":2: there is no option \"port\" here; there are model, ctx"),
        ("[inspekt]\nctx = 1\n", ":1: there is no command \"inspekt\"; there are run, serve"),
        ("[run]\nctx = 1\n\n[serve]\nport = 99999\n", ":5: invalid value '99999'"),
        ("[run]\nexact = \"yes\"\n", ":2: exact: expected true or false"),
        ("[bench.serve]\nconfig = \"x\"\n", ":2: there is no option \"config\""),
        ("ctx = \n", ":1: "),
    ] {
        let file = folder.write("wrong.toml", text.as_bytes());
        is_wrong_usage(&run(&["inspect", "--config", &file]), &format!("wrong.toml{part}"));
    }
    is_wrong_usage(&run(&["inspect", "--config", "/no/such.toml"]), "could not read /no/such.toml");
}

#[test]
fn keys_come_from_a_file() {
    let folder = Folder::new();
    let keys = folder.write("keys", b"alpha\n\n  beta  \n");
    let empty = folder.write("empty", b"\n");
    let server = Server::start(&["--api-key-file", &keys, "--api-key", "gamma", "--salt-by-key"]);
    let status = |key: &str| {
        let request =
            server.agent.get(server.url("/v1/models")).header("authorization", format!("Bearer {key}"));
        request.call().expect("an answer").status().as_u16()
    };
    assert_eq!(["alpha", "beta", "gamma", "delta"].map(status), [200, 200, 200, 401]);
    let url = server.url("");
    assert_eq!(
        json(&run(&["ps", "--json", "--url", &url, "--api-key-file", &keys]))["models"][0]["name"],
        "demo"
    );
    let with_variable = run_with(&[("REALIZAR_API_KEY", "beta"), ("REALIZAR_URL", &url)], &["ps", "--json"]);
    assert_eq!(json(&with_variable)["models"][0]["name"], "demo");
    fails(&run(&["ps", "--url", &url]), &["API key"]);
    fails(&run(&["serve", "--port", "0", "--api-key-file", &empty]), &["empty has no key"]);
    fails(&run(&["serve", "--port", "0", "--api-key-file", "/no/such"]), &["could not read /no/such"]);
    is_wrong_usage(&run(&["serve", "--salt-by-key"]), "--api-key");
}

#[test]
fn a_file_without_models_serves_the_one_that_is_named() {
    let folder = Folder::new();
    let file = folder.write("serve.toml", b"served_name = \"fox\"\n\n[serve]\nctx = 128\n");
    let server = Server::start(&["--config", &file, "demo"]);
    let model = server.get("/v1/models/fox");
    assert_eq!(model["max_model_len"], 128);
    let body = value!({"prompt": "Once", "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &body)["model"], "fox");
}
