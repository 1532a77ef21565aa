//! `realizar serve` as a process: what it says when it is ready, its answers against those of `run`, and its end by signals.
#![cfg(unix)]
#![allow(missing_docs, unreachable_pub, dead_code)]

mod support;

use serde_json::json;
use std::io::BufRead;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::server::{PATIENCE, Server};
use support::{Folder, fails, fixture, is_wrong_usage, json, run};

#[test]
fn it_says_that_it_is_ready_and_answers_as_run_does() {
    let server = Server::start(&["--served-name", "fox"]);
    let line = &server.line;
    assert!(line.starts_with("fox is ready at http://127.0.0.1:"), "{line}");
    assert!(line.ends_with(": open it in a browser to chat\n"), "{line}");
    let (device, sizes) = server.more.split_once('\n').expect("two lines");
    assert!(device.starts_with("CPU") && device.contains("loaded in"), "{device}");
    assert!(sizes.starts_with("context of 1024 tokens, cache of"), "{sizes}");
    for question in ["Tell me a story about a fox.", "Is an owl a bird? Answer yes or no."] {
        let ran = json(&run(&["run", question, "--temp", "0", "-n", "60", "--json", "--device", "cpu"]));
        let message = json!([{"role": "user", "content": question}]);
        let body = json!({"model": "fox", "messages": message, "temperature": 0, "max_tokens": 60});
        let answer = server.post("/v1/chat/completions", &body);
        assert_eq!(answer["choices"][0]["message"]["content"], ran["text"]);
        assert_eq!(answer["choices"][0]["finish_reason"], ran["finish_reason"]);
    }
    let ran = json(&run(&[
        "run",
        "--raw",
        "Once upon a time",
        "--temp",
        "0",
        "-n",
        "40",
        "--json",
        "--device",
        "cpu",
    ]));
    let body = json!({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 40});
    assert_eq!(server.post("/v1/completions", &body)["choices"][0]["text"], ran["text"]);
    server.signal("-TERM");
    let (status, out, err) = server.end();
    assert_eq!((status.code(), out.as_str(), err.as_str()), (Some(0), "", ""));
}

/// The page leaves out what nobody filled in, as the second body here does.
#[test]
fn run_serve_and_the_page_choose_tokens_alike() {
    let folder = Folder::new();
    let hf = fixture("qwen2/hf");
    for entry in std::fs::read_dir(&hf).expect("the fixture") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a plain name");
        std::fs::copy(&path, folder.join(name)).expect("it is copied");
    }
    folder.write("generation_config.json", br#"{"do_sample": true, "temperature": 0.6, "top_k": 20}"#);
    let recommending = folder.path().to_str().expect("a plain path");
    let own = json!({"temperature": 0.6, "top_k": 20, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0});
    let general =
        json!({"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.0});
    for (model, expected, recommended) in [("demo", general, false), (recommending, own, true)] {
        let mut shown = json(&run(&["inspect", model, "--json"]))["sampling"].clone();
        assert_eq!(shown["recommended"], recommended);
        shown.as_object_mut().expect("an object").remove("recommended");
        assert_eq!(shown, expected);
        let server = Server::start(&["-m", model]);
        let settings = server.get("/props")["default_generation_settings"]["params"].clone();
        for (name, value) in expected.as_object().expect("an object") {
            let name = if name == "repetition_penalty" { "repeat_penalty" } else { name };
            assert_eq!(settings[name].as_f64(), value.as_f64(), "{name} of {model}");
        }
        let question = "Tell me a story about a fox.";
        let ran = json(&run(&[
            "run", "-m", model, question, "--seed", "7", "-n", "40", "--json", "--device", "cpu",
        ]));
        let message = json!([{"role": "user", "content": question}]);
        let body = json!({"messages": message, "seed": 7, "max_tokens": 40});
        let answer = server.post("/v1/chat/completions", &body);
        assert_eq!(answer["choices"][0]["message"]["content"], ran["text"], "{model}");
    }
}

#[test]
fn a_first_signal_lets_answers_finish_and_a_second_does_not() {
    for (second, code) in [(false, 0), (true, 1)] {
        let server = Server::start(&[]);
        let body = json!({"prompt": "Once", "max_tokens": 900, "ignore_eos": true, "n": if second { 16 } else { 1 }});
        let (url, agent) = (server.url("/v1/completions"), server.agent.clone());
        let asks = std::thread::spawn(move || {
            agent.post(url).content_type("application/json").send(body.to_string())
        });
        let running = || {
            let mut page = server.agent.get(server.url("/metrics")).call().expect("metrics");
            let text = page.body_mut().read_to_string().expect("text");
            !text.contains("realizar_running{model_name=\"demo\"} 0")
        };
        let start = Instant::now();
        while !running() {
            assert!(start.elapsed() < PATIENCE, "it never ran");
        }
        server.signal("-INT");
        if second {
            server.signal("-TERM");
        }
        let (status, _, err) = server.end();
        assert_eq!(status.code(), Some(code), "{err}");
        let answer = asks.join().expect("no panic");
        match second {
            true => assert!(err.starts_with("error: stopped at once"), "{err}"),
            false => assert_eq!(answer.expect("an answer").status(), 200),
        }
    }
}

#[test]
fn a_hangup_drains_unless_it_is_ignored() {
    // An answer shows that it runs, and so listens for signals.
    let body = json!({"prompt": "Once", "max_tokens": 1});
    let server = Server::start(&[]);
    server.post("/v1/completions", &body);
    server.signal("-HUP");
    let (status, _, err) = server.end();
    assert_eq!((status.code(), err.as_str()), (Some(0), ""));
    // As nohup starts it.
    let server = Server::after("trap '' HUP", &[]);
    server.post("/v1/completions", &body);
    server.signal("-HUP");
    for _ in 0..5 {
        server.post("/v1/completions", &body);
    }
    server.signal("-TERM");
    assert_eq!(server.end().0.code(), Some(0));
}

#[test]
fn running_out_of_file_handles_is_told_once_and_passes() {
    let mut server = Server::after("ulimit -n 60", &["--threads", "1"]);
    let address = server.url("").trim_start_matches("http://").to_owned();
    let connections: Vec<_> =
        (0..80).map(|_| TcpStream::connect(&address).expect("the system takes it")).collect();
    let mut line = String::new();
    server.stderr.read_line(&mut line).expect("a line");
    assert!(line.contains("cannot accept connections"), "{line}");
    // Some hundred more failures.
    std::thread::sleep(Duration::from_secs(1));
    drop(connections);
    server.post("/v1/completions", &json!({"prompt": "Once", "max_tokens": 1}));
    server.signal("-TERM");
    let (status, _, err) = server.end();
    assert_eq!((status.code(), err.as_str()), (Some(0), ""));
}

/// Unfinished bodies, dropped and sent anew, since an allocator may keep what it got back from several threads.
#[cfg(target_os = "linux")]
#[test]
fn memory_of_unfinished_bodies_goes_back_to_the_system() {
    use std::io::Write;
    const N_BYTES: usize = 4_000_000;
    const N_BODIES: usize = 100_000_000 / N_BYTES;
    let server = Server::start(&["--threads", "1"]);
    let address = server.url("").trim_start_matches("http://").to_owned();
    let until = |what: &str, holds: &dyn Fn(usize) -> bool| {
        let start = Instant::now();
        while !holds(server.resident_bytes()) {
            assert!(start.elapsed() < PATIENCE, "{what}: {} bytes", server.resident_bytes());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    server.post("/v1/completions", &json!({"prompt": "Once", "max_tokens": 1}));
    let before = server.resident_bytes();
    for round in 0..5 {
        let mut clients: Vec<_> = (0..N_BODIES)
            .map(|_| {
                let mut client = TcpStream::connect(&address).expect("a connection");
                let head =
                    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
                write!(client, "{head}\r\nContent-Length: {}\r\n\r\n", N_BYTES + 1).expect("it is read");
                client
            })
            .collect();
        // In turn, as clients do that send at the same time.
        let part = vec![b' '; 100_000];
        for _ in 0..N_BYTES / part.len() {
            clients.iter_mut().for_each(|client| client.write_all(&part).expect("it is read"));
        }
        until("they have arrived", &|now| now > before + N_BODIES * N_BYTES * 9 / 10);
        drop(clients);
        let what = format!("round {round}, of {before} bytes before");
        until(&what, &|now| now < before + N_BODIES * N_BYTES / 4);
    }
}

#[test]
fn clients_may_address_it_by_a_name_that_is_allowed() {
    let server = Server::start(&["--allowed-host", "models.example"]);
    let status = |host: &str| {
        let request = server.agent.get(server.url("/v1/models")).header("host", host);
        request.call().expect("an answer").status().as_u16()
    };
    let hosts = ["models.example", "models.example:80", "localhost", "other.example"];
    assert_eq!(hosts.map(status), [200, 200, 200, 403]);
}

#[test]
fn what_cannot_be_served_is_said() {
    is_wrong_usage(&run(&["serve", "--port", "99999"]), "99999");
    is_wrong_usage(&run(&["serve", "--kv-memory", "lots"]), "512M");
    is_wrong_usage(&run(&["serve", "--max-seqs", "0"]), "at least 1");
    is_wrong_usage(&run(&["serve", "--drain-seconds=-1"]), "drain-seconds");
    is_wrong_usage(&run(&["serve", "--api-key", ""]), "api-key");
    fails(&run(&["serve", "-m", "/no/such/model.gguf"]), &["/no/such/model.gguf"]);
    fails(&run(&["serve", "--kv-memory", "1k", "--ctx", "512"]), &["--kv-memory", "512 are wanted"]);
    fails(&run(&["serve", "--port", "0", "--cors", "everyone"]), &["everyone", "not an origin"]);
    fails(
        &run(&["serve", "--port", "0", "--host", "256.256.256.256"]),
        &["could not listen at 256.256.256.256:0"],
    );
    let first = Server::start(&[]);
    let port = first.url("").rsplit(':').next().expect("a port").to_owned();
    fails(&run(&["serve", "--port", &port]), &["could not listen", &port]);
}

#[test]
fn each_request_has_a_line_without_its_content() {
    let mut command = support::realizar();
    command.env("RUST_LOG", "realizar_server::access=info");
    let server = Server::by(command, &[]);
    let body = json!({"prompt": "Once upon a midnight", "max_tokens": 5, "ignore_eos": true, "stream": true});
    let request = server.agent.post(server.url("/v1/completions?secret=word")).header("x-request-id", "mine");
    let mut answer = request.content_type("application/json").send(body.to_string()).expect("an answer");
    answer.body_mut().read_to_string().expect("the stream to its end");
    server.get("/v1/models");
    drop(server.agent.get(server.url("/health")).call().expect("an answer"));
    drop(server.agent.get(server.url("/nothing")).call().expect("an answer"));
    server.signal("-TERM");
    let (_, _, log) = server.end();
    assert!(!log.contains("midnight") && !log.contains("secret"), "{log}");
    let lines: Vec<&str> = log.lines().collect();
    let [streamed, listed, missing] = lines[..] else { panic!("{log}") };
    for part in [
        "INFO answered method=POST path=\"/v1/completions\" status=200 ms=",
        " prompt_tokens=",
        " cached_tokens=0 tokens=5 id=\"mine\" client=127.0.0.1:",
    ] {
        assert!(streamed.contains(part), "{part} in {streamed}");
    }
    assert!(
        listed.contains("method=GET path=\"/v1/models\" status=200") && !listed.contains("tokens"),
        "{listed}"
    );
    assert!(missing.contains("path=\"/nothing\" status=404"), "{missing}");
}

#[test]
fn logs_can_be_json() {
    let server = Server::start(&["--log-format", "json"]);
    let ready: serde_json::Value = serde_json::from_str(&server.line).expect("JSON");
    assert_eq!(
        (&ready["level"], &ready["message"], &ready["name"]),
        (&json!("INFO"), &json!("ready"), &json!("demo"))
    );
    assert!(ready["urls"].as_str().is_some_and(|urls| urls.starts_with("http://127.0.0.1:")), "{ready}");
    let output = run(&["serve", "--log-format", "json", "-m", "/no/such.gguf"]);
    let error: serde_json::Value = serde_json::from_str(support::stderr(&output)).expect("JSON");
    assert_eq!((output.status.code(), &error["level"]), (Some(1), &json!("ERROR")));
    assert!(error["message"].as_str().is_some_and(|message| message.contains("/no/such.gguf")), "{error}");
}

#[test]
fn a_server_s_model_is_shown() {
    let folder = Folder::new();
    let model = folder.write("fox.gguf", &support::demo());
    let server = Server::start(&["-m", &model, "--ctx", "512"]);
    let url = server.url("");
    let shown = json(&run(&["show", "--running", "--url", &url, "--json"]));
    assert_eq!(
        (&shown["model"], &shown["status"], &shown["context"]),
        (&json!("fox"), &json!("loaded"), &json!(512))
    );
    assert_eq!((&shown["format"], &shown["family"]), (&json!("gguf"), &json!("llama")));
    assert_eq!(shown["bytes"], json(&run(&["show", &model, "--json"]))["weight_bytes"]);
    let sampling = &shown["sampling"];
    assert!(
        sampling["temperature"] == 0.8 && sampling["top_k"] == 40.0 && sampling["top_p"] == 0.95,
        "{sampling}"
    );
    let table = run(&["show", "fox", "--running", "--url", &url]);
    assert!(support::succeeds(&table).contains("context        512 tokens"), "{}", support::stdout(&table));
    let template = run(&["show", "fox", "--running", "--url", &url, "--template"]);
    let own = run(&["show", &model, "--template"]);
    assert_eq!(support::succeeds(&template), support::succeeds(&own));
    fails(&run(&["show", "owl", "--running", "--url", &url]), &["owl"]);
    fails(&run(&["show", "--running", "--url", "http://127.0.0.1:1"]), &["no server answers"]);
    is_wrong_usage(&run(&["show", "--running", "--ctx", "5"]), "--ctx");
}
