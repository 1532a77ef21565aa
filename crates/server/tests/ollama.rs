//! Ollama's API over real HTTP: with the demo model, and with a runner that recites what a larger model would say.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod http;

use http::recital::{failing_after, reciting};
use http::{Reply, TestServer};
use serde_json::{Value, json};

const OLLAMA_CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";
const CHAT: &str = "/v1/chat/completions";

/// A conversation of one question, answered greedily and whole.
fn ask(question: &str, more: &Value) -> Value {
    let mut body = json!({
        "model": "demo:latest",
        "messages": [{"role": "user", "content": question}],
        "stream": false,
        "options": {"temperature": 0, "num_predict": 24},
    });
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

fn options(more: &Value) -> Value {
    let mut options = json!({"temperature": 0, "num_predict": 24});
    for (key, value) in more.as_object().expect("an object") {
        options[key] = value.clone();
    }
    json!({ "options": options })
}

fn weather() -> Value {
    json!({"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}})
}

fn text(answer: &Value) -> &str {
    answer["message"]["content"].as_str().expect("a text")
}

/// The lines of a streamed answer: only the last is done.
#[track_caller]
fn lines(server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body.as_object_mut().expect("an object").remove("stream");
    let reply = server.post(path, &body);
    assert_eq!((reply.status, reply.header("content-type")), (200, "application/x-ndjson"), "{}", reply.text);
    assert!(reply.text.ends_with('\n'));
    let lines: Vec<Value> =
        reply.text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (last, others) = lines.split_last().expect("lines");
    assert!(last["done"] == true && last["eval_count"].is_u64(), "{last}");
    assert!(others.iter().all(|line| line["done"] == false && line.get("eval_count").is_none()));
    lines
}

fn joined(lines: &[Value], pointer: &str) -> String {
    lines.iter().filter_map(|line| line.pointer(pointer)?.as_str()).collect()
}

#[track_caller]
fn is_error(reply: &Reply, status: u16, part: &str) {
    assert_eq!(reply.status, status, "{}", reply.text);
    let body: Value = serde_json::from_str(&reply.text).expect("JSON");
    assert_eq!(body.as_object().map(serde_json::Map::len), Some(1), "{body}");
    assert!(body["error"].as_str().expect("a message").contains(part), "{part:?} in {body}");
}

#[test]
fn a_conversation_is_answered_whole_and_in_lines() {
    let server = TestServer::start();
    let body = ask("Tell me a story about a fox.", &json!({"keep_alive": "5m"}));
    let whole = server.post(OLLAMA_CHAT, &body).ok();
    let chat = server.post(CHAT, &http::ask("Tell me a story about a fox.", &json!({}))).ok();
    assert_eq!(text(&whole), chat["choices"][0]["message"]["content"]);
    assert_eq!(
        (&whole["model"], &whole["done"], &whole["done_reason"]),
        (&json!("demo"), &json!(true), &json!("length"))
    );
    assert_eq!(
        (&whole["eval_count"], &whole["prompt_eval_count"]),
        (&json!(24), &chat["usage"]["prompt_tokens"])
    );
    let ns = |field: &str| whole[field].as_u64().unwrap_or_else(|| panic!("{field} in {whole}"));
    assert!(
        ns("prompt_eval_duration") > 0
            && ns("total_duration") >= ns("prompt_eval_duration") + ns("eval_duration")
    );
    let created = whole["created_at"].as_str().expect("a time");
    assert!(created.len() >= 20 && created.ends_with('Z') && created.as_bytes()[10] == b'T', "{created}");
    let lines = lines(&server, OLLAMA_CHAT, &body);
    assert_eq!(joined(&lines, "/message/content"), text(&whole));
    assert!(lines.iter().all(|line| line["message"]["role"] == "assistant"));
}

#[test]
fn a_text_is_answered_or_continued() {
    let server = TestServer::start();
    let body = |more: &Value| {
        let mut body = ask("", more);
        body["messages"] = Value::Null;
        body
    };
    let asked = body(&json!({"prompt": "Tell me a story.", "system": "Be brief."}));
    let whole = server.post(GENERATE, &asked).ok();
    let messages =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me a story."}]);
    assert_eq!(
        whole["response"],
        server.post(OLLAMA_CHAT, &ask("", &json!({"messages": messages}))).ok()["message"]["content"]
    );
    assert_eq!(
        joined(&lines(&server, GENERATE, &asked), "/response"),
        whole["response"].as_str().expect("a text")
    );
    let raw = server.post(GENERATE, &body(&json!({"prompt": "Once upon a time", "raw": true}))).ok();
    let completion = json!({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 24});
    assert_eq!(raw["response"], server.post("/v1/completions", &completion).ok()["choices"][0]["text"]);
    let regular = server.post(GENERATE, &body(&json!({"prompt": "How many?", "raw": true, "format": {"type": "integer", "minimum": 0, "maximum": 99}}))).ok();
    assert!(
        (0..100).contains(&regular["response"].as_str().expect("a text").parse::<i32>().expect("a number"))
    );
    is_error(
        &server.post(GENERATE, &body(&json!({"prompt": "a", "suffix": "b"}))),
        400,
        "cannot fill in the middle",
    );
}

#[test]
fn thoughts_text_and_calls_are_fields_of_the_message() {
    let said = "<think>\nHm, the weather.\n</think>\n\nI look.\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n\
        {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}";
    let server = reciting(said);
    let body =
        ask("Weather?", &json!({"tools": [weather()], "think": true, "options": {"num_predict": 400}}));
    let whole = server.post(OLLAMA_CHAT, &body).ok();
    let message = &whole["message"];
    assert_eq!((&message["thinking"], &message["content"]), (&json!("Hm, the weather."), &json!("I look.")));
    let calls = message["tool_calls"].as_array().expect("calls");
    let arguments: Vec<&Value> = calls.iter().map(|call| &call["function"]["arguments"]).collect();
    assert_eq!(arguments, [&json!({"city": "Paris"}), &json!({"city": "Rome"})]);
    assert_eq!(
        (&calls[0]["function"]["name"], &whole["done_reason"]),
        (&json!("get_weather"), &json!("stop"))
    );
    let lines = lines(&server, OLLAMA_CHAT, &body);
    assert_eq!(
        (joined(&lines, "/message/thinking"), joined(&lines, "/message/content")),
        ("Hm, the weather.".to_owned(), "I look.".to_owned())
    );
    let streamed = lines.iter().filter_map(|line| line["message"]["tool_calls"].as_array()).flatten();
    assert_eq!(
        streamed.map(|call| &call["function"]).collect::<Vec<_>>(),
        calls.iter().map(|call| &call["function"]).collect::<Vec<_>>()
    );
    // The next turn.
    let messages = json!([
        {"role": "user", "content": "Weather?"},
        message,
        {"role": "tool", "tool_name": "get_weather", "content": "21"},
        {"role": "tool", "tool_name": "get_weather", "content": "25"},
    ]);
    server
        .post(
            OLLAMA_CHAT,
            &ask("", &json!({"messages": messages, "tools": [weather()], "options": {"num_predict": 400}})),
        )
        .ok();
}

#[test]
fn options_are_honoured() {
    let server = TestServer::start();
    let answer = |more: &Value| server.post(OLLAMA_CHAT, &ask("Tell me a story.", more)).ok();
    let plain = answer(&json!({}));
    let word = text(&plain).split(' ').nth(3).expect("words").to_owned();
    for stop in [json!(word), json!(["never said", word])] {
        let stopped = answer(&options(&json!({"stop": stop})));
        assert_eq!(stopped["done_reason"], "stop");
        assert!(text(&plain).starts_with(text(&stopped)) && text(&stopped).len() < text(&plain).len());
    }
    let drawn = options(
        &json!({"temperature": 1.5, "seed": 7, "top_k": 50, "min_p": 0.01, "repeat_penalty": 1.1, "num_gpu": 1, "num_thread": 2}),
    );
    assert_eq!(text(&answer(&drawn)), text(&answer(&drawn)));
    assert_ne!(text(&answer(&drawn)), text(&plain));
    let format = json!({"type": "object", "properties": {"legs": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["legs"]});
    // The likeliest tokens of a small model may be spaces, as many as a form allows; drawn ones are not.
    let mut more = options(&json!({"temperature": 1, "seed": 1, "num_predict": 200}));
    more["format"] = format;
    let animal: Value = serde_json::from_str(text(&answer(&more))).expect("JSON");
    assert!((0..10).contains(&animal["legs"].as_i64().expect("a number")));
    let tokens = answer(&json!({"logprobs": true, "top_logprobs": 2}));
    let tokens = tokens["logprobs"].as_array().expect("a list");
    assert!(
        tokens.len() == 24 && tokens.iter().all(|t| t["top_logprobs"].as_array().map(Vec::len) == Some(2))
    );
}

#[test]
fn num_ctx_is_honoured_or_refused() {
    let server = TestServer::start();
    let post = |num_ctx: u64, more: &Value| {
        let mut body = ask("Tell me a story.", &options(&json!({"num_ctx": num_ctx, "num_predict": -1})));
        for (key, value) in more.as_object().expect("an object") {
            body[key] = value.clone();
        }
        server.post(OLLAMA_CHAT, &body)
    };
    let answer = post(64, &json!({})).ok();
    let n = |field: &str| answer[field].as_u64().expect("a number");
    assert_eq!((n("prompt_eval_count") + n("eval_count"), &answer["done_reason"]), (64, &json!("length")));
    let long = json!({"messages": [{"role": "user", "content": "fox ".repeat(100)}]});
    is_error(&post(64, &long), 400, "num_ctx allows 64");
    is_error(&post(1 << 20, &json!({})), 400, "this server's context has 1024 tokens");
}

#[test]
fn models_are_listed_and_described() {
    let server = TestServer::start();
    let tags = server.get("/api/tags").ok();
    let model = &tags["models"][0];
    assert_eq!((&model["name"], &model["model"]), (&json!("demo"), &json!("demo")));
    assert_eq!(model["digest"].as_str().map(str::len), Some(64));
    let ps = server.get("/api/ps").ok();
    assert_eq!(
        (&ps["models"][0]["name"], &ps["models"][0]["context_length"]),
        (&json!("demo"), &json!(1024))
    );
    assert!(server.get("/api/version").ok()["version"].as_str().expect("a version").split('.').count() == 3);
    let shown = server.post("/api/show", &json!({"model": "demo"})).ok();
    assert!(shown["template"].as_str().expect("a template").contains("{%"), "{shown}");
    assert!(shown["capabilities"].as_array().expect("a list").contains(&json!("tools")));
    let info = shown["model_info"].as_object().expect("an object");
    assert!(info.iter().any(|(key, value)| key.ends_with(".context_length") && *value == 1024), "{shown}");
    is_error(&server.post("/api/show", &json!({"model": "llama9"})), 404, "llama9");
    assert_eq!(
        server.post("/api/pull", &json!({"model": "demo", "stream": false})).ok(),
        json!({"status": "success"})
    );
    assert!(server.post("/api/pull", &json!({"model": "demo"})).text.ends_with("{\"status\":\"success\"}\n"));
    is_error(&server.post("/api/pull", &json!({"model": "llama9"})), 501, "realizar pull llama9");
    let loaded = server.post(GENERATE, &json!({"model": "demo", "stream": false})).ok();
    assert_eq!((&loaded["done_reason"], &loaded["response"]), (&json!("load"), &json!("")));
}

#[test]
fn what_cannot_be_done_is_refused_in_ollama_s_shape() {
    let server = TestServer::with(|setup| setup.config.api_keys = vec!["secret".into()]);
    let post = |path: &str, body: &Value| server.post_with(path, &[("authorization", "Bearer secret")], body);
    is_error(&server.get("/api/tags"), 401, "API key");
    is_error(&post("/api/nowhere", &json!({})), 404, "no such page");
    is_error(&post("/api/embed", &json!({"model": "demo", "input": "a"})), 400, "embeds none");
    is_error(&post("/api/embeddings", &json!({"model": "demo", "prompt": "a"})), 400, "embeds none");
    for (more, part) in [
        (json!({"model": "llama9"}), "llama9"),
        (
            json!({"messages": [{"role": "user", "content": "What?", "images": ["aGk="]}]}),
            "messages[0].images",
        ),
        (json!({"tools": [{"type": "function"}]}), "tools[0]"),
        (json!({"think": 5}), "think"),
        (json!({"format": "xml"}), "format"),
        (options(&json!({"temperature": -1})), "temperature"),
        (options(&json!({"mirostat": 2})), "mirostat"),
        (options(&json!({"repeat_last_n": -5})), "repeat_last_n"),
        (options(&json!({"stop": ""})), "empty"),
        (options(&json!({"num_ctx": "big"})), "num_ctx"),
    ] {
        is_error(
            &post(OLLAMA_CHAT, &ask("Hello.", &more)),
            if more["model"] == "llama9" { 404 } else { 400 },
            part,
        );
    }
    let asked = |more: Value| {
        let mut body = json!({"model": "demo", "prompt": "a"});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    is_error(&post(GENERATE, &asked(json!({"context": [1, 2]}))), 400, "context");
    is_error(&post(GENERATE, &asked(json!({"template": "{{ .Prompt }}"}))), 400, "template");
    is_error(&post(GENERATE, &asked(json!({"images": ["aGk="]}))), 400, "images");
    // OpenAI's endpoints keep their shape.
    server.get("/v1/models").is_error(401, None, "API key");
}

#[test]
fn an_answer_that_breaks_off_ends_with_the_error() {
    let server = failing_after("Once upon a time there was a fox.", 3);
    let mut body = ask("Tell me a story.", &json!({}));
    body["stream"] = true.into();
    let reply = server.post(OLLAMA_CHAT, &body);
    let lines: Vec<Value> =
        reply.text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (last, others) = lines.split_last().expect("lines");
    assert!(last["error"].as_str().expect("a message").contains("told to fail"), "{last}");
    assert!(!others.is_empty() && others.iter().all(|line| line["done"] == false));
}
