//! What clients do wrong: each gets an error that says so, holds nothing, and disturbs nobody.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod http;

use http::recital::reciting_with;
use http::{Reply, TestServer, ask, data_of, post_bytes, read_all, text_engine, until};
use realizar_compute::BatchLimits;
use realizar_engine::{BlockCopy, EngineConfig, Result, Runner, RunnerInfo, Sampled, Step, Ticket};
use realizar_server::{Config, Ended};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// A request that runs until the context's end.
fn long(more: &Value) -> Value {
    let mut body = ask("Tell me a story.", &json!({"max_tokens": 100_000, "ignore_eos": true}));
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

#[test]
fn what_is_not_json_is_refused() {
    let server = TestServer::start();
    for body in [&b"{"[..], b"", b"{\"messages\": [}", b"{\"temperature\": NaN}", b"\x00\x01"] {
        server.post_bytes(CHAT, body).is_error(400, None, "not valid JSON");
    }
    server.post_bytes(CHAT, b"{\"messages\": \"\xff\xfe\"}").is_error(400, None, "not UTF-8");
    let deep = ["[".repeat(100_000), "]".repeat(100_000)].concat();
    server.post_bytes(CHAT, deep.as_bytes()).is_error(400, None, "");
    for body in [&b"[]"[..], b"7", b"\"text\"", b"null"] {
        server.post_bytes(CHAT, body).is_error(400, None, "must be a JSON object");
    }
    server.is_idle_in_the_end();
}

#[test]
fn a_wrong_type_is_refused_by_name() {
    let server = TestServer::start();
    for (more, param) in [
        (json!({"messages": "hello"}), "messages"),
        (json!({"messages": [{"role": 1, "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": 7}]}), "messages[0].content"),
        (json!({"messages": []}), "messages"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"n": 0}), "n"),
        (json!({"n": 100_000}), "n"),
        (json!({"n": -3}), "n"),
        (json!({"seed": "lucky"}), "seed"),
        (json!({"stop": 5}), "stop"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": vec!["x"; 100]}), "stop"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"temperature": 1e300}), "temperature"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"top_p": -0.1}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"min_p": 2}), "min_p"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"frequency_penalty": 3}), "frequency_penalty"),
        (json!({"presence_penalty": -2.5}), "presence_penalty"),
        (json!({"logit_bias": {"5": 101}}), "logit_bias"),
        (json!({"logit_bias": {"five": 1}}), "logit_bias"),
        (json!({"logit_bias": {"4000000": 1}}), "logit_bias"),
        (json!({"logit_bias": [1]}), "logit_bias"),
        (json!({"logprobs": 3}), "logprobs"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"priority": 5000}), "priority"),
        (json!({"cache_salt": 1}), "cache_salt"),
    ] {
        let reply = server.post(CHAT, &ask("Hello.", &more));
        reply.is_error(400, Some(param), "");
    }
    for (body, param) in [
        (json!({"prompt": [1, -1]}), "prompt"),
        (json!({"prompt": [[1], ["x"]]}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [[]]}), "prompt"),
        (json!({"prompt": [4_000_000]}), "prompt"),
        (json!({"prompt": "a", "logprobs": 21}), "logprobs"),
        (json!({"prompt": "a", "echo": 1}), "echo"),
        (json!({"prompt": vec!["a"; 2000]}), "prompt"),
    ] {
        server.post(TEXT, &body).is_error(400, Some(param), "");
    }
    server.post(TEXT, &json!({})).is_error(400, None, "missing field `prompt`");
    // A number that no float can hold is no JSON number.
    server.post_bytes(TEXT, br#"{"prompt": "a", "temperature": 1e999}"#).is_error(400, None, "out of range");
    assert_eq!(server.client().stats().steps.get(), 0, "nothing was computed");
}

#[test]
fn stop_strings_are_bounded_together() {
    let server = TestServer::start();
    let post = |stops: &[String]| server.post(TEXT, &json!({"prompt": "a", "max_tokens": 1, "stop": stops}));
    // 64 strings of 1 KiB each.
    let mut stops: Vec<String> = (0..64).map(|i| format!("{i:1024}")).collect();
    post(&stops).ok();
    stops[7].push('x');
    post(&stops).is_error(400, Some("stop"), "the stop strings have 65537 bytes but at most 65536 are taken");
}

#[test]
fn a_prompt_over_the_context_costs_nothing() {
    let server = TestServer::start();
    let limit = server.client().info().max_seq_len();
    let reply = server.post(TEXT, &json!({"prompt": vec![5; limit + 1]}));
    reply.is_error(400, Some("prompt"), &format!("{}", limit + 1));
    reply.is_error(400, Some("prompt"), &format!("maximum context length is {limit} tokens"));
    assert!(reply.text.contains("context_length_exceeded"));
    let question = "fox ".repeat(limit);
    server.post(CHAT, &ask(&question, &json!({}))).is_error(
        400,
        Some("messages"),
        &format!("maximum context length is {limit} tokens"),
    );
    assert_eq!(server.client().stats().steps.get(), 0);
}

#[test]
fn a_body_over_the_limit_is_refused() {
    let server = TestServer::with(|setup| setup.config.max_body = 10_000);
    let reply = server.post(TEXT, &json!({"prompt": "x".repeat(20_000)}));
    reply.is_error(413, None, "10000 bytes");
    // Declared only: the answer comes before the body.
    let head = format!("POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
    let reply = server.raw(format!("{head}Content-Length: 99999999999\r\n\r\n").as_bytes());
    assert!(reply.starts_with("HTTP/1.1 413"), "{reply}");
    // Not declared: it is read up to the limit.
    let chunk = format!("{:x}\r\n{}\r\n", 4000, " ".repeat(4000));
    let reply = server.raw(format!("{head}Transfer-Encoding: chunked\r\n\r\n{}", chunk.repeat(3)).as_bytes());
    assert!(reply.starts_with("HTTP/1.1 413"), "{reply}");
    assert_eq!(server.post(TEXT, &json!({"prompt": "a", "max_tokens": 1})).status, 200);
}

/// A POST that declares a body of `n` bytes, without the body.
fn head(path: &str, more: &str, n: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {n}\r\n{more}\r\n"
    )
}

/// Reads one answer with a body of declared length.
fn read_answer(reader: &mut impl BufRead) -> String {
    let (mut text, mut n_bytes) = (String::new(), 0);
    loop {
        let start = text.len();
        assert_ne!(reader.read_line(&mut text).expect("a line of the answer"), 0, "{text}");
        let line = text[start..].to_ascii_lowercase();
        if let Some(n) = line.strip_prefix("content-length:") {
            n_bytes = n.trim().parse().expect("a number");
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; n_bytes];
    reader.read_exact(&mut body).expect("the body");
    text + &String::from_utf8(body).expect("text")
}

#[test]
fn a_refusal_reaches_a_client_that_sends_its_whole_body_first() {
    let server = TestServer::with(|setup| setup.config.max_body = 10_000);
    // More than the system's buffers hold, so that it cannot be sent unless somebody reads it.
    let body = vec![b' '; 20 << 20];
    let mut stream = server.connect();
    stream.set_write_timeout(Some(http::PATIENCE)).expect("a timeout");
    let mut reader = BufReader::new(stream.try_clone().expect("the same connection"));
    for (path, status) in [(TEXT, "413"), ("/nowhere", "404"), ("/health", "405"), (TEXT, "413")] {
        stream.write_all(head(path, "", body.len()).as_bytes()).expect("it is read");
        stream.write_all(&body).expect("all of it is read");
        let answer = read_answer(&mut reader);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert!(answer.contains("\"error\""), "{answer}");
    }
    // The connection is still good.
    stream.write_all(&post_bytes(TEXT, &json!({"prompt": "a", "max_tokens": 1}))).expect("it is read");
    assert!(read_answer(&mut reader).starts_with("HTTP/1.1 200"));
    // A client that asks first need not send it.
    let reply = server.raw(head(TEXT, "Expect: 100-continue\r\n", body.len()).as_bytes());
    assert!(reply.starts_with("HTTP/1.1 413"), "{reply}");
}

#[test]
fn unfinished_bodies_share_a_budget() {
    let server = TestServer::with(|setup| {
        (setup.config.max_body, setup.config.body_memory) = (1 << 20, 2 << 20);
    });
    let large = json!({"prompt": "a", "max_tokens": 1, "user": "x".repeat(600_000)});
    let small = json!({"prompt": "a", "max_tokens": 1});
    assert_eq!(server.post(TEXT, &large).status, 200);
    // Two bodies that never end, with less left of the budget than a third needs. Where that comes before they have arrived, one of them
    // is refused instead: then all are sent again.
    let mut found = None;
    until("a body is refused for those that are unfinished", || {
        drop(found.take());
        let unfinished = [1, 2].map(|_| {
            let mut stream = server.connect();
            stream.write_all(head(TEXT, "", 1 << 20).as_bytes()).expect("it is read");
            stream.write_all(&vec![b' '; 800_000]).expect("it is read");
            stream
        });
        std::thread::sleep(Duration::from_millis(100));
        let reply = server.post(TEXT, &large);
        let is_refused = reply.status != 200;
        found = Some((reply, unfinished));
        is_refused
    });
    let (refused, unfinished) = found.expect("a reply");
    refused.is_error(429, None, "memory for bodies");
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(server.post(TEXT, &small).status, 200, "small requests come through");
    drop(unfinished);
    until("the budget is given back", || server.post(TEXT, &large).status == 200);
}

#[test]
fn other_names_than_this_machine_s_are_not_answered_without_a_key() {
    let get = |server: &TestServer, host: &str, more: &str| {
        server.raw(
            format!("GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n").as_bytes(),
        )
    };
    let server = TestServer::start();
    for host in ["localhost", "127.0.0.1:1", "[::1]:8080", "demo.localhost"] {
        assert!(get(&server, host, "").starts_with("HTTP/1.1 200"), "{host}");
    }
    let refused = get(&server, "evil.example:8080", "");
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("--allowed-host"), "{refused}");
    let refused = get(&server, "localhost", "Origin: https://evil.example\r\n");
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("--cors"), "{refused}");
    assert!(get(&server, "localhost:1", "Origin: http://localhost:1\r\n").starts_with("HTTP/1.1 200"));
    drop(server);
    let server = TestServer::with(|setup| setup.config.allowed_hosts = vec!["models.example".into()]);
    assert!(get(&server, "Models.Example:80", "").starts_with("HTTP/1.1 200"));
    assert!(get(&server, "evil.example", "").starts_with("HTTP/1.1 403"));
    drop(server);
    let server = TestServer::with(|setup| setup.config.api_keys = vec!["alpha".into()]);
    let authorized = "Authorization: Bearer alpha\r\n";
    assert!(get(&server, "models.example", authorized).starts_with("HTTP/1.1 200"));
}

#[test]
fn a_model_s_name_that_is_not_utf_8_is_refused_in_json() {
    let server = TestServer::start();
    server.get("/v1/models/%ff").is_error(400, Some("model"), "not UTF-8");
}

#[test]
fn an_idle_server_takes_as_many_prompts_as_may_wait() {
    let server = TestServer::start();
    let body = json!({"prompt": vec!["a"; 1024], "max_tokens": 1});
    for _ in 0..3 {
        let reply = server.post(TEXT, &body).ok();
        assert_eq!(reply["choices"].as_array().expect("choices").len(), 1024);
    }
}

#[test]
fn anything_but_json_is_not_taken() {
    let server = TestServer::start();
    let body = r#"{"prompt": "a", "max_tokens": 1}"#;
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let page = "Origin: http://localhost:9\r\n";
    for (headers, status) in [
        ("Content-Type: text/plain\r\n".to_owned(), 415),
        ("Content-Type: application/jsonx\r\n".to_owned(), 415),
        // As curl sends it, and as a page may send it without asking.
        (form.to_owned(), 200),
        (String::new(), 200),
        (format!("{form}{page}"), 415),
        (page.to_owned(), 415),
        (format!("{form}Sec-Fetch-Site: cross-site\r\n"), 415),
        (format!("Content-Type: application/json\r\n{page}"), 200),
    ] {
        let head = format!("POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}");
        let n = body.len();
        let reply = server.raw(format!("{head}Content-Length: {n}\r\n\r\n{body}").as_bytes());
        assert!(reply.starts_with(&format!("HTTP/1.1 {status}")), "{headers}: {reply}");
    }
}

#[test]
fn what_is_no_page_or_no_method_is_said_so() {
    let server = TestServer::start();
    server.get("/v2/chat").is_error(404, None, "/docs");
    server.get(CHAT).is_error(405, None, "method");
    let reply = server.raw(b"nonsense\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 400") || reply.is_empty(), "{reply}");
    let reply = server
        .raw(format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(1 << 20)).as_bytes());
    assert!(reply.starts_with("HTTP/1.1 431") || reply.is_empty(), "{reply}");
}

#[test]
fn a_key_is_needed_where_there_are_keys() {
    let server = TestServer::with(|setup| setup.config.api_keys = vec!["alpha".into(), "beta".into()]);
    let body = json!({"prompt": "a", "max_tokens": 1});
    let with = |value: &str| server.post_with(TEXT, &[("authorization", value)], &body);
    let none = server.post(TEXT, &body);
    none.is_error(401, None, "needs an API key");
    assert_eq!(none.header("www-authenticate"), "Bearer");
    for wrong in ["Bearer gamma", "Bearer alph", "Bearer alphaa", "Bearer ", "Basic alpha", "alpha"] {
        assert_eq!(with(wrong).status, 401, "{wrong}");
    }
    assert_eq!((with("Bearer alpha").status, with("Bearer beta").status), (200, 200));
    assert_eq!(server.get("/v1/models").status, 401);
    for page in ["/health", "/ready", "/metrics", "/docs", "/openapi.json"] {
        assert_eq!(server.get(page).status, 200, "{page}");
    }
}

#[test]
fn a_client_that_leaves_frees_what_it_held() {
    let server = TestServer::with(|setup| setup.engine.max_seqs = 2);
    let request = post_bytes(CHAT, &long(&json!({})));
    // In the headers, in the body, at once after it.
    for end in [20, request.len() - 10, request.len()] {
        let mut stream = server.connect();
        stream.write_all(&request[..end]).expect("it is read");
        drop(stream);
    }
    server.is_idle_in_the_end();
    // While the answer is computed, and nothing of it was sent.
    let mut whole = server.connect();
    whole.write_all(&request).expect("it is read");
    until("it runs", || server.client().stats().running.get() == 1);
    drop(whole);
    server.is_idle_in_the_end();
    // In the middle of streams, one of which waits for its turn.
    let streams = [1, 2].map(|_| server.begin_stream(&long(&json!({"stream": true}))));
    let mut waiting = server.connect();
    waiting.write_all(&post_bytes(CHAT, &long(&json!({"stream": true})))).expect("it is read");
    until("one waits", || server.client().stats().waiting.get() == 1);
    drop(waiting);
    until("none waits", || server.client().stats().waiting.get() == 0);
    drop(streams);
    server.is_idle_in_the_end();
    // One of several choices and prompts.
    let many = json!({"prompt": ["a", "b"], "n": 2, "max_tokens": 900, "ignore_eos": true, "stream": true});
    let mut stream = server.connect();
    stream.write_all(&post_bytes(TEXT, &many)).expect("it is read");
    until("they run", || server.client().stats().running.get() > 0);
    drop(stream);
    server.is_idle_in_the_end();
    assert!(server.client().stats().finished_length.get() < 4, "they were not finished for nobody");
}

#[test]
fn slow_headers_lose_their_connection() {
    let server = TestServer::with(|setup| setup.config.header_timeout = Duration::from_millis(300));
    let mut stream = server.connect();
    stream.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n").expect("it is read");
    let start = Instant::now();
    let reply = read_all(&mut stream);
    assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 408"), "{reply}");
    assert!(start.elapsed() >= Duration::from_millis(200));
    // A drop at a time does not help.
    let mut stream = server.connect();
    let dripping = Instant::now();
    while stream.write_all(b"X").is_ok() {
        assert!(dripping.elapsed() < http::PATIENCE, "it was never cut off");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Others are served meanwhile.
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_slow_body_is_not_waited_for() {
    let server = TestServer::with(|setup| setup.config.body_timeout = Duration::from_millis(300));
    let request = post_bytes(TEXT, &json!({"prompt": "a"}));
    let mut stream = server.connect();
    stream.write_all(&request[..request.len() - 3]).expect("it is read");
    let reply = read_all(&mut stream);
    assert!(reply.starts_with("HTTP/1.1 408") && reply.contains("body_timeout"), "{reply}");
}

#[test]
fn a_queue_has_an_end() {
    let server = TestServer::with(|setup| (setup.engine.max_seqs, setup.engine.max_queue) = (1, 3));
    let body = ask("Hello.", &json!({"max_tokens": 2}));
    // All come at once, since the running one ends at the end of its context; its log-probabilities slow it down.
    let ask_all = || -> Vec<Reply> {
        let start = Barrier::new(21);
        std::thread::scope(|scope| {
            let post = |_| {
                scope.spawn(|| {
                    start.wait();
                    server.post(CHAT, &body)
                })
            };
            let threads: Vec<_> = (0..20).map(post).collect();
            let slow = json!({"stream": true, "logprobs": true, "top_logprobs": 20});
            let _running = server.begin_stream(&long(&slow));
            start.wait();
            threads.into_iter().map(|t| t.join().expect("an answer")).collect()
        })
    };
    // On a busy machine it may end before all have come, so that one more waits: then they come again.
    let refused = |replies: &Vec<Reply>| replies.iter().filter(|r| r.status != 200).count();
    let replies =
        (0..8).map(|_| ask_all()).find(|replies| refused(replies) >= 17).expect("only three can wait");
    let refused: Vec<&Reply> = replies.iter().filter(|r| r.status != 200).collect();
    assert!(refused.len() < 20, "three can wait");
    for reply in refused {
        reply.is_error(429, None, "try again");
        assert!((1..=60).contains(&reply.header("retry-after").parse::<u64>().expect("seconds")));
    }
    let text = server.get("/metrics").text;
    assert!(!text.contains("realizar_requests_refused_total{model_name=\"demo\"} 0"), "they are counted");
    // More at once than could ever wait.
    server.post(TEXT, &json!({"prompt": "a", "n": 4})).is_error(400, Some("prompt"), "at most 3");
}

#[test]
fn told_to_stop_it_finishes_what_it_has_begun() {
    let server = TestServer::start();
    let mut stream = server.begin_stream(&long(&json!({"stream": true})));
    server.handle.stop();
    until("it is not ready", || server.get("/ready").status == 503);
    assert_eq!(server.get("/health").status, 200);
    let reply = server.post(CHAT, &ask("Hello.", &json!({})));
    reply.is_error(503, None, "shutting down");
    assert_eq!(reply.header("retry-after"), "1");
    let rest = read_all(&mut stream);
    assert_eq!(data_of(&rest).last().map(String::as_str), Some("[DONE]"), "{rest}");
    assert!(rest.contains("\"finish_reason\":\"length\"") && !rest.contains("\"error\""));
    assert_eq!(server.join(), Ended::Drained);
}

#[test]
fn what_is_not_finished_in_time_ends_with_an_error() {
    let server = TestServer::with(|setup| setup.config.drain = Duration::from_millis(50));
    let mut stream = server.begin_stream(&long(&json!({"stream": true})));
    server.handle.stop();
    let rest = data_of(&read_all(&mut stream));
    let error: Value = serde_json::from_str(&rest[rest.len() - 2]).expect("JSON");
    assert_eq!(error["error"]["code"], "shutting_down", "{error}");
    assert_eq!(server.join(), Ended::Drained);
}

#[test]
fn told_twice_it_stops_at_once() {
    let server = TestServer::start();
    let _stream = server.begin_stream(&long(&json!({"stream": true, "n": 8})));
    server.handle.stop();
    server.handle.stop();
    assert_eq!(server.join(), Ended::AtOnce);
}

/// A device that brings down the engine.
struct Broken;

impl Runner for Broken {
    fn info(&self) -> RunnerInfo {
        RunnerInfo {
            vocab_size: 4096,
            n_blocks: 64,
            block_size: 32,
            context_length: 1024,
            limits: BatchLimits { n_tokens: 64, n_seqs: 4, n_blocks: 64, n_logits: 4 },
            slots: None,
            asynchronous: false,
            drafts: false,
        }
    }

    fn copy_blocks(&mut self, _: &[BlockCopy]) -> Result<()> {
        Ok(())
    }

    fn launch(&mut self, _: &Step) -> Result<Ticket> {
        panic!("the device is on fire")
    }

    fn finish(&mut self, _: Ticket) -> Result<Sampled> {
        unreachable!("nothing was launched")
    }
}

#[test]
fn an_engine_that_died_is_red_and_says_so() {
    let config = Config::default();
    let server = TestServer::around(text_engine(Box::new(Broken), EngineConfig::default()), config);
    assert_eq!((server.get("/health").status, server.get("/ready").status), (200, 200));
    let reply = server.post(CHAT, &ask("Hello.", &json!({})));
    reply.is_error(500, None, "the device is on fire");
    assert_eq!((server.get("/health").status, server.get("/ready").status), (503, 503));
    server.post(CHAT, &ask("Hello.", &json!({"stream": true}))).is_error(500, None, "on fire");
    server.handle.stop();
    assert_eq!(server.join(), Ended::Drained);
}

/// A reader that takes longer than all time limits, but never stops. The model is faster than any reader.
#[test]
fn a_slow_reader_gets_all_of_its_text() {
    const LIMIT: Duration = Duration::from_secs(2);
    let text = "There was a small fox. ".repeat(2000);
    let engine = EngineConfig { stall_timeout: LIMIT, stream_capacity: 4, ..EngineConfig::default() };
    let server = reciting_with(&text, None, engine, Config { write_timeout: LIMIT, ..Config::default() });
    // With likely tokens the answer is more than the system's buffers hold.
    let more = json!({"max_tokens": 16_000, "logprobs": true, "top_logprobs": 20, "stream": true});
    let body = ask("Go on.", &more).to_string();
    let start = Instant::now();
    let request = ureq::post(server.url(CHAT)).content_type("application/json").send(body);
    let mut reader = request.expect("an answer").into_body().into_reader();
    let (mut answer, mut waited) = (Vec::new(), Duration::ZERO);
    while reader.by_ref().take(80_000).read_to_end(&mut answer).expect("more of the answer") > 0 {
        if server.client().stats().running.get() > 0 {
            waited = start.elapsed();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(waited > 2 * LIMIT, "all {} bytes were in the system's buffers after {waited:?}", answer.len());
    let mut events = data_of(std::str::from_utf8(&answer).expect("text"));
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let events = events.iter().map(|event| serde_json::from_str::<Value>(event).expect("JSON"));
    let said: String = events
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert!(said == text, "{} of {} bytes", said.len(), text.len());
}

#[test]
fn a_stream_ends_where_its_reader_does() {
    let server = TestServer::start();
    let mut stream = server.begin_stream(&long(&json!({"stream": true})));
    let mut line = String::new();
    for _ in 0..20 {
        stream.read_line(&mut line).expect("more");
    }
    drop(stream);
    server.is_idle_in_the_end();
    let n = server.client().stats().generated_tokens.get();
    assert!(n < 900, "{n} tokens for nobody");
}
