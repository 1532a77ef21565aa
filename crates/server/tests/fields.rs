//! What the fields do that other servers' clients send, over real HTTP, with the demo model; and with templates of the test's own what
//! reaches a chat template.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod http;

use http::{TestServer, ask};
use realizar_engine::load::{CacheSize, Device, LoadOptions, load};
use realizar_engine::{Engine, EngineConfig, TextEngine};
use realizar_model::chat_template::ChatTemplate;
use realizar_model::source;
use realizar_model::tokenizer::Tokenizer;
use realizar_server::Config;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const STORY: &str = "Tell me a story.";
const YES_OR_NO: &str = "Is a fox an animal? Answer yes or no.";

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("a text")
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().expect("a text")
}

fn ids(list: &Value) -> Vec<u64> {
    list.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id")).collect()
}

fn plain(prompt: &str, more: &Value) -> Value {
    let mut body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 16});
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

#[test]
fn what_would_change_the_answer_and_is_not_offered_is_refused_by_name() {
    let server = TestServer::start();
    for (field, value) in [
        ("use_beam_search", json!(true)),
        ("typical_p", json!(0.9)),
        ("mirostat", json!(2)),
        ("dry_multiplier", json!(0.8)),
        ("xtc_probability", json!(0.5)),
        ("max_new_tokens", json!(5)),
        ("images", json!(["data:"])),
    ] {
        server.post(CHAT, &ask(STORY, &json!({ field: value }))).is_error(400, Some(field), field);
        server.post(TEXT, &plain("A", &json!({ field: value }))).is_error(400, Some(field), field);
    }
    for (field, value) in [
        ("best_of", json!(2)),
        ("modalities", json!(["text", "audio"])),
        ("audio", json!({"voice": "alloy", "format": "wav"})),
        ("chat_template", json!("{{ messages }}")),
        ("web_search_options", json!({})),
    ] {
        server.post(CHAT, &ask(STORY, &json!({ field: value }))).is_error(400, Some(field), field);
    }
    server.post(TEXT, &plain("A", &json!({"tools": [{}]}))).is_error(400, Some("tools"), CHAT);
    assert_eq!(server.client().stats().steps.get(), 0, "nothing was computed");
}

#[test]
fn what_cannot_change_the_answer_is_accepted() {
    let server = TestServer::start();
    let answer = server.post(CHAT, &ask(STORY, &json!({}))).ok();
    let more = json!({
        "user": "u", "store": true, "metadata": {"a": "b"}, "service_tier": "auto", "prediction": {"type": "content", "content": "x"},
        "dry_multiplier": 0, "dry_base": 1.75, "xtc_probability": 0.0, "xtc_threshold": 0.1, "typical_p": 1, "mirostat": 0,
        "mirostat_tau": 5.0, "use_beam_search": false, "length_penalty": 1.0, "cache_prompt": true, "modalities": ["text"],
        "samplers": null, "repeat_penalty": 1, "repeat_last_n": 64, "min_tokens": 0, "stop_token_ids": [], "bad_words": [],
        "logits_processors": [], "skip_special_tokens": true, "not_known_at_all": {"x": 1},
    });
    assert_eq!(content(&server.post(CHAT, &ask(STORY, &more)).ok()), content(&answer));
}

#[test]
fn tokens_of_the_request_end_the_answer() {
    let server = TestServer::start();
    let whole = server.post(TEXT, &plain("Once upon", &json!({"return_token_ids": true}))).ok();
    let tokens = ids(&whole["choices"][0]["token_ids"]);
    assert_eq!(tokens.len(), 16);
    let stop = tokens[5];
    let n = tokens.iter().position(|&id| id == stop).expect("it is there");
    let text_of = |ids: &[u64]| server.post("/detokenize", &json!({ "tokens": ids })).ok()["prompt"].clone();
    for more in [json!({}), json!({"ignore_eos": true})] {
        let mut body = plain("Once upon", &more);
        body["stop_token_ids"] = json!([stop]);
        body["return_token_ids"] = true.into();
        let ended = server.post(TEXT, &body).ok();
        let choice = &ended["choices"][0];
        assert_eq!((&choice["finish_reason"], &choice["text"]), (&json!("stop"), &text_of(&tokens[..n])));
        assert_eq!(ids(&choice["token_ids"]), tokens[..=n], "with the one that ended it");
        assert_eq!(ended["usage"]["completion_tokens"], n);
        body["include_stop_str_in_output"] = true.into();
        assert_eq!(server.post(TEXT, &body).ok()["choices"][0]["text"], text_of(&tokens[..=n]));
    }
    server.post(TEXT, &plain("A", &json!({"stop_token_ids": [999_999]}))).is_error(
        400,
        Some("stop_token_ids"),
        "999999",
    );
    // A stop string, too, may be part of the answer.
    let word = text(&whole).split(' ').nth(2).expect("words");
    let body = plain("Once upon", &json!({"stop": word, "include_stop_str_in_output": true}));
    assert!(text(&server.post(TEXT, &body).ok()).ends_with(word));
}

#[test]
fn an_answer_ends_only_after_its_least_tokens() {
    let server = TestServer::start();
    let short = server.post(CHAT, &ask(YES_OR_NO, &json!({"max_tokens": 200}))).ok();
    let n = short["usage"]["completion_tokens"].as_u64().expect("a number");
    assert_eq!(short["choices"][0]["finish_reason"], "stop");
    let more = json!({"max_tokens": 200, "min_tokens": n + 8});
    let long = server.post(CHAT, &ask(YES_OR_NO, &more)).ok();
    assert!(long["usage"]["completion_tokens"].as_u64() >= Some(n + 8), "{long}");
    assert!(content(&long).starts_with(content(&short)));
    // Nor by a stop string.
    let whole = server.post(TEXT, &plain("Once upon a time", &json!({"max_tokens": 40}))).ok();
    let body = plain("Once upon a time", &json!({"max_tokens": 40, "stop": " ", "min_tokens": 12}));
    let stopped = server.post(TEXT, &body).ok();
    assert!(stopped["usage"]["completion_tokens"].as_u64() > Some(12), "{stopped}");
    assert!(text(&whole).starts_with(text(&stopped)));
    for (more, param) in [
        (json!({"min_tokens": 20}), "min_tokens"),
        (json!({"min_tokens": 2, "regex": "a"}), "min_tokens"),
        (json!({"allowed_token_ids": [5], "regex": "a"}), "allowed_token_ids"),
        (json!({"allowed_token_ids": [999_999]}), "allowed_token_ids"),
        (json!({"allowed_token_ids": []}), "allowed_token_ids"),
    ] {
        server.post(TEXT, &plain("A", &more)).is_error(400, Some(param), param);
    }
}

#[test]
fn only_allowed_tokens_are_generated() {
    let server = TestServer::start();
    let allowed = ids(&server.post("/tokenize", &json!({"prompt": " the fox and owl"})).ok()["tokens"]);
    let more = json!({"allowed_token_ids": allowed, "temperature": 1, "seed": 3, "return_token_ids": true});
    let answer = server.post(CHAT, &ask(STORY, &more)).ok();
    let tokens = ids(&answer["choices"][0]["token_ids"]);
    assert_eq!(tokens.len(), 24);
    assert!(tokens.iter().all(|id| allowed.contains(id)), "{tokens:?} of {allowed:?}");
}

#[test]
fn bad_words_are_never_said() {
    let server = TestServer::start();
    let more = json!({"max_tokens": 60});
    let plain_answer = server.post(CHAT, &ask(STORY, &more)).ok();
    let word = content(&plain_answer).split(' ').find(|word| word.len() > 2).expect("a word").to_owned();
    for bad in [json!([word]), json!([word, "::= (.*", "a/b\n"])] {
        let answer = server.post(CHAT, &ask(STORY, &json!({"max_tokens": 60, "bad_words": bad}))).ok();
        assert!(!content(&answer).contains(&word) && content(&answer).len() > 20, "{word:?} in {answer}");
    }
    let both = json!({"bad_words": ["x"], "regex": "a"});
    server.post(CHAT, &ask(STORY, &both)).is_error(400, Some("bad_words"), "combined");
}

#[test]
fn a_prompt_s_log_probabilities_are_those_of_its_echo() {
    let server = TestServer::start();
    let prompt = "Once upon a time there was a fox";
    let echo = json!({"echo": true, "logprobs": 2, "max_tokens": 0});
    let echoed = server.post(TEXT, &plain(prompt, &echo)).ok();
    let expected = echoed["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("a list").clone();
    let body =
        plain(prompt, &json!({"prompt_logprobs": 2, "return_token_ids": true, "max_tokens": 2, "n": 2}));
    let answer = server.post(TEXT, &body).ok();
    for choice in answer["choices"].as_array().expect("choices") {
        let tokens = ids(&choice["prompt_token_ids"]);
        let places = choice["prompt_logprobs"].as_array().expect("a list");
        assert_eq!((places.len(), tokens.len(), &places[0]), (expected.len(), expected.len(), &Value::Null));
        for ((place, id), expected) in places.iter().zip(&tokens).zip(&expected).skip(1) {
            assert_eq!(place[id.to_string()]["logprob"], *expected);
            let ranks: BTreeSet<u64> =
                place.as_object().expect("tokens").values().filter_map(|t| t["rank"].as_u64()).collect();
            assert_eq!(ranks, BTreeSet::from([1, 2]));
        }
    }
    assert_eq!(
        text(&answer).len(),
        text(&server.post(TEXT, &plain(prompt, &json!({"max_tokens": 2}))).ok()).len()
    );
    let chat =
        server.post(CHAT, &ask("Hello.", &json!({"prompt_logprobs": 0, "return_token_ids": true}))).ok();
    let n = chat["usage"]["prompt_tokens"].as_u64().expect("a number") as usize;
    assert_eq!(chat["prompt_logprobs"].as_array().map(Vec::len), Some(n));
    assert_eq!(ids(&chat["prompt_token_ids"]).len(), n);
    for (body, said) in [
        (plain("A", &json!({"prompt_logprobs": 1, "stream": true})), "stream"),
        (plain("A", &json!({"prompt_logprobs": 21})), "20"),
        (plain("A", &json!({"prompt_logprobs": 1, "logprobs": 1, "echo": true})), "echo"),
    ] {
        server.post(TEXT, &body).is_error(400, Some("prompt_logprobs"), said);
    }
}

#[test]
fn token_ids_of_a_stream_are_those_of_the_whole() {
    let server = TestServer::start();
    let more = json!({"return_token_ids": true, "max_tokens": 200});
    let whole = server.post(CHAT, &ask(YES_OR_NO, &more)).ok();
    let tokens = ids(&whole["choices"][0]["token_ids"]);
    let mut body = ask(YES_OR_NO, &more);
    body["stream"] = true.into();
    let pieces = server.events(CHAT, &body);
    assert_eq!(pieces[0]["prompt_token_ids"], whole["prompt_token_ids"]);
    assert!(pieces[1..].iter().all(|piece| piece.get("prompt_token_ids").is_none()));
    let streamed = pieces.iter().map(|p| &p["choices"][0]["token_ids"]).filter(|list| list.is_array());
    assert_eq!(streamed.flat_map(ids).collect::<Vec<u64>>(), tokens);
    let messages = json!({"messages": [{"role": "user", "content": YES_OR_NO}]});
    assert_eq!(server.post("/tokenize", &messages).ok()["tokens"], whole["prompt_token_ids"]);
    let said = server.post("/detokenize", &json!({"tokens": tokens, "skip_special_tokens": true})).ok();
    assert_eq!(said["prompt"], content(&whole));
    let whole = server.post(TEXT, &plain("Once", &more)).ok();
    let mut body = plain("Once", &more);
    body["stream"] = true.into();
    let pieces = server.events(TEXT, &body);
    assert_eq!(pieces[0]["choices"][0]["prompt_token_ids"], whole["choices"][0]["prompt_token_ids"]);
    let streamed = pieces.iter().map(|p| &p["choices"][0]["token_ids"]).filter(|list| list.is_array());
    assert_eq!(streamed.flat_map(ids).collect::<Vec<u64>>(), ids(&whole["choices"][0]["token_ids"]));
    // Nobody who did not ask gets any.
    let plain_answer = server.post(TEXT, &plain("Once", &json!({}))).ok().to_string();
    assert!(!plain_answer.contains("token_ids") && !plain_answer.contains("prompt_logprobs"));
}

#[test]
fn other_names_of_fields_do_the_same() {
    let server = TestServer::start();
    let of = |more: Value| text(&server.post(TEXT, &plain("Once upon a time", &more)).ok()).to_owned();
    assert_eq!(of(json!({"repeat_penalty": 3})), of(json!({"repetition_penalty": 3})));
    assert_ne!(of(json!({"repeat_penalty": 3})), of(json!({})));
    // Penalties that look at nothing do nothing.
    assert_eq!(of(json!({"repeat_penalty": 3, "repeat_last_n": 0})), of(json!({})));
    let mut body = plain("Once upon a time", &json!({"n_predict": 5}));
    server.post(TEXT, &body).is_error(400, Some("n_predict"), "differ");
    body.as_object_mut().expect("an object").remove("max_tokens");
    assert_eq!(server.post(TEXT, &body).ok()["usage"]["completion_tokens"], 5);
    let forever = plain("Once", &json!({"n_predict": -1, "max_tokens": null, "ignore_eos": true}));
    let answer = server.post(TEXT, &forever).ok();
    let limit = server.client().info().max_seq_len();
    assert_eq!(answer["usage"]["total_tokens"], limit, "never one more");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[test]
fn the_end_of_a_long_prompt_may_be_kept() {
    let server = TestServer::start();
    let all: Vec<u64> = (20..80).collect();
    let of = |more: Value| {
        let mut body = plain("", &more);
        if body["prompt"] == "" {
            body["prompt"] = json!(all);
        }
        server.post(TEXT, &body).ok()
    };
    let cut = of(json!({"truncate_prompt_tokens": 7, "echo": true}));
    assert_eq!(cut["usage"]["prompt_tokens"], 7);
    assert_eq!(text(&cut), text(&of(json!({"prompt": all[53..], "echo": true}))));
    assert_eq!(of(json!({"truncate_prompt_tokens": 60}))["usage"]["prompt_tokens"], 60);
    let limit = server.client().info().max_seq_len();
    let long = vec![25; limit + 10];
    let fits = of(json!({"prompt": long, "truncate_prompt_tokens": -1}));
    assert_eq!(
        (&fits["usage"]["prompt_tokens"], &fits["usage"]["completion_tokens"]),
        (&json!(limit - 1), &json!(1))
    );
    server.post(TEXT, &plain("A", &json!({"truncate_prompt_tokens": 0}))).is_error(
        400,
        Some("truncate_prompt_tokens"),
        "at least 1",
    );
}

#[test]
fn control_tokens_are_shown_if_asked_for() {
    let server = TestServer::start();
    let more = json!({"max_tokens": 60, "ignore_eos": true});
    let hidden = server.post(CHAT, &ask(YES_OR_NO, &more)).ok();
    let mut body = ask(YES_OR_NO, &more);
    body["skip_special_tokens"] = false.into();
    let shown = server.post(CHAT, &body).ok();
    assert!(content(&shown).contains("<|im_end|>") && !content(&hidden).contains("<|im_end|>"));
}

#[test]
fn formats_have_the_names_of_other_servers() {
    let server = TestServer::start();
    let schema = json!({"type": "object", "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["age"]});
    for more in [
        json!({"response_format": {"type": "json_object", "schema": schema}}),
        json!({"json_schema": schema}),
        json!({"guided_json": schema.to_string()}),
        json!({"structured_outputs": {"json": schema}}),
    ] {
        for seed in 0..3 {
            let mut body = ask("Who?", &more);
            (body["seed"], body["temperature"], body["max_tokens"]) = (seed.into(), 1.5.into(), 200.into());
            let answer = server.post(CHAT, &body).ok();
            let value: Value = serde_json::from_str(content(&answer)).expect("JSON");
            let keys: Vec<&String> = value.as_object().expect("an object").keys().collect();
            assert_eq!(keys, ["age"], "objects are closed: {value}");
        }
    }
    for more in [
        json!({"guided_choice": ["red", "a.b"]}),
        json!({"structured_outputs": {"choice": ["red", "a.b"]}}),
        json!({"ebnf": "root ::= \"red\" | \"a.b\""}),
    ] {
        let answer = server.post(CHAT, &ask("Which?", &more)).ok();
        assert!(["red", "a.b"].contains(&content(&answer)), "{answer}");
    }
    for (more, param) in [
        (json!({"structured_outputs": {"structural_tag": "x"}}), "structured_outputs"),
        (json!({"guided_json": {"type": "strnig"}}), "guided_json"),
        (json!({"guided_regex": "("}), "guided_regex"),
    ] {
        server.post(CHAT, &ask("Who?", &more)).is_error(400, Some(param), "");
    }
}

#[test]
fn a_switch_opens_objects_as_the_standard_says() {
    // The only way to satisfy this schema is a property that it does not name.
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]});
    let more = json!({"json_schema": schema, "max_tokens": 300, "temperature": 1, "seed": 1});
    let open = TestServer::with(|setup| setup.config.open_schemas = true);
    let answer = open.post(CHAT, &ask("Who?", &more)).ok();
    assert!(content(&answer).trim_start().starts_with('{'));
    let closed = TestServer::start();
    closed.post(CHAT, &ask("Who?", &more)).is_error(400, Some("json_schema"), "");
}

fn function(name: &str) -> Value {
    json!({"name": name, "parameters": {
        "type": "object", "properties": {"unit": {"enum": ["c", "f"]}}, "required": ["unit"]}})
}

#[test]
fn functions_get_an_answer_of_the_older_form() {
    let server = TestServer::start();
    let more = json!({"functions": [function("one"), function("two")], "function_call": {"name": "two"}, "max_tokens": 200});
    let mut body = ask("The weather?", &more);
    let answer = server.post(CHAT, &body).ok();
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("function_call"), &Value::Null)
    );
    let call = &choice["message"]["function_call"];
    assert_eq!(call["name"], "two");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().expect("a text")).expect("JSON");
    assert!(["c", "f"].contains(&arguments["unit"].as_str().expect("a unit")));
    assert!(choice["message"].get("tool_calls").is_none());
    body["stream"] = true.into();
    let pieces = server.events(CHAT, &body);
    let deltas: Vec<&Value> =
        pieces.iter().map(|p| &p["choices"][0]["delta"]["function_call"]).filter(|d| d.is_object()).collect();
    assert_eq!(deltas[0]["name"], "two");
    let joined: String = deltas.iter().filter_map(|d| d["arguments"].as_str()).collect();
    assert_eq!(joined, call["arguments"].as_str().expect("a text"));
    assert_eq!(pieces.last().expect("pieces")["choices"][0]["finish_reason"], "function_call");
    let both = json!({"functions": [function("one")], "tools": []});
    server.post(CHAT, &ask("Hi.", &both)).is_error(400, Some("functions"), "older form");
}

#[test]
fn custom_tools_are_called_with_text() {
    let server = TestServer::start();
    let format =
        json!({"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]{2}:[0-9]{2}"}});
    let more = json!({
        "tools": [{"type": "custom", "custom": {"name": "clock", "description": "Sets the clock.", "format": format}}],
        "tool_choice": {"type": "custom", "custom": {"name": "clock"}}, "max_tokens": 200, "temperature": 1, "seed": 2,
    });
    let mut body = ask("When?", &more);
    let answer = server.post(CHAT, &body).ok();
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    let call = &answer["choices"][0]["message"]["tool_calls"][0];
    assert_eq!((&call["type"], &call["custom"]["name"]), (&json!("custom"), &json!("clock")));
    let input = call["custom"]["input"].as_str().expect("a text");
    assert!(input.len() == 5 && input.as_bytes()[2] == b':', "{input}");
    assert!(call.get("function").is_none());
    body["stream"] = true.into();
    let pieces = server.events(CHAT, &body);
    let deltas: Vec<&Value> =
        pieces.iter().map(|p| &p["choices"][0]["delta"]["tool_calls"]).filter(|d| d.is_array()).collect();
    assert_eq!((deltas.len(), &deltas[0][0]["custom"]), (1, &call["custom"]));
    // The call goes back to the model as it was told to write it.
    let messages = json!({"messages": [{"role": "user", "content": "When?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "done"}], "tools": more["tools"]});
    let rendered =
        server.post("/apply-template", &messages).ok()["prompt"].as_str().expect("a text").to_owned();
    assert!(rendered.contains(&format!("{{\"input\":\"{input}\"}}")), "{rendered}");
}

#[test]
fn a_choice_may_allow_some_of_the_tools_only() {
    let server = TestServer::start();
    let tools: Vec<Value> = ["one", "two", "three"]
        .iter()
        .map(|n| json!({"type": "function", "function": function(n)}))
        .collect();
    let allowed = json!({"type": "allowed_tools", "allowed_tools": {"mode": "required",
        "tools": [{"type": "function", "function": {"name": "two"}}]}});
    let more = json!({"tools": tools, "tool_choice": allowed, "max_tokens": 200, "temperature": 1.5});
    for seed in 0..3 {
        let mut body = ask("Which?", &more);
        body["seed"] = seed.into();
        let answer = server.post(CHAT, &body).ok();
        let calls = answer["choices"][0]["message"]["tool_calls"].as_array().expect("calls");
        assert!(calls.iter().all(|call| call["function"]["name"] == "two"), "{answer}");
    }
    let rendered = server.post("/apply-template", &ask("Which?", &more)).ok().to_string();
    assert!(rendered.contains("two") && !rendered.contains("three"));
}

/// A server of the demo model with another chat template.
fn with_template(template: &str) -> TestServer {
    let source = source::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf"))
        .expect("the demo model");
    let options = LoadOptions {
        device: Device::Cpu,
        n_threads: 1,
        cache: CacheSize::Tokens(8192),
        ..LoadOptions::default()
    };
    let loaded = load(&*source, &options).expect("a runner");
    let tokenizer = Arc::new(Tokenizer::from_source(&*source).expect("a tokenizer"));
    let template = ChatTemplate::new(template, "", "").expect("a template");
    let client = Engine::start(loaded.runner, EngineConfig::default());
    let config = Config::default();
    TestServer::around(TextEngine::new(client, tokenizer, Some(template)), config)
}

#[test]
fn variables_reach_the_chat_template() {
    let server = with_template(
        "{{ enable_thinking }}|{{ reasoning_effort }}|{{ date_string }}|{{ documents }}|{{ other }}|{{ messages[0].content }}",
    );
    let rendered = |more: Value| {
        let text = server.post("/apply-template", &ask("Hi.", &more)).ok()["prompt"].clone();
        text.as_str().expect("a text").to_owned()
    };
    assert_eq!(rendered(json!({})), "|||None||Hi.");
    let more = json!({"enable_thinking": false, "reasoning_effort": "high", "date_string": "1 Jan 2030",
        "documents": [{"title": "A"}], "chat_template_kwargs": {"other": 5}});
    assert_eq!(rendered(more), "False|high|1 Jan 2030|[{'title': 'A'}]|5|Hi.");
    assert_eq!(rendered(json!({"reasoning_effort": "none"})), "False|none||None||Hi.");
    let more =
        json!({"enable_thinking": true, "chat_template_kwargs": {"enable_thinking": false, "messages": []}});
    assert_eq!(rendered(more), "False|||None||Hi.");
}

#[test]
fn a_conversation_may_end_within_its_last_message() {
    let server = TestServer::start();
    let messages =
        json!([{"role": "user", "content": STORY}, {"role": "assistant", "content": "Once upon a time, "}]);
    let rendered = |more: Value| {
        let mut body = more;
        body["messages"] = messages.clone();
        server.post("/apply-template", &body)
    };
    let text = |more: Value| rendered(more).ok()["prompt"].as_str().expect("a text").to_owned();
    let open = text(json!({"continue_final_message": true}));
    assert!(open.ends_with("<|im_start|>assistant\nOnce upon a time, "), "{open}");
    assert_eq!(text(json!({"continue_final_message": true, "add_generation_prompt": false})), open);
    assert_eq!(text(json!({"chat_template_kwargs": {"continue_final_message": true}})), open);
    assert_eq!(text(json!({"add_generation_prompt": false})), format!("{open}<|im_end|>\n"));
    assert_eq!(text(json!({})), format!("{open}<|im_end|>\n<|im_start|>assistant\n"));
    rendered(json!({"continue_final_message": true, "add_generation_prompt": true})).is_error(
        400,
        Some("continue_final_message"),
        "both",
    );
    // The answer is what follows, and tokenizing agrees.
    let body = json!({"messages": messages, "continue_final_message": true, "temperature": 0, "max_tokens": 8,
        "return_token_ids": true});
    let answer = server.post(CHAT, &body).ok();
    let continued =
        server.post(TEXT, &plain(&open, &json!({"max_tokens": 8, "add_special_tokens": false}))).ok();
    assert_eq!(content(&answer), continued["choices"][0]["text"]);
    let tokens =
        server.post("/tokenize", &json!({"messages": messages, "continue_final_message": true})).ok();
    assert_eq!(tokens["tokens"], answer["prompt_token_ids"]);
    let call = json!([{"role": "assistant", "content": null, "tool_calls": []}]);
    server.post("/apply-template", &json!({"messages": call, "continue_final_message": true})).is_error(
        400,
        Some("continue_final_message"),
        "text to go on with",
    );
}

#[test]
fn a_template_that_does_not_show_the_last_message_cannot_go_on_with_it() {
    let server = with_template("{{ messages[0].content | upper | length }}");
    let body = json!({"messages": [{"role": "assistant", "content": "a"}], "continue_final_message": true});
    server.post("/apply-template", &body).is_error(400, Some("continue_final_message"), "as it is");
    let server = with_template("<s>{{ messages[0].content | trim }}</s>");
    let body = json!({"messages": [{"role": "assistant", "content": " </s> a\u{e000} "}], "continue_final_message": true});
    assert_eq!(server.post("/apply-template", &body).ok()["prompt"], "<s></s> a\u{e000} ");
}

#[test]
fn messages_of_older_and_other_forms_are_read() {
    let server = with_template(
        "{% for m in messages %}{{ m.role }}:{{ m.content }}:{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments.unit }}){% endfor %};{% endfor %}",
    );
    let rendered = |messages: Value| {
        server.post("/apply-template", &json!({ "messages": messages })).ok()["prompt"].clone()
    };
    let refused = json!([{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}]);
    assert_eq!(rendered(refused), "assistant:No.:;");
    assert_eq!(
        rendered(json!([{"role": "assistant", "content": null, "refusal": "No."}])),
        "assistant:No.:;"
    );
    let call = json!({"name": "weather", "arguments": "{\"unit\": \"c\"}"});
    let older = json!([{"role": "assistant", "content": "", "function_call": call}, {"role": "function", "name": "weather", "content": "9"}]);
    let text = rendered(older);
    assert!(text.as_str().expect("a text").contains("weather"), "{text}");
    let neither = json!({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function"}]}]});
    server.post("/apply-template", &neither).is_error(400, Some("messages[0].tool_calls[0]"), "neither");
}
