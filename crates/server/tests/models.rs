//! A server with several models: they are loaded when somebody asks for them, and leave when nobody does or others need their room.
//!
//! All are the demo model under different names; the tests' loader counts what it loads, and can be made to wait or to fail.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod http;

use http::{TestServer, ask, data_of, text_engine, until};
use realizar_engine::load::{CacheSize, Device, LoadOptions, load};
use realizar_engine::{EngineConfig, SamplingParams};
use realizar_model::source;
use realizar_server::{
    Config, KeepAlive, LoadError, LoadedModel, ModelEntry, ModelFacts, ModelLimits, ModelLoader, Models,
    TextModel,
};
use serde_json::{Value, json};
use std::io::{BufRead, Read};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";

#[derive(Default)]
struct Loader {
    /// Names in the order of their loading.
    loaded: Mutex<Vec<String>>,
    /// Loading waits while somebody holds it.
    gate: Arc<Mutex<()>>,
    /// Models that have room together at most; 0: all.
    room: usize,
    /// Of those that are loaded.
    clients: Mutex<Vec<realizar_engine::Client>>,
}

impl ModelLoader for Loader {
    fn load(&self, name: &str, alone: bool) -> Result<LoadedModel, LoadError> {
        drop(self.gate.lock());
        if name == "broken" {
            return Err(LoadError::Failed("its file is damaged".into()));
        }
        let mut clients = self.clients.lock().expect("no panic");
        clients.retain(|client| client.health() == realizar_engine::Health::Ready);
        // A model whose engine has stopped counts as one that takes memory until the table learns of it.
        assert!(!alone || clients.is_empty(), "{} models take memory", clients.len());
        assert!(alone || !self.loaded.lock().expect("no panic").is_empty(), "there was no other model yet");
        if name == "huge" || (self.room > 0 && clients.len() >= self.room) {
            return Err(LoadError::Memory(format!("{} models take all memory", clients.len())));
        }
        let demo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf");
        let options = LoadOptions {
            device: Device::Cpu,
            n_threads: 1,
            cache: CacheSize::Tokens(1024),
            n_ctx: Some(512),
            ..LoadOptions::default()
        };
        let runner = load(&*source::open(&demo).expect("the demo model"), &options).expect("a runner").runner;
        let engine = text_engine(runner, EngineConfig::default());
        clients.push(engine.client().clone());
        self.loaded.lock().expect("no panic").push(name.to_owned());
        Ok(LoadedModel::Text(TextModel {
            engine,
            facts: ModelFacts { family: "llama".into(), size: 5, ..ModelFacts::default() },
            sampling: SamplingParams::default(),
        }))
    }
}

fn entry(names: &[&str]) -> ModelEntry {
    let facts = ModelFacts { family: "llama".into(), size: 5, ..ModelFacts::default() };
    ModelEntry { names: names.iter().map(ToString::to_string).collect(), facts, ..ModelEntry::default() }
}

fn start(loader: Loader, limits: ModelLimits) -> (TestServer, Arc<Loader>) {
    let loader = Arc::new(loader);
    let names = [&["a", "alias"][..], &["b"], &["c"], &["broken"], &["huge"]];
    let entries = names.iter().map(|names| entry(names)).collect();
    let models = Models::many(entries, loader.clone(), limits).expect("a table");
    (TestServer::around_models(models, Config::default()), loader)
}

fn asking(model: &str, more: &Value) -> Value {
    let mut body = ask("Tell me a story.", more);
    body["model"] = model.into();
    body
}

/// Asks a model and returns what it says.
fn answer(server: &TestServer, model: &str) -> String {
    let answer = server.post(CHAT, &asking(model, &json!({"max_tokens": 8}))).ok();
    assert_eq!(answer["model"], model);
    answer["choices"][0]["message"]["content"].as_str().expect("a text").to_owned()
}

fn running(server: &TestServer) -> Vec<String> {
    let models = server.get("/api/ps").ok()["models"].as_array().expect("a list").clone();
    models.iter().map(|model| model["name"].as_str().expect("a name").to_owned()).collect()
}

fn loaded(loader: &Loader) -> Vec<String> {
    loader.loaded.lock().expect("no panic").clone()
}

fn limits(max_loaded: usize) -> ModelLimits {
    ModelLimits { max_loaded: Some(max_loaded), ..ModelLimits::default() }
}

#[test]
fn a_model_is_loaded_when_somebody_asks_for_it() {
    let (server, loader) = start(Loader::default(), ModelLimits::default());
    assert_eq!(server.get("/ready").status, 200);
    let listed = server.get("/v1/models").ok();
    let ids: Vec<&str> =
        listed["data"].as_array().expect("a list").iter().filter_map(|m| m["id"].as_str()).collect();
    assert_eq!(ids, ["a", "alias", "b", "c", "broken", "huge"]);
    assert_eq!(listed["data"][0]["status"]["value"], "unloaded");
    assert_eq!(server.get("/api/tags").ok()["models"].as_array().map(Vec::len), Some(6));
    assert_eq!((running(&server), loaded(&loader)), (vec![], vec![]));
    server.post("/api/show", &json!({"model": "b"})).ok();
    assert_eq!(loaded(&loader), [""; 0], "to list and to describe loads nothing");

    assert_eq!(answer(&server, "b"), answer(&server, "alias"));
    assert_eq!(loaded(&loader), ["b", "a"]);
    assert_eq!(running(&server), ["a", "alias", "b"]);
    assert_eq!(server.get("/v1/models/alias").ok()["status"]["value"], "loaded");
    assert_eq!(server.get("/v1/models/alias").ok()["max_model_len"], 512);
    // Without a name: the first.
    let mut body = ask("Go.", &json!({"max_tokens": 1}));
    body.as_object_mut().expect("an object").remove("model");
    assert_eq!(server.post(CHAT, &body).ok()["model"], "a");
    assert_eq!(loaded(&loader), ["b", "a"]);
    let unknown = server.post(CHAT, &asking("other", &json!({})));
    unknown.is_error(404, Some("model"), "this server has a, alias, b");

    let metrics = server.get("/metrics").text;
    for model in ["a", "b"] {
        let line = format!("realizar_requests_total{{model_name=\"{model}\"}}");
        assert!(metrics.contains(&line), "{metrics}");
    }
    assert_eq!(metrics.matches("# TYPE realizar_requests_total ").count(), 1);
}

#[test]
fn requests_for_a_model_that_is_loading_load_it_once() {
    let (server, loader) = start(Loader::default(), ModelLimits::default());
    let hold = loader.gate.lock().expect("no panic");
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..6)
            .map(|i| {
                scope.spawn({
                    let server = &server;
                    move || answer(server, if i % 2 == 0 { "a" } else { "b" })
                })
            })
            .collect();
        until("a is loading", || server.get("/v1/models/a").ok()["status"]["value"] == "loading");
        until("b is loading", || server.get("/v1/models/b").ok()["status"]["value"] == "loading");
        assert_eq!(server.get("/health").status, 200);
        drop(hold);
        let answers: Vec<String> = asked.into_iter().map(|a| a.join().expect("an answer")).collect();
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    });
    let mut names = loaded(&loader);
    names.sort();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn what_was_used_least_recently_makes_room() {
    let (server, loader) = start(Loader::default(), limits(2));
    for model in ["a", "b", "a", "c"] {
        answer(&server, model);
    }
    assert_eq!(running(&server), ["a", "alias", "c"]);
    answer(&server, "b");
    assert_eq!(running(&server), ["b", "c"]);
    assert_eq!(loaded(&loader), ["a", "b", "c", "b"]);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn models_leave_until_the_next_one_fits() {
    let (server, loader) = start(Loader { room: 1, ..Loader::default() }, ModelLimits::default());
    answer(&server, "a");
    answer(&server, "b");
    assert_eq!(
        (running(&server), loaded(&loader)),
        (vec!["b".to_owned()], vec!["a".to_owned(), "b".to_owned()])
    );
    let huge = server.post(CHAT, &asking("huge", &json!({})));
    huge.is_error(503, None, "could not load the model huge: 0 models take all memory");
    assert!(huge.text.contains("model_load_failed"));
    answer(&server, "b");
}

#[test]
fn a_stream_keeps_its_model_until_its_end() {
    let (server, loader) = start(Loader::default(), limits(1));
    answer(&server, "a");
    let long = json!({"stream": true, "max_tokens": 400, "ignore_eos": true});
    let mut stream = server.begin_stream(&asking("a", &long));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| answer(&server, "b"));
        until("b waits", || server.get("/v1/models/b").ok()["status"]["value"] == "loading");
        server.post("/models/unload", &json!({"model": "a"})).ok();
        let mut rest = String::new();
        while !rest.ends_with("[DONE]\n") {
            assert_ne!(stream.read_line(&mut rest).expect("more"), 0, "the stream has ended: {rest}");
        }
        assert!(rest.contains("\"finish_reason\":\"length\""), "{rest}");
        other.join().expect("an answer");
    });
    assert_eq!(
        (running(&server), loaded(&loader)),
        (vec!["b".to_owned()], vec!["a".to_owned(), "b".to_owned()])
    );
}

#[test]
fn a_steady_stream_of_requests_does_not_keep_others_out() {
    let (server, _) = start(Loader::default(), limits(1));
    answer(&server, "a");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    answer(&server, "a");
                }
            });
        }
        answer(&server, "b");
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_model_that_cannot_be_loaded_says_why_and_is_tried_again() {
    let (server, _) = start(Loader::default(), ModelLimits::default());
    for _ in 0..2 {
        let reply = server.post(CHAT, &asking("broken", &json!({})));
        reply.is_error(503, None, "could not load the model broken: its file is damaged");
    }
    let reply = server
        .post("/api/chat", &json!({"model": "broken", "messages": [{"role": "user", "content": "Hi"}]}));
    assert_eq!(reply.status, 503);
    assert!(reply.text.contains("{\"error\":\"could not load the model broken"), "{}", reply.text);
    // Streams have begun when it turns out.
    let reply = server.post(CHAT, &asking("broken", &json!({"stream": true})));
    assert_eq!(reply.status, 200);
    let data = data_of(&reply.text);
    assert!(data[0].contains("its file is damaged") && data[1] == "[DONE]", "{data:?}");
    for (path, body) in [
        (
            "/v1/messages",
            json!({"model": "broken", "max_tokens": 1, "stream": true, "messages": [{"role": "user", "content": "Hi"}]}),
        ),
        ("/v1/responses", json!({"model": "broken", "stream": true, "input": "Hi"})),
    ] {
        let text = server.post(path, &body).text;
        assert!(text.contains("event: error\ndata: ") && text.contains("its file is damaged"), "{text}");
    }
    answer(&server, "a");
}

#[test]
fn a_stream_shows_that_its_model_is_loading() {
    let (server, loader) = start(Loader::default(), ModelLimits::default());
    let hold = loader.gate.lock().expect("no panic");
    let mut connection = server.connect();
    let body = asking("a", &json!({"stream": true, "max_tokens": 4}));
    std::io::Write::write_all(&mut connection, &http::post_bytes(CHAT, &body)).expect("it is read");
    let mut reader = std::io::BufReader::new(connection);
    let mut seen = String::new();
    while !seen.contains(": loading the model\n") {
        assert_ne!(reader.read_line(&mut seen).expect("more"), 0, "{seen}");
    }
    assert!(seen.starts_with("HTTP/1.1 200") && seen.contains("content-type: text/event-stream"), "{seen}");
    drop(hold);
    while !seen.contains("[DONE]") {
        assert_ne!(reader.read_line(&mut seen).expect("more"), 0, "{seen}");
    }
    assert!(seen.contains("\"finish_reason\":\"length\""), "{seen}");
    // Whoever goes away while the model loads is not missed.
    let hold = loader.gate.lock().expect("no panic");
    let mut connection = server.connect();
    let body = asking("b", &json!({"stream": true}));
    std::io::Write::write_all(&mut connection, &http::post_bytes(CHAT, &body)).expect("it is read");
    connection.read_exact(&mut [0; 16]).expect("an answer");
    drop(connection);
    drop(hold);
    until("b is loaded", || loaded(&loader) == ["a", "b"]);
    answer(&server, "b");
}

#[test]
fn a_model_stays_as_long_as_keep_alive_says() {
    let keep_alive = KeepAlive(Some(Duration::from_millis(50)));
    let (server, loader) = start(Loader::default(), ModelLimits { keep_alive, ..ModelLimits::default() });
    answer(&server, "a");
    until("a is unloaded", || running(&server).is_empty());
    // A request has its own.
    let chat = |model: &str, more: &Value| {
        let mut body = json!({"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": false, "options": {"num_predict": 4}});
        more.as_object().expect("an object").iter().for_each(|(key, value)| body[key] = value.clone());
        server.post("/api/chat", &body)
    };
    chat("b", &json!({"keep_alive": -1})).ok();
    chat("c", &json!({"keep_alive": "10m"})).ok();
    answer(&server, "a");
    until("a is unloaded again", || running(&server) == ["b", "c"]);
    let models = server.get("/api/ps").ok()["models"].clone();
    assert_eq!(models[0]["expires_at"], "2318-01-01T00:00:00Z");
    assert!(models[1]["expires_at"].as_str().is_some_and(|time| time < "2318" && time > "2020"), "{models}");
    chat("b", &json!({"keep_alive": 0})).ok();
    until("b is unloaded", || running(&server) == ["c"]);
    let unloaded = chat("c", &json!({"keep_alive": 0, "messages": []})).ok();
    assert_eq!((&unloaded["done_reason"], &unloaded["done"]), (&json!("unload"), &json!(true)));
    until("c is unloaded", || running(&server).is_empty());
    let loads = loaded(&loader).len();
    chat("c", &json!({"keep_alive": "0s", "messages": []})).ok();
    assert_eq!(loaded(&loader).len(), loads, "nothing is loaded only to be unloaded");
    let wrong = chat("c", &json!({"keep_alive": "soon"}));
    assert!(wrong.status == 400 && wrong.text.contains("keep_alive"), "{}", wrong.text);
}

#[test]
fn models_are_loaded_and_unloaded_as_told() {
    let (server, loader) = start(Loader::default(), ModelLimits::default());
    assert_eq!(server.post("/models/load", &json!({"model": "b"})).ok(), json!({"success": true}));
    assert_eq!((running(&server), loaded(&loader)), (vec!["b".to_owned()], vec!["b".to_owned()]));
    assert_eq!(server.post("/models/unload", &json!({"model": "b"})).ok(), json!({"success": true}));
    until("b is unloaded", || running(&server).is_empty());
    server.post("/models/load", &json!({"model": "other"})).is_error(404, Some("model"), "this server has");
    server.post("/models/unload", &json!({"model": "other"})).is_error(404, Some("model"), "this server has");
    let one = TestServer::start();
    one.post("/models/unload", &json!({"model": "demo"})).is_error(501, None, "one model");
}

#[test]
fn who_waits_for_a_model_is_told_when_the_server_stops() {
    let (server, loader) = start(Loader::default(), limits(1));
    answer(&server, "a");
    let hold = loader.gate.lock().expect("no panic");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| server.post(CHAT, &asking("b", &json!({}))));
        until("b is loading", || server.get("/v1/models/b").ok()["status"]["value"] == "loading");
        server.handle.stop();
        waits.join().expect("an answer").is_error(503, None, "shut");
    });
    drop(hold);
    assert_eq!(server.join(), realizar_server::Ended::Drained);
}

#[test]
fn who_waits_for_room_is_told_when_the_server_stops() {
    let (server, _) = start(Loader::default(), limits(1));
    answer(&server, "a");
    let long = json!({"stream": true, "max_tokens": 400, "ignore_eos": true});
    let mut stream = server.begin_stream(&asking("a", &long));
    std::thread::scope(|scope| {
        // Each learns of it from the table or from the loading that is given up, whatever comes first.
        let wait = |_| scope.spawn(|| server.post(CHAT, &asking("b", &json!({}))));
        let waiting: Vec<_> = (0..8).map(wait).collect();
        until("b waits", || server.get("/v1/models/b").ok()["status"]["value"] == "loading");
        server.handle.stop();
        for answer in waiting {
            answer.join().expect("an answer").is_error(503, None, "shut");
        }
        let mut rest = String::new();
        stream.read_to_string(&mut rest).expect("the stream ends");
        assert!(rest.contains("\"finish_reason\":\"length\""), "{rest}");
    });
    assert_eq!(server.join(), realizar_server::Ended::Drained);
}

#[test]
fn names_must_tell_models_apart() {
    let many = |names: &[&[&str]]| {
        let entries = names.iter().map(|names| entry(names)).collect();
        Models::many(entries, Arc::new(Loader::default()), ModelLimits::default())
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    assert_eq!(many(&[&["a"], &["b", "a"]]), Err("two models have the name \"a\"".into()));
    assert!(many(&[]).is_err() && many(&[&[]]).is_err());
}
