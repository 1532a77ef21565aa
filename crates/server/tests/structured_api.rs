//! Structured output, tools and reasoning over real HTTP, with the demo model, which tells stories whatever it is asked: only the
//! grammar makes it write JSON. Then with a runner that recites what a larger model would say.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod http;

use http::recital::reciting;
use http::{TestServer, ask};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn message(answer: &Value) -> &Value {
    &answer["choices"][0]["message"]
}

fn content(answer: &Value) -> Value {
    let text = message(answer)["content"].as_str().expect("a text");
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn weather() -> Value {
    json!({"type": "function", "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["c", "f"]}},
            "required": ["city", "unit"],
            "additionalProperties": false,
        },
    }})
}

#[test]
fn an_answer_follows_its_format_to_the_end() {
    let server = TestServer::start();
    let person = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "person", "schema": person, "strict": true}});
    for seed in 0..6 {
        let more = json!({"response_format": format, "temperature": 1.5, "seed": seed, "max_tokens": 400});
        let answer = server.post(CHAT, &ask("Who?", &more)).ok();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let value = content(&answer);
        assert!(value["name"].as_str().expect("a name").chars().count() <= 10, "{value}");
        assert!((0..100).contains(&value["age"].as_i64().expect("an age")), "{value}");
        assert_eq!(value.as_object().map(serde_json::Map::len), Some(2));
    }
    let more = json!({"regex": "[0-9]{2}:[0-9]{2}", "max_tokens": 50, "n": 3, "temperature": 1, "seed": 1});
    let answer = server.post(CHAT, &ask("When?", &more)).ok();
    for choice in answer["choices"].as_array().expect("choices") {
        let text = choice["message"]["content"].as_str().expect("a text");
        assert!(text.len() == 5 && text.as_bytes()[2] == b':', "{text}");
    }
    let body = json!({"prompt": "Yes or no?", "grammar": "start: \"yes\" | \"no\"", "max_tokens": 9, "temperature": 0});
    let answer = server.post("/v1/completions", &body).ok();
    assert!(["yes", "no"].contains(&answer["choices"][0]["text"].as_str().expect("a text")), "{answer}");
}

#[test]
fn an_answer_in_json_is_an_object_or_cut_off() {
    let server = TestServer::start();
    let more =
        json!({"response_format": {"type": "json_object"}, "max_tokens": 60, "temperature": 0.7, "seed": 3});
    let mut body = ask("A story.", &more);
    let whole = server.post(CHAT, &body).ok();
    match whole["choices"][0]["finish_reason"].as_str() {
        Some("stop") => assert!(content(&whole).is_object()),
        _ => assert!(message(&whole)["content"].as_str().expect("a text").starts_with('{')),
    }
    body["stream"] = true.into();
    let pieces = server.events(CHAT, &body);
    let text: String = pieces.iter().filter_map(|p| p["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, message(&whole)["content"].as_str().expect("a text"));
}

#[test]
fn what_cannot_be_enforced_is_refused_and_says_where() {
    let server = TestServer::start();
    let schema = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}}});
    let tool = |parameters: Value| {
        let mut tool = weather();
        tool["function"]["parameters"] = parameters;
        tool["function"]["strict"] = true.into();
        json!({"tools": [tool]})
    };
    for (more, param, said) in [
        (
            schema(json!({"type": "object", "properties": {"a": {"type": "strnig"}}})),
            "response_format",
            "#/properties/a",
        ),
        (schema(json!({"not": {}})), "response_format", "#/not"),
        (schema(json!({"type": "integer", "minimum": 2, "maximum": 1})), "response_format", "2"),
        (json!({"regex": "("}), "regex", "("),
        (json!({"grammar": "start: nothing"}), "grammar", "nothing"),
        (json!({"regex": "a", "grammar": "start: \"a\""}), "grammar", "combined"),
        (json!({"regex": "a", "ignore_eos": true}), "ignore_eos", "ignore_eos"),
        (json!({"response_format": {"type": "xml"}}), "response_format", "xml"),
        (
            tool(json!({"type": "object", "properties": {"a": {"pattern": "("}}})),
            "tools",
            "tools/0/function/parameters/properties/a",
        ),
        (json!({"tools": [weather(), weather()]}), "tools/1/function/name", "two tools"),
        (
            json!({"tools": [weather()], "tool_choice": {"type": "function", "function": {"name": "x"}}}),
            "tool_choice/function/name",
            "\"x\"",
        ),
        (json!({"tool_choice": "required"}), "tool_choice", "no tools"),
        (json!({"tool_choice": "perhaps"}), "tool_choice", "required"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type", "web_search"),
        (json!({"tools": [weather()], "tool_choice": "auto", "regex": "a"}), "tools", "JSON"),
    ] {
        let reply = server.post(CHAT, &ask("Hello.", &more));
        let body: Value = serde_json::from_str(&reply.text).expect("JSON");
        let error = &body["error"];
        let text = error["message"].as_str().unwrap_or_default();
        assert!(reply.status == 400 && text.contains(said), "{more}: {} {text}", reply.status);
        assert_eq!(error["type"], "invalid_request_error", "{more}");
        if param != "tools[0].type"
            && more["response_format"]["type"] != "xml"
            && more["tool_choice"] != "perhaps"
        {
            assert_eq!(error["param"], param, "{more}: {text}");
        }
    }
    server.is_idle_in_the_end();
}

#[test]
fn demanded_calls_come_whole_and_in_pieces() {
    let server = TestServer::start();
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "get_weather"}})] {
        let more = json!({
            "tools": [weather(), {"type": "function", "function": {"name": "now"}}], "tool_choice": choice,
            "parallel_tool_calls": false, "temperature": 1.2, "seed": 5, "max_tokens": 300,
        });
        let mut body = ask("The weather?", &more);
        let whole = server.post(CHAT, &body).ok();
        assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
        let message = message(&whole);
        assert_eq!(message["content"], Value::Null);
        let calls = message["tool_calls"].as_array().expect("calls");
        assert_eq!((calls.len(), &calls[0]["type"]), (1, &json!("function")));
        assert!(calls[0]["id"].as_str().expect("an id").starts_with("call_"));
        let arguments = calls[0]["function"]["arguments"].as_str().expect("a string");
        let arguments: Value = serde_json::from_str(arguments).expect("JSON");
        if calls[0]["function"]["name"] == "get_weather" {
            assert!(
                arguments["city"].is_string()
                    && ["c", "f"].contains(&arguments["unit"].as_str().expect("a unit"))
            );
        } else {
            assert_eq!(arguments, json!({}));
        }

        body["stream"] = true.into();
        let events = server.events(CHAT, &body);
        let deltas: Vec<&Value> = events
            .iter()
            .map(|e| &e["choices"][0]["delta"]["tool_calls"])
            .filter(|calls| calls.is_array())
            .map(|c| &c[0])
            .collect();
        assert_eq!(
            (&deltas[0]["function"]["name"], &deltas[0]["function"]["arguments"]),
            (&calls[0]["function"]["name"], &json!(""))
        );
        assert!(
            deltas[0]["id"].is_string() && deltas[0]["type"] == "function" && deltas[1].get("id").is_none()
        );
        let joined: String = deltas.iter().filter_map(|d| d["function"]["arguments"].as_str()).collect();
        assert_eq!(joined, calls[0]["function"]["arguments"].as_str().expect("a string"));
        assert_eq!(events.last().expect("events")["choices"][0]["finish_reason"], "tool_calls");
    }
}

#[test]
fn tools_that_may_be_called_change_no_plain_answer() {
    let server = TestServer::start();
    for choice in ["auto", "none"] {
        let more = json!({"tools": [weather()], "tool_choice": choice, "max_tokens": 20});
        let answer = server.post(CHAT, &ask("Tell me a story.", &more)).ok();
        assert!(!message(&answer)["content"].as_str().expect("a text").is_empty());
        assert!(message(&answer).get("tool_calls").is_none());
        let rendered = server.post("/apply-template", &ask("Hi.", &more)).ok();
        let told = rendered["prompt"].as_str().expect("a text").contains("get_weather");
        assert_eq!(told, choice == "auto");
    }
}

#[test]
fn thoughts_text_and_calls_of_an_answer_are_told_apart() {
    let said = "<think>\nHm, the weather.\n</think>\n\nI look.\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n\
        {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}";
    let server = reciting(said);
    let mut body = ask("Weather?", &json!({"tools": [weather()], "max_tokens": 400}));
    let whole = server.post(CHAT, &body).ok();
    let message = message(&whole);
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("Hm, the weather."), &json!("I look."))
    );
    let arguments = |i: usize| message["tool_calls"][i]["function"]["arguments"].as_str().expect("a string");
    assert_eq!((arguments(0), arguments(1)), ("{\"city\": \"Paris\"}", "{\"city\": \"Rome\"}"));
    assert_ne!(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);

    body["stream"] = true.into();
    let events = server.events(CHAT, &body);
    let join = |field: &str| -> String {
        events.iter().filter_map(|e| e["choices"][0]["delta"][field].as_str()).collect()
    };
    assert_eq!(
        (join("reasoning_content").as_str(), join("content").as_str()),
        ("Hm, the weather.", "I look.")
    );
    let pieces = events.iter().filter_map(|e| e["choices"][0]["delta"]["tool_calls"].as_array()).flatten();
    let mut calls: Vec<String> = Vec::new();
    for piece in pieces {
        if piece["index"] == calls.len() {
            calls.push(String::new());
        }
        *calls.last_mut().expect("a call") += piece["function"]["arguments"].as_str().expect("a string");
    }
    assert_eq!(calls, [arguments(0), arguments(1)]);

    // The same text without tools is text.
    let answer = server.post(CHAT, &ask("Weather?", &json!({"max_tokens": 400}))).ok();
    let text = self::message(&answer)["content"].as_str().expect("a text");
    assert!(
        text.starts_with("I look.\n{\"name\"") && self::message(&answer).get("tool_calls").is_none(),
        "{text}"
    );
    // A conversation with calls and results is understood.
    let call = &message["tool_calls"][0];
    let more = json!({"messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "21"},
    ], "tools": [weather()], "max_tokens": 5});
    server.post(CHAT, &more).ok();
}
