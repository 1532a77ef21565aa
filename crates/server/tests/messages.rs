//! Anthropic's API over real HTTP: with the demo model, and with a runner that recites what a larger model would say.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod http;

use http::recital::{failing_after, reciting};
use http::{TestServer, named_events};
use serde_json::{Value, json};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const CHAT: &str = "/v1/chat/completions";

/// A conversation of one question, answered greedily.
fn ask(question: &str, more: &Value) -> Value {
    let mut body = json!({
        "model": "demo",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 24,
    });
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

fn weather() -> Value {
    json!({"name": "get_weather", "description": "The weather of a city.", "cache_control": {"type": "ephemeral"},
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["c", "f"]}},
        "required": ["city", "unit"],
    }})
}

fn text(answer: &Value) -> &str {
    answer["content"][0]["text"].as_str().expect("a text")
}

/// The events of a streamed answer, whose names and types agree, and the answer that they make.
#[track_caller]
fn streamed(server: &TestServer, body: &Value) -> (Vec<Value>, Value) {
    let mut body = body.clone();
    body["stream"] = true.into();
    let reply = server.post(MESSAGES, &body);
    assert_eq!((reply.status, reply.header("content-type")), (200, "text/event-stream"), "{}", reply.text);
    let events = named_events(&reply.text);
    let mut message = Value::Null;
    let mut inputs = String::new();
    for (name, event) in &events {
        assert_eq!(event["type"], *name);
        let index = event["index"].as_u64().unwrap_or(0) as usize;
        match name.as_str() {
            "message_start" => {
                assert!(message.is_null(), "one beginning");
                message = event["message"].clone();
            }
            "content_block_start" => {
                let content = message["content"].as_array_mut().expect("a list");
                assert_eq!(content.len(), index, "blocks come in order");
                content.push(event["content_block"].clone());
                inputs.clear();
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let (kind, field) = match delta["type"].as_str().expect("a type") {
                    "text_delta" => ("text", "text"),
                    "thinking_delta" => ("thinking", "thinking"),
                    "signature_delta" => ("thinking", "signature"),
                    "input_json_delta" => {
                        inputs += delta["partial_json"].as_str().expect("a text");
                        continue;
                    }
                    other => panic!("{other}"),
                };
                let block = &mut message["content"][index];
                assert_eq!(block["type"], kind);
                let before = block[field].as_str().expect("a text").to_owned();
                block[field] = (before + delta[field].as_str().expect("a text")).into();
            }
            "content_block_stop" => {
                let block = &mut message["content"][index];
                if block["type"] == "tool_use" {
                    assert_eq!(block["input"], json!({}));
                    block["input"] = serde_json::from_str(&inputs).expect("JSON");
                }
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_stop" | "ping" => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(events.last().expect("events").0, "message_stop");
    (events.into_iter().map(|(_, event)| event).collect(), message)
}

/// A message without what differs between two answers to the same request.
fn comparable(mut message: Value) -> Value {
    message["id"] = Value::Null;
    message["usage"] = Value::Null;
    for block in message["content"].as_array_mut().expect("a list") {
        if block["type"] == "tool_use" {
            block["id"] = Value::Null;
        }
    }
    message
}

#[test]
fn a_conversation_is_answered_in_anthropic_s_shape() {
    let server = TestServer::start();
    let answer = server.post(MESSAGES, &ask("Tell me a story about a fox.", &json!({}))).ok();
    assert!(answer["id"].as_str().expect("an id").starts_with("msg_"));
    assert_eq!(
        (
            &answer["type"],
            &answer["role"],
            &answer["model"],
            &answer["stop_reason"],
            &answer["stop_sequence"]
        ),
        (&json!("message"), &json!("assistant"), &json!("demo"), &json!("max_tokens"), &Value::Null)
    );
    let chat = http::ask("Tell me a story about a fox.", &json!({}));
    let chat = server.post(CHAT, &chat).ok();
    assert_eq!(text(&answer), chat["choices"][0]["message"]["content"]);
    let usage = &answer["usage"];
    assert_eq!((&usage["output_tokens"], &usage["cache_read_input_tokens"]), (&json!(24), &json!(0)));
    assert_eq!(usage["input_tokens"], chat["usage"]["prompt_tokens"]);
    let count = server.post(COUNT, &ask("Tell me a story about a fox.", &json!({}))).ok();
    assert_eq!(count["input_tokens"], chat["usage"]["prompt_tokens"]);
}

#[test]
fn a_streamed_answer_is_the_whole_one_event_by_event() {
    let server = TestServer::start();
    for more in
        [json!({}), json!({"stop_sequences": ["time", "never said"]}), json!({"temperature": 1, "seed": 5})]
    {
        let body = ask("Tell me a story.", &more);
        let whole = server.post(MESSAGES, &body).ok();
        let (events, message) = streamed(&server, &body);
        assert_eq!(comparable(message), comparable(whole.clone()));
        let kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().expect("a type")).collect();
        let mut order: Vec<&str> = kinds.clone();
        order.dedup();
        assert_eq!(
            order,
            [
                "message_start",
                "ping",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop"
            ]
        );
        let start = &events[0]["message"];
        assert_eq!((&start["content"], &start["stop_reason"]), (&json!([]), &Value::Null));
        let total = whole["usage"]["input_tokens"].as_u64().expect("a number")
            + whole["usage"]["cache_read_input_tokens"].as_u64().expect("a number");
        assert_eq!(start["usage"]["input_tokens"], total);
    }
    let whole = server.post(MESSAGES, &ask("Tell me a story.", &json!({"stop_sequences": ["time"]}))).ok();
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("stop_sequence"), &json!("time")));
    assert!(!text(&whole).contains("time"));
}

#[test]
fn thoughts_text_and_calls_are_blocks() {
    let said = "<think>\nHm, the weather.\n</think>\n\nI look.\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n\
        {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}";
    let server = reciting(said);
    let more = json!({"tools": [weather()], "max_tokens": 400, "thinking": {"type": "enabled", "budget_tokens": 1024}});
    let body = ask("Weather?", &more);
    let whole = server.post(MESSAGES, &body).ok();
    assert_eq!(whole["stop_reason"], "tool_use");
    let blocks = whole["content"].as_array().expect("blocks");
    assert_eq!(
        blocks.iter().map(|b| b["type"].as_str().expect("a type")).collect::<Vec<_>>(),
        ["thinking", "text", "tool_use", "tool_use"]
    );
    assert_eq!((&blocks[0]["thinking"], &blocks[1]["text"]), (&json!("Hm, the weather."), &json!("I look.")));
    assert_eq!(blocks[2]["name"], "get_weather");
    assert_eq!(
        (&blocks[2]["input"], &blocks[3]["input"]),
        (&json!({"city": "Paris"}), &json!({"city": "Rome"}))
    );
    assert_ne!(blocks[2]["id"], blocks[3]["id"]);
    let (thinking, all) =
        (&whole["usage"]["output_tokens_details"]["thinking_tokens"], &whole["usage"]["output_tokens"]);
    assert!((5..all.as_u64().expect("a number")).contains(&thinking.as_u64().expect("a number")), "{whole}");
    assert_eq!(comparable(streamed(&server, &body).1), comparable(whole.clone()));

    // The next turn, with the thought as it came.
    let mut next = body.clone();
    let result = |block: &Value, content: Value| json!({"type": "tool_result", "tool_use_id": block["id"], "content": content});
    next["messages"] = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [result(&blocks[2], json!("21")), result(&blocks[3], json!([{"type": "text", "text": "25"}]))]},
    ]);
    server.post(MESSAGES, &next).ok();

    // Thoughts that are left out are in their signature.
    let mut omitted = body.clone();
    omitted["thinking"] = json!({"type": "adaptive", "display": "omitted"});
    let short = server.post(MESSAGES, &omitted).ok();
    assert_eq!(short["content"][0]["thinking"], "");
    assert!(short["content"][0]["signature"].as_str() > Some(""));
    assert_eq!(comparable(streamed(&server, &omitted).1), comparable(short));
}

#[test]
fn a_demanded_call_satisfies_its_schema() {
    let server = TestServer::start();
    let search = json!({"type": "web_search_20250305", "name": "web_search"});
    for choice in [
        json!({"type": "any", "disable_parallel_tool_use": true}),
        json!({"type": "tool", "name": "get_weather"}),
    ] {
        let more = json!({"tools": [weather(), search], "tool_choice": choice, "temperature": 1, "seed": 3, "max_tokens": 300});
        let body = ask("The weather?", &more);
        let whole = server.post(MESSAGES, &body).ok();
        assert_eq!(whole["stop_reason"], "tool_use");
        let call = &whole["content"][0];
        assert_eq!((whole["content"].as_array().map(Vec::len), &call["type"]), (Some(1), &json!("tool_use")));
        assert!(["c", "f"].contains(&call["input"]["unit"].as_str().expect("a unit")), "{call}");
        assert_eq!(call["input"].as_object().map(serde_json::Map::len), Some(2), "objects are closed");
        assert_eq!(comparable(streamed(&server, &body).1), comparable(whole));
    }
    let schema = json!({"type": "object", "properties": {"legs": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["legs"]});
    let format = json!({"type": "json_schema", "schema": schema});
    for more in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
        let answer = server.post(MESSAGES, &ask("How many?", &more)).ok();
        let value: Value = serde_json::from_str(text(&answer)).expect("JSON");
        assert!((0..10).contains(&value["legs"].as_i64().expect("a number")), "{value}");
    }
}

#[test]
fn the_second_turn_computes_only_what_is_new() {
    let system = "You are an agent that helps with foxes and owls in the wood. ".repeat(12);
    let cached = |server: &TestServer| {
        let first = |nonce: &str| {
            let header = format!(
                "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch={nonce};"
            );
            json!({"system": [{"type": "text", "text": header}, {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]})
        };
        let one = server.post(MESSAGES, &ask("Tell me a story.", &first("36ee5"))).ok();
        assert_eq!(one["usage"]["cache_read_input_tokens"], 0);
        let n_one = one["usage"]["input_tokens"].as_u64().expect("a number");
        let mut two = ask("", &first("0aaa9"));
        two["messages"] = json!([
            {"role": "user", "content": "Tell me a story."},
            {"role": "assistant", "content": one["content"]},
            {"role": "user", "content": "Go on."},
        ]);
        let usage = server.post(MESSAGES, &two).ok()["usage"].clone();
        let count = server.post(COUNT, &two).ok()["input_tokens"].as_u64().expect("a number");
        let read = usage["cache_read_input_tokens"].as_u64().expect("a number");
        assert_eq!(usage["input_tokens"].as_u64().expect("a number") + read, count);
        (n_one, read)
    };
    let (n_first, n_cached) = cached(&TestServer::start());
    assert!(n_first > 128 && n_cached >= n_first, "{n_cached} of {n_first}");
    // With the line in the prompt, the texts differ near their beginning.
    let (_, n_cached) = cached(&TestServer::with(|setup| setup.config.keep_billing_header = true));
    assert!(n_cached < 64, "{n_cached}");
}

#[test]
fn an_assistant_s_message_at_the_end_is_gone_on_with() {
    let server = TestServer::start();
    let whole = server.post(MESSAGES, &ask("Tell me a story.", &json!({}))).ok();
    let (before, after) = text(&whole).split_at(text(&whole).find(' ').expect("words"));
    let messages =
        json!([{"role": "user", "content": "Tell me a story."}, {"role": "assistant", "content": before}]);
    let rest = server.post(MESSAGES, &ask("", &json!({"messages": messages}))).ok();
    assert!(text(&rest).starts_with(after), "{after:?} {rest}");
}

#[test]
fn an_answer_says_which_end_it_reached() {
    let server = TestServer::start();
    let answer = server
        .post(MESSAGES, &ask("Is a fox an animal? Answer yes or no.", &json!({"max_tokens": 900})))
        .ok();
    assert_eq!(answer["stop_reason"], "end_turn");
    let short = TestServer::with(|setup| setup.load.n_ctx = Some(96));
    let answer = short.post(MESSAGES, &ask("Tell me a story.", &json!({"max_tokens": 5000}))).ok();
    assert_eq!(answer["stop_reason"], "model_context_window_exceeded");
    let question = "Tell me a story about a fox and an owl. ".repeat(20);
    let reply = short.post(MESSAGES, &ask(&question, &json!({})));
    is_error(&reply, 400, "invalid_request_error", "prompt is too long");
    assert!(reply.text.contains("maximum context length is"), "{}", reply.text);
}

#[track_caller]
fn is_error(reply: &http::Reply, status: u16, kind: &str, part: &str) {
    assert_eq!(reply.status, status, "{}", reply.text);
    let body: Value = serde_json::from_str(&reply.text).expect("JSON");
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)), "{body}");
    assert!(body["error"]["message"].as_str().expect("a message").contains(part), "{part:?} in {body}");
    let id = body["request_id"].as_str().expect("an id");
    assert_eq!((reply.header("request-id"), reply.header("x-request-id")), (id, id));
}

#[test]
fn errors_have_anthropic_s_shape() {
    let server = TestServer::with(|setup| {
        setup.config.api_keys = vec!["secret".into()];
        setup.config.max_body = 4096;
    });
    let key = ("x-api-key", "secret");
    let post =
        |path: &str, body: &Value| server.post_with(path, &[key, ("anthropic-version", "2023-06-01")], body);
    let hello = ask("Hello.", &json!({}));
    is_error(&server.post(MESSAGES, &hello), 401, "authentication_error", "needs an API key");
    is_error(
        &server.post_with(MESSAGES, &[("x-api-key", "wrong")], &hello),
        401,
        "authentication_error",
        "wrong",
    );
    is_error(
        &post(MESSAGES, &ask("Hello.", &json!({"model": "claude-9"}))),
        404,
        "not_found_error",
        "claude-9",
    );
    is_error(&post("/v1/messages/nowhere", &hello), 404, "not_found_error", "no such page");
    is_error(&server.get(MESSAGES), 405, "invalid_request_error", "method");
    is_error(&post(MESSAGES, &ask(&"a".repeat(5000), &json!({}))), 413, "request_too_large", "4096");
    let image = json!([{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}]}]);
    let bash = json!([{"type": "bash_20250124", "name": "bash"}]);
    for (more, part) in [
        (json!({"max_tokens": null}), "max_tokens is missing"),
        (json!({"messages": []}), "messages is empty"),
        (json!({"messages": image}), "messages[0].content[0] is of type \"image\""),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "user, assistant or system"),
        (json!({"messages": [{"role": "user"}]}), "content"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"stop_sequences": [""]}), "empty"),
        (json!({"tools": bash}), "input_schema"),
        (json!({"tools": [weather(), weather()]}), "two tools"),
        (json!({"tool_choice": {"type": "any"}}), "no tools"),
        (json!({"tools": [weather()], "tool_choice": {"type": "tool", "name": "x"}}), "\"x\""),
        (json!({"mcp_servers": [{"type": "url"}]}), "mcp_servers"),
        (json!({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}), "#/not"),
        (json!({"stream": "yes"}), "stream"),
    ] {
        is_error(&post(MESSAGES, &ask("Hello.", &more)), 400, "invalid_request_error", part);
    }
    let mut strict = weather();
    strict["strict"] = true.into();
    strict["input_schema"]["properties"]["city"] = json!({"pattern": "("});
    let reply = post(MESSAGES, &ask("Hello.", &json!({"tools": [strict]})));
    is_error(&reply, 400, "invalid_request_error", "tools/0/input_schema/properties/city");
    // OpenAI's endpoints keep their shape.
    server.get("/v1/models").is_error(401, None, "API key");
    let reply = post(MESSAGES, &hello);
    assert_eq!((reply.status, reply.header("request-id")), (200, reply.header("x-request-id")));
}

#[test]
fn what_says_nothing_to_a_local_model_is_accepted() {
    let server = TestServer::start();
    let plain = server.post(MESSAGES, &ask("Tell me a story.", &json!({}))).ok();
    let mut body = ask(
        "Tell me a story.",
        &json!({
            "metadata": {"user_id": "u"}, "service_tier": "auto", "cache_control": {"type": "ephemeral"}, "betas": ["new-2026-01-01"],
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "mcp_servers": [], "container": null,
            "thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}, "something_else": {"x": 1},
        }),
    );
    body["messages"][0]["content"] = json!([{"type": "text", "text": "Tell me a story.", "cache_control": {"type": "ephemeral"}, "citations": null}]);
    let headers = [("anthropic-beta", "never-heard-of-2026-01-01"), ("anthropic-version", "2023-06-01")];
    let answer = server.post_with("/v1/messages?beta=true", &headers, &body).ok();
    assert_eq!(answer["content"], plain["content"]);
    // Tools that are found later are shown at once.
    let mut deferred = weather();
    deferred["defer_loading"] = true.into();
    let search = json!({"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"});
    let n = |more: &Value| server.post(COUNT, &ask("Hi.", more)).ok()["input_tokens"].as_u64();
    assert_eq!(n(&json!({"tools": [deferred, search]})), n(&json!({"tools": [weather()]})));
    assert!(n(&json!({"tools": [weather()]})) > n(&json!({})));
}

#[test]
fn a_stream_that_breaks_off_says_so() {
    let server = failing_after("Once upon a time there was a fox.", 3);
    let reply = server.post(MESSAGES, &ask("Tell me a story.", &json!({"stream": true})));
    let events = named_events(&reply.text);
    let (name, event) = events.last().expect("events");
    assert_eq!(
        (name.as_str(), &event["type"], &event["error"]["type"]),
        ("error", &json!("error"), &json!("api_error"))
    );
    assert!(event["error"]["message"].as_str().expect("a message").contains("told to fail"), "{event}");
    assert!(events.iter().any(|(name, _)| name == "content_block_delta"));
    assert!(events.iter().all(|(name, _)| name != "message_stop"));
}
