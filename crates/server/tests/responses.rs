//! The Responses API over real HTTP: with the demo model, and with a runner that recites what a larger model would say.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod http;

use http::recital::{failing_after, reciting};
use http::{TestServer, named_events};
use serde_json::{Value, json};

const RESPONSES: &str = "/v1/responses";
const CHAT: &str = "/v1/chat/completions";

/// A question, answered greedily.
fn ask(question: &str, more: &Value) -> Value {
    let mut body = json!({"model": "demo", "input": question, "temperature": 0, "max_output_tokens": 24});
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

fn weather() -> Value {
    json!({"type": "function", "name": "get_weather", "description": "The weather of a city.", "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["c", "f"]}},
        "required": ["city", "unit"],
    }})
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().expect("a text")
}

/// The events of a streamed response, which are counted and named as they should be, and the response at their end. What the events
/// say of each item is what the response has.
#[track_caller]
fn streamed(server: &TestServer, body: &Value) -> (Vec<Value>, Value) {
    let mut body = body.clone();
    body["stream"] = true.into();
    let reply = server.post(RESPONSES, &body);
    assert_eq!((reply.status, reply.header("content-type")), (200, "text/event-stream"), "{}", reply.text);
    let mut items: Vec<Value> = Vec::new();
    let mut events = Vec::new();
    for (i, (name, event)) in named_events(&reply.text).into_iter().enumerate() {
        assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(i)));
        let at = event["output_index"].as_u64().unwrap_or(0) as usize;
        match name.as_str() {
            "response.output_item.added" => {
                assert_eq!((items.len(), &event["item"]["status"]), (at, &json!("in_progress")));
                items.push(event["item"].clone());
            }
            "response.content_part.added" => {
                assert_eq!((&event["item_id"], &event["part"]["text"]), (&items[at]["id"], &json!("")));
                items[at]["content"] = json!([event["part"]]);
            }
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                assert_eq!((&event["item_id"], &event["content_index"]), (&items[at]["id"], &json!(0)));
                let part = &mut items[at]["content"][0];
                let before = part["text"].as_str().expect("a text").to_owned();
                part["text"] = (before + event["delta"].as_str().expect("a text")).into();
                if let Some(more) = event["logprobs"].as_array() {
                    part["logprobs"].as_array_mut().expect("a list").extend(more.clone());
                }
            }
            "response.function_call_arguments.delta" => {
                let before = items[at]["arguments"].as_str().expect("a text").to_owned();
                items[at]["arguments"] = (before + event["delta"].as_str().expect("a text")).into();
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(event["text"], items[at]["content"][0]["text"]);
            }
            "response.function_call_arguments.done" => assert_eq!(event["arguments"], items[at]["arguments"]),
            "response.content_part.done" => assert_eq!(event["part"], items[at]["content"][0]),
            "response.output_item.done" => {
                items[at]["status"] = event["item"]["status"].clone();
                if let Some(sealed) = event["item"].get("encrypted_content") {
                    items[at]["encrypted_content"] = sealed.clone();
                }
                assert_eq!(event["item"], items[at]);
            }
            "response.created" | "response.in_progress" => {
                assert_eq!(
                    (&event["response"]["status"], &event["response"]["output"]),
                    (&json!("in_progress"), &json!([]))
                );
            }
            "response.completed" | "response.incomplete" => {
                assert_eq!(event["response"]["output"], json!(items))
            }
            other => panic!("{other}"),
        }
        events.push(event);
    }
    let response = events.last().expect("events")["response"].clone();
    assert!(response["usage"]["total_tokens"].is_u64(), "{response}");
    (events, response)
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().expect("a type")).collect();
    kinds.dedup();
    kinds
}

/// A response without what differs between two to the same request.
fn comparable(mut response: Value) -> Value {
    for field in ["id", "created_at", "completed_at", "usage"] {
        response[field] = Value::Null;
    }
    for item in response["output"].as_array_mut().expect("a list") {
        item["id"] = Value::Null;
        if item["type"] == "function_call" {
            item["call_id"] = Value::Null;
        }
    }
    response
}

#[test]
fn a_question_is_answered_in_the_api_s_shape() {
    let server = TestServer::start();
    let response = server.post(RESPONSES, &ask("Tell me a story about a fox.", &json!({}))).ok();
    assert!(response["id"].as_str().expect("an id").starts_with("resp_"));
    assert_eq!(
        (&response["object"], &response["model"], &response["error"]),
        (&json!("response"), &json!("demo"), &Value::Null)
    );
    assert_eq!(
        (&response["status"], &response["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let item = &response["output"][0];
    assert_eq!(
        (&item["type"], &item["role"], &item["status"]),
        (&json!("message"), &json!("assistant"), &json!("incomplete"))
    );
    assert_eq!(item["content"][0]["annotations"], json!([]));
    let chat = server.post(CHAT, &http::ask("Tell me a story about a fox.", &json!({}))).ok();
    assert_eq!(text(&response), chat["choices"][0]["message"]["content"]);
    let usage = &response["usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["output_tokens"]),
        (&chat["usage"]["prompt_tokens"], &json!(24))
    );
    assert_eq!(
        (&response["temperature"], &response["truncation"], &response["tool_choice"]),
        (&json!(0.0), &json!("disabled"), &json!("auto"))
    );
    // Instructions are a system prompt.
    let with = server.post(RESPONSES, &ask("Tell me a story.", &json!({"instructions": "Be brief."}))).ok();
    let mut chat = http::ask("", &json!({}));
    chat["messages"] =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me a story."}]);
    assert_eq!(text(&with), server.post(CHAT, &chat).ok()["choices"][0]["message"]["content"]);
}

#[test]
fn a_streamed_response_is_the_whole_one_event_by_event() {
    let server = TestServer::start();
    let logprobs = json!({"top_logprobs": 2, "include": ["message.output_text.logprobs"]});
    for more in [json!({}), json!({"temperature": 1, "seed": 5}), logprobs] {
        let body = ask("Tell me a story.", &more);
        let whole = server.post(RESPONSES, &body).ok();
        let (events, response) = streamed(&server, &body);
        assert_eq!(comparable(response), comparable(whole.clone()));
        assert_eq!(
            kinds(&events),
            [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.incomplete",
            ]
        );
        let tokens = whole["output"][0]["content"][0]["logprobs"].as_array().expect("a list");
        if more["top_logprobs"].is_null() {
            assert!(tokens.is_empty());
        } else {
            let said: String = tokens.iter().map(|t| t["token"].as_str().expect("a text")).collect();
            assert_eq!((tokens.len(), said.trim_start()), (24, text(&whole)));
            assert!(tokens.iter().all(|t| t["top_logprobs"].as_array().map(Vec::len) == Some(2)));
        }
    }
    let done =
        streamed(&server, &ask("Is a fox an animal? Answer yes or no.", &json!({"max_output_tokens": 200})));
    assert_eq!(
        (done.1["status"].as_str(), kinds(&done.0).last()),
        (Some("completed"), Some(&"response.completed"))
    );
}

const SAID: &str = "<think>\nHm, the weather.\n</think>\n\nI look.\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n\
    {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}";

#[test]
fn thoughts_text_and_calls_are_items() {
    let server = reciting(SAID);
    let search = json!({"type": "web_search"});
    let patch = json!({"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}});
    let spaces = json!({"type": "namespace", "name": "x", "tools": [weather()]});
    let more = json!({"tools": [search, patch, weather(), spaces], "include": ["reasoning.encrypted_content"], "max_output_tokens": 400, "store": false});
    let body = ask("Weather?", &more);
    let whole = server.post(RESPONSES, &body).ok();
    assert_eq!((&whole["status"], &whole["store"]), (&json!("completed"), &json!(false)));
    assert_eq!(whole["tools"].as_array().map(Vec::len), Some(1), "those that can be called");
    let items = whole["output"].as_array().expect("items");
    assert_eq!(
        items.iter().map(|b| b["type"].as_str().expect("a type")).collect::<Vec<_>>(),
        ["reasoning", "message", "function_call", "function_call"]
    );
    assert_eq!(
        (&items[0]["content"][0]["text"], &items[0]["summary"]),
        (&json!("Hm, the weather."), &json!([]))
    );
    assert_eq!(items[1]["content"][0]["text"], "I look.");
    assert_eq!(
        (&items[2]["arguments"], &items[3]["arguments"]),
        (&json!("{\"city\": \"Paris\"}"), &json!("{\"city\": \"Rome\"}"))
    );
    assert_ne!(items[2]["call_id"], items[3]["call_id"]);
    let usage = &whole["usage"];
    let thought = usage["output_tokens_details"]["reasoning_tokens"].as_u64().expect("a number");
    assert!((5..usage["output_tokens"].as_u64().expect("a number")).contains(&thought), "{usage}");
    let (events, response) = streamed(&server, &body);
    assert_eq!(comparable(response), comparable(whole.clone()));
    let order = kinds(&events);
    let at =
        |kind: &str| order.iter().position(|k| *k == kind).unwrap_or_else(|| panic!("{kind} in {order:?}"));
    assert!(at("response.reasoning_text.delta") < at("response.reasoning_text.done"));
    assert!(at("response.reasoning_text.done") < at("response.output_text.delta"));
    assert!(at("response.output_text.done") < at("response.function_call_arguments.delta"));

    // The next turn, with the items as they came: what was thought is read again only if it was sealed here.
    let prompt = |items: &[Value]| {
        let mut input = vec![json!({"role": "user", "content": "Weather?"})];
        input.extend_from_slice(items);
        for call in &items[items.len() - 2..] {
            input.push(json!({"type": "function_call_output", "call_id": call["call_id"], "output": "21"}));
        }
        let more = json!({"input": input, "tools": [weather()], "max_output_tokens": 400});
        server.post(RESPONSES, &ask("", &more)).ok()["usage"]["input_tokens"].as_u64().expect("a number")
    };
    assert!(prompt(items) > 100);
}

#[test]
fn formats_and_demanded_calls_are_enforced() {
    let server = TestServer::start();
    for choice in [
        json!("required"),
        json!({"type": "function", "name": "get_weather"}),
        json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}),
    ] {
        let more = json!({"tools": [weather(), {"type": "function", "name": "now"}], "tool_choice": choice, "parallel_tool_calls": false,
            "temperature": 1.2, "seed": 5, "max_output_tokens": 300});
        let body = ask("The weather?", &more);
        let whole = server.post(RESPONSES, &body).ok();
        let call = &whole["output"][0];
        assert_eq!(
            (whole["output"].as_array().map(Vec::len), &call["type"]),
            (Some(1), &json!("function_call"))
        );
        let arguments: Value =
            serde_json::from_str(call["arguments"].as_str().expect("a text")).expect("JSON");
        if call["name"] == "get_weather" {
            assert!(["c", "f"].contains(&arguments["unit"].as_str().expect("a unit")), "{call}");
        } else {
            assert_eq!((choice.as_str(), &arguments), (Some("required"), &json!({})));
        }
        assert_eq!(comparable(streamed(&server, &body).1), comparable(whole));
    }
    let schema = json!({"type": "object", "properties": {"legs": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["legs"]});
    let format = json!({"type": "json_schema", "name": "animal", "schema": schema, "strict": true});
    let response = server.post(RESPONSES, &ask("How many?", &json!({"text": {"format": format}}))).ok();
    let value: Value = serde_json::from_str(text(&response)).expect("JSON");
    assert!((0..10).contains(&value["legs"].as_i64().expect("a number")), "{value}");
}

#[test]
fn a_stored_response_is_gone_on_after() {
    let server = TestServer::start();
    let question = "Tell me a story about a fox and an owl in the wood.";
    let one = server.post(RESPONSES, &ask(question, &json!({"instructions": "Be brief."}))).ok();
    assert_eq!(one["store"], true);
    let path = format!("{RESPONSES}/{}", one["id"].as_str().expect("an id"));
    assert_eq!(server.get(&path).ok(), one);
    let two = ask("Go on.", &json!({"previous_response_id": one["id"], "instructions": "Be long."}));
    let (_, two) = streamed(&server, &two);
    assert_eq!(two["previous_response_id"], one["id"]);
    // The same conversation in one request; instructions are those of the last.
    let whole = json!([
        {"role": "user", "content": question},
        {"role": "assistant", "content": [{"type": "output_text", "text": text(&one)}]},
        {"role": "user", "content": "Go on."},
    ]);
    let whole = server.post(RESPONSES, &ask("", &json!({"input": whole, "instructions": "Be long."}))).ok();
    assert_eq!((text(&two), &two["usage"]["input_tokens"]), (text(&whole), &whole["usage"]["input_tokens"]));
    let cached = whole["usage"]["input_tokens_details"]["cached_tokens"].as_u64().expect("a number");
    assert!(cached > 32, "{whole}");
    // A streamed response is stored, too, and a third turn goes on after it.
    let three = ask("And then?", &json!({"previous_response_id": two["id"]}));
    assert!(
        server.post(RESPONSES, &three).ok()["usage"]["input_tokens"].as_u64()
            > two["usage"]["input_tokens"].as_u64()
    );
    assert_eq!(server.delete(&path).ok(), json!({"id": one["id"], "object": "response", "deleted": true}));
    server.get(&path).is_error(404, Some("id"), "there is no response");
    server.delete(&path).is_error(404, Some("id"), "there is no response");
    let again = ask("Go on.", &json!({"previous_response_id": one["id"]}));
    server.post(RESPONSES, &again).is_error(400, Some("previous_response_id"), "kept in memory");
    let kept = server.post(RESPONSES, &ask("Hi.", &json!({"store": false}))).ok();
    server.get(&format!("{RESPONSES}/{}", kept["id"].as_str().expect("an id"))).is_error(
        404,
        Some("id"),
        "no response",
    );
}

#[test]
fn a_server_may_store_nothing_and_keys_are_kept_apart() {
    let server = TestServer::with(|setup| setup.config.response_memory = 0);
    assert_eq!(server.post(RESPONSES, &ask("Hi.", &json!({}))).ok()["store"], false);
    server.post(RESPONSES, &ask("Hi.", &json!({"store": true}))).is_error(
        400,
        Some("store"),
        "stores no responses",
    );
    let server = TestServer::with(|setup| setup.config.api_keys = vec!["one".into(), "two".into()]);
    let post = |key: &str, body: &Value| {
        server.post_with(RESPONSES, &[("authorization", &format!("Bearer {key}"))], body)
    };
    let one = post("one", &ask("Hi.", &json!({}))).ok();
    let next = ask("Go on.", &json!({"previous_response_id": one["id"]}));
    post("one", &next).ok();
    post("two", &next).is_error(400, Some("previous_response_id"), "no response");
}

#[test]
fn a_conversation_beyond_the_context_is_refused_or_truncated() {
    let server = TestServer::with(|setup| setup.load.n_ctx = Some(256));
    let turn = |i: usize| json!({"role": "user", "content": format!("Story {i}: the fox went into the wood and looked for the owl, and the owl was not there.")});
    let said = json!({"role": "assistant", "content": "Yes."});
    let mut input = vec![json!({"role": "developer", "content": "Tell stories."})];
    for i in 0..20 {
        input.extend([turn(i), said.clone()]);
    }
    input.push(turn(20));
    let body = |truncation: &str| ask("", &json!({"input": input, "truncation": truncation}));
    server.post(RESPONSES, &body("disabled")).is_error(400, Some("input"), "maximum context length is");
    let response = server.post(RESPONSES, &body("auto")).ok();
    let n = response["usage"]["input_tokens"].as_u64().expect("a number");
    assert!((100..=232).contains(&n), "{n}");
    // The system prompt and the last turns are what is left.
    let left = |k: usize| [&input[..1], &input[input.len() - 2 * k - 1..]].concat();
    let count = |k: usize| {
        server.post(RESPONSES, &ask("", &json!({"input": left(k), "max_output_tokens": 1}))).ok()["usage"]["input_tokens"].as_u64()
    };
    assert!((1..20).any(|k| count(k) == Some(n)), "{n}");
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
    let server = TestServer::start();
    let image = json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]);
    for (more, param, part) in [
        (json!({"input": null}), "input", "input is empty"),
        (json!({"input": []}), "input", "input is empty"),
        (json!({"input": image}), "input[0].content[0]", "text only"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0]", "previous_response_id"),
        (json!({"background": true}), "background", "stream"),
        (json!({"conversation": "conv_1"}), "conversation", "previous_response_id"),
        (json!({"prompt": {"id": "x"}}), "prompt", "text"),
        (json!({"temperature": -1}), "temperature", "temperature"),
        (json!({"top_logprobs": 21}), "top_logprobs", "20"),
        (json!({"text": {"verbosity": "low"}}), "text.verbosity", "message"),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}, "strict": true}}}),
            "text.format",
            "#/not",
        ),
        (json!({"tools": [weather(), weather()]}), "tools/1/name", "two tools"),
        (
            json!({"tools": [weather()], "tool_choice": {"type": "function", "name": "x"}}),
            "tool_choice/name",
            "\"x\"",
        ),
        (
            json!({"tools": [weather()], "tool_choice": {"type": "web_search_preview"}}),
            "tool_choice",
            "not offered",
        ),
        (json!({"tool_choice": "perhaps"}), "tool_choice", "required"),
    ] {
        server.post(RESPONSES, &ask("Hello.", &more)).is_error(400, Some(param), part);
    }
    server.post(RESPONSES, &ask("Hello.", &json!({"model": "gpt-9"}))).is_error(404, Some("model"), "gpt-9");
    let accepted = json!({"user": "u", "service_tier": "auto", "prompt_cache_key": "k", "safety_identifier": "s", "max_tool_calls": 3,
        "background": false, "truncation": null, "metadata": {"a": "b"}, "reasoning": {"effort": "minimal", "summary": "auto"},
        "stream_options": {"include_obfuscation": false}, "text": {"format": {"type": "text"}, "verbosity": "medium"}, "unheard_of": 1});
    let response = server.post(RESPONSES, &ask("Hello.", &accepted)).ok();
    assert_eq!(
        (&response["metadata"], &response["reasoning"]["effort"]),
        (&json!({"a": "b"}), &json!("minimal"))
    );
}

#[test]
fn codex_finds_the_models_in_its_own_shape() {
    let server = TestServer::start();
    assert!(server.get("/v1/models").ok().get("models").is_none());
    let models = server.get("/v1/models?client_version=0.99.0").ok();
    let model = &models["models"][0];
    assert_eq!(
        (&model["slug"], &model["context_window"]),
        (&json!("demo"), &models["data"][0]["max_model_len"])
    );
    assert!(model["base_instructions"].as_str().expect("a text").len() > 100);
}

#[test]
fn a_response_that_breaks_off_has_failed() {
    let server = failing_after("Once upon a time there was a fox.", 3);
    let reply = server.post(RESPONSES, &ask("Tell me a story.", &json!({"stream": true})));
    let events = named_events(&reply.text);
    let (name, event) = events.last().expect("events");
    assert_eq!((name.as_str(), &event["sequence_number"]), ("response.failed", &json!(events.len() - 1)));
    let response = &event["response"];
    assert_eq!((&response["status"], &response["error"]["code"]), (&json!("failed"), &json!("server_error")));
    assert!(response["error"]["message"].as_str().expect("a message").contains("told to fail"), "{event}");
    server.get(&format!("{RESPONSES}/{}", response["id"].as_str().expect("an id"))).is_error(
        404,
        Some("id"),
        "no response",
    );
}
