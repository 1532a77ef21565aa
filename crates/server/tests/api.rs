//! What the endpoints answer, over real HTTP, with the demo model.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod http;

use http::{TestServer, ask};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("a text")
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().expect("a text")
}

#[test]
fn a_conversation_is_answered_in_openai_s_shape() {
    let server = TestServer::start();
    let answer = server.post(CHAT, &ask("Tell me a story about a fox.", &json!({}))).ok();
    assert!(answer["id"].as_str().expect("an id").starts_with("chatcmpl-"));
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "demo");
    let choice = &answer["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert_eq!((&choice["message"]["role"], &choice["logprobs"]), (&json!("assistant"), &Value::Null));
    assert!(!content(&answer).is_empty());
    let usage = &answer["usage"];
    assert_eq!(usage["completion_tokens"], 24);
    let sum = usage["prompt_tokens"].as_u64().expect("a number") + 24;
    assert_eq!(
        (usage["total_tokens"].as_u64(), &usage["prompt_tokens_details"]["cached_tokens"]),
        (Some(sum), &json!(0))
    );
    let t = &answer["timings"];
    assert!(t["first_token_ms"].as_f64() > Some(0.0) && t["tokens_per_second"].as_f64() > Some(0.0), "{t}");
}

#[test]
fn a_streamed_answer_is_the_whole_one_in_pieces() {
    let server = TestServer::start();
    for more in [
        json!({}),
        json!({"logprobs": true, "top_logprobs": 2}),
        json!({"stop": ["time"]}),
        json!({"n": 3, "temperature": 1, "seed": 5}),
    ] {
        let whole = server.post(CHAT, &ask("Tell me a story.", &more)).ok();
        let mut streamed = ask("Tell me a story.", &more);
        streamed["stream"] = true.into();
        streamed["stream_options"] = json!({"include_usage": true});
        let events = server.events(CHAT, &streamed);
        let (last, pieces) = events.split_last().expect("events");
        assert_eq!(
            (&last["choices"], &last["usage"]["total_tokens"]),
            (&json!([]), &whole["usage"]["total_tokens"])
        );
        for choice in whole["choices"].as_array().expect("choices") {
            let mine: Vec<&Value> =
                pieces.iter().map(|p| &p["choices"][0]).filter(|c| c["index"] == choice["index"]).collect();
            assert_eq!(mine[0]["delta"], json!({"role": "assistant", "content": ""}));
            let joined: String = mine.iter().filter_map(|c| c["delta"]["content"].as_str()).collect();
            assert_eq!(joined, choice["message"]["content"].as_str().expect("a text"));
            assert_eq!(mine.last().expect("pieces")["finish_reason"], choice["finish_reason"]);
            let logprobs: Vec<&Value> =
                mine.iter().filter_map(|c| c["logprobs"]["content"].as_array()).flatten().collect();
            let expected = choice["logprobs"]["content"].as_array();
            assert_eq!(logprobs.len(), expected.map_or(0, Vec::len));
            for (a, b) in logprobs.iter().zip(expected.into_iter().flatten()) {
                assert_eq!(a["token"], b["token"]);
            }
        }
        assert!(pieces.iter().all(|p| p["usage"].is_null()
            && p["id"] == last["id"]
            && p["object"] == "chat.completion.chunk"));
    }
}

#[test]
fn without_include_usage_no_piece_has_any() {
    let server = TestServer::start();
    let events = server.events(CHAT, &ask("Hello.", &json!({"stream": true, "max_tokens": 3})));
    assert!(
        events.iter().all(|e| e.get("usage").is_none() && e["choices"].as_array().map(Vec::len) == Some(1))
    );
    assert!(events.last().expect("a piece")["timings"]["decode_ms"].is_number());
}

#[test]
fn a_seed_repeats_an_answer_and_choices_differ() {
    let server = TestServer::start();
    let body = ask("Tell me a story.", &json!({"temperature": 1.5, "seed": -7, "n": 4}));
    let (a, b) = (server.post(CHAT, &body).ok(), server.post(CHAT, &body).ok());
    assert_eq!(a["choices"], b["choices"]);
    let texts: Vec<&Value> =
        a["choices"].as_array().expect("choices").iter().map(|c| &c["message"]["content"]).collect();
    assert_eq!(texts.len(), 4);
    assert!(texts.iter().any(|t| *t != texts[0]), "{texts:?}");
    assert_eq!(a["usage"]["completion_tokens"], 96);
}

#[test]
fn an_answer_ends_before_a_stop_string() {
    let server = TestServer::start();
    let whole = server.post(CHAT, &ask("Tell me a story.", &json!({}))).ok();
    let stop = content(&whole).split(' ').nth(3).expect("words").to_owned();
    for stop in [json!(stop), json!(["never said", stop])] {
        let answer = server.post(CHAT, &ask("Tell me a story.", &json!({"stop": stop}))).ok();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        assert!(
            content(&whole).starts_with(content(&answer)) && content(&answer).len() < content(&whole).len()
        );
    }
}

#[test]
fn an_answer_that_the_model_ends_goes_on_only_if_asked() {
    let server = TestServer::start();
    let question = "Is a fox an animal? Answer yes or no.";
    let answer = server.post(CHAT, &ask(question, &json!({"max_tokens": 900}))).ok();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let n = answer["usage"]["completion_tokens"].as_u64().expect("a number");
    let more = json!({"max_tokens": n + 20, "ignore_eos": true});
    let longer = server.post(CHAT, &ask(question, &more)).ok();
    assert_eq!(
        (&longer["usage"]["completion_tokens"], &longer["choices"][0]["finish_reason"]),
        (&json!(n + 20), &json!("length"))
    );
    assert!(content(&longer).starts_with(content(&answer)));
    let most = server.post(
        CHAT,
        &ask(question, &json!({"ignore_eos": true, "max_tokens": 5, "max_completion_tokens": 2})),
    );
    assert_eq!(most.ok()["usage"]["completion_tokens"], 2);
}

#[test]
fn log_probabilities_are_of_the_answer_s_tokens() {
    let server = TestServer::start();
    let answer =
        server.post(CHAT, &ask("Tell me a story.", &json!({"logprobs": true, "top_logprobs": 4}))).ok();
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().expect("a list");
    assert_eq!(tokens.len(), 24);
    let mut bytes = Vec::new();
    for token in tokens {
        bytes.extend(
            token["bytes"].as_array().expect("bytes").iter().map(|b| b.as_u64().expect("a byte") as u8),
        );
        let top = token["top_logprobs"].as_array().expect("a list");
        assert_eq!(top.len(), 4);
        // Greedy: the chosen one is the likeliest.
        assert_eq!((&top[0]["token"], &top[0]["logprob"]), (&token["token"], &token["logprob"]));
        let values: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().expect("a number")).collect();
        assert!(values.windows(2).all(|w| w[0] >= w[1]) && values[0] <= 0.0, "{values:?}");
    }
    assert_eq!(String::from_utf8(bytes).expect("UTF-8"), content(&answer));
}

#[test]
fn what_changes_the_choice_of_tokens_changes_it() {
    let server = TestServer::start();
    let plain = server.post(CHAT, &ask("Tell me a story.", &json!({}))).ok();
    let id = server.post("/tokenize", &json!({"prompt": " fox", "add_special_tokens": false})).ok();
    let id = id["tokens"][0].as_u64().expect("an id");
    let biased = json!({"logit_bias": {id.to_string(): 100}, "max_tokens": 3});
    assert_eq!(content(&server.post(CHAT, &ask("Tell me a story.", &biased)).ok()), " fox fox fox");
    // Long enough that words come again on every processor, whose sums differ.
    let long = |more: &Value| {
        let mut body = ask("Tell me a story.", more);
        body["max_tokens"] = 120.into();
        server.post(CHAT, &body).ok()
    };
    let story = long(&json!({}));
    for more in
        [json!({"frequency_penalty": 2}), json!({"presence_penalty": 2}), json!({"repetition_penalty": 3})]
    {
        assert_ne!(content(&long(&more)), content(&story), "{more}");
    }
    // What leaves only the likeliest token is greedy.
    for more in [json!({"top_k": 1}), json!({"top_p": 0}), json!({"min_p": 1})] {
        let mut body = ask("Tell me a story.", &more);
        body["temperature"] = 1.into();
        assert_eq!(content(&server.post(CHAT, &body).ok()), content(&plain), "{more}");
    }
}

#[test]
fn all_forms_of_a_prompt_are_continued_alike() {
    let server = TestServer::start();
    let ids = server.post("/tokenize", &json!({"prompt": "Once upon a time"})).ok()["tokens"].clone();
    let of = |prompt: Value| server.post(TEXT, &json!({"prompt": prompt, "temperature": 0})).ok();
    let one = of(json!("Once upon a time"));
    assert_eq!((&one["object"], &one["usage"]["completion_tokens"]), (&json!("text_completion"), &json!(16)));
    assert_eq!(text(&of(json!([ids])[0].clone())), text(&one));
    let two = of(json!(["The fox", "Once upon a time"]));
    assert_eq!(
        (two["choices"][1]["text"].as_str(), &two["choices"][1]["index"]),
        (Some(text(&one)), &json!(1))
    );
    assert_eq!(two["usage"]["completion_tokens"], 32);
    assert_eq!(text(&of(json!([ids, ids]))), text(&one));
}

#[test]
fn rendered_requests_are_what_is_computed() {
    let server = TestServer::start();
    let render = |path: &str, body: &Value| server.post(&format!("{path}/render"), body).ok();
    for more in [
        json!({}),
        json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]}),
        json!({"truncate_prompt_tokens": 7}),
        json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|end|> é"}]}),
    ] {
        let mut body = ask("Tell me a story.", &more);
        body["return_token_ids"] = true.into();
        let answer = server.post(CHAT, &body).ok();
        assert!(answer["prompt_token_ids"].as_array().is_some_and(|ids| ids.len() > 3));
        assert_eq!(render(CHAT, &body), json!({"token_ids": answer["prompt_token_ids"]}), "{more}");
    }
    for prompt in [json!("Once upon a time"), json!(["The fox", "A tree"]), json!([[5, 6], [7]])] {
        let body = json!({"prompt": prompt, "max_tokens": 1, "return_token_ids": true});
        let choices = server.post(TEXT, &body).ok()["choices"].clone();
        let ids =
            choices.as_array().expect("choices").iter().map(|c| json!({"token_ids": c["prompt_token_ids"]}));
        assert_eq!(render(TEXT, &body), ids.collect::<Value>(), "{prompt}");
    }
    // The same conversation has the same tokens, however it is asked.
    let chat = render(CHAT, &ask("Tell me a story.", &json!({})));
    assert_eq!(render("/v1/responses", &json!({"input": "Tell me a story."})), chat);
    let messages = json!({"messages": [{"role": "user", "content": "Tell me a story."}]});
    assert_eq!(render("/v1/messages", &messages), chat);
    // What cannot be computed is refused alike.
    for (path, field) in [(CHAT, "messages"), (TEXT, "prompt")] {
        let long = "fox ".repeat(20_000);
        let mut body = json!({"max_tokens": 1});
        body[field] = if path == CHAT { json!([{"role": "user", "content": long}]) } else { json!(long) };
        let (asked, rendered) = (server.post(path, &body), server.post(&format!("{path}/render"), &body));
        let code = |reply: &http::Reply| {
            serde_json::from_str::<Value>(&reply.text).expect("JSON")["error"]["code"].clone()
        };
        assert_eq!((asked.status, rendered.status), (400, 400));
        assert_eq!(code(&asked), code(&rendered));
    }
}

#[test]
fn several_choices_of_several_prompts_come_in_order() {
    let server = TestServer::start();
    let body =
        json!({"prompt": ["The fox", "A tree"], "n": 2, "temperature": 0, "max_tokens": 4, "echo": true});
    let whole = server.post(TEXT, &body).ok();
    let texts: Vec<&str> = whole["choices"]
        .as_array()
        .expect("choices")
        .iter()
        .map(|c| c["text"].as_str().expect("text"))
        .collect();
    assert_eq!(texts.len(), 4);
    assert!(texts[0].starts_with("The fox") && texts[0] == texts[1]);
    assert!(texts[2].starts_with("A tree") && texts[2] == texts[3]);
    let mut streamed = body;
    streamed["stream"] = true.into();
    let mut joined = vec![String::new(); 4];
    for event in server.events(TEXT, &streamed) {
        let choice = &event["choices"][0];
        joined[choice["index"].as_u64().expect("an index") as usize] +=
            choice["text"].as_str().expect("text");
    }
    assert_eq!(joined, texts);
}

#[test]
fn an_echoed_prompt_has_log_probabilities_too() {
    let server = TestServer::start();
    let prompt = "Once upon a time there was a fox";
    let body = json!({"prompt": prompt, "echo": true, "logprobs": 2, "max_tokens": 0});
    let answer = server.post(TEXT, &body).ok();
    assert_eq!(text(&answer), prompt);
    assert_eq!(
        (&answer["usage"]["completion_tokens"], &answer["choices"][0]["finish_reason"]),
        (&json!(0), &json!("length"))
    );
    let logprobs = &answer["choices"][0]["logprobs"];
    let list = |key: &str| logprobs[key].as_array().expect("a list").clone();
    let n = list("tokens").len();
    assert_eq!(answer["usage"]["prompt_tokens"], n);
    assert!(["token_logprobs", "top_logprobs", "text_offset"].iter().all(|k| list(k).len() == n));
    assert!(list("token_logprobs")[0].is_null() && list("token_logprobs")[1..].iter().all(Value::is_number));
    assert!(list("top_logprobs")[1..].iter().all(|t| t.as_object().is_some_and(|t| t.len() == 2)));
    let offsets: Vec<usize> =
        list("text_offset").iter().map(|o| o.as_u64().expect("a number") as usize).collect();
    for (i, token) in list("tokens").iter().enumerate() {
        assert!(prompt[offsets[i]..].starts_with(token.as_str().expect("text")), "{i}: {logprobs}");
    }
    // Scored again as an answer's tokens, the greedy continuation has the same probabilities.
    let body = json!({"prompt": "Once upon a", "logprobs": 0, "max_tokens": 3, "temperature": 0});
    let generated = server.post(TEXT, &body).ok();
    let full = format!("Once upon a{}", text(&generated));
    let scored =
        server.post(TEXT, &json!({"prompt": full, "echo": true, "logprobs": 0, "max_tokens": 0})).ok();
    let scored = scored["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("a list").clone();
    let generated = generated["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("a list").clone();
    for (a, b) in scored[scored.len() - 3..].iter().zip(&generated) {
        let (a, b) = (a.as_f64().expect("a number"), b.as_f64().expect("a number"));
        assert!((a - b).abs() < 1e-3, "{a} {b}");
    }
}

#[test]
fn what_the_model_cannot_do_is_refused() {
    let server = TestServer::start();
    server.post(TEXT, &json!({"prompt": "a", "suffix": "b"})).is_error(
        400,
        Some("suffix"),
        "cannot fill in the middle",
    );
    server.post(TEXT, &json!({"prompt": "a", "best_of": 3})).is_error(400, Some("best_of"), "ask for n");
    assert_eq!(server.post(TEXT, &json!({"prompt": "a", "best_of": 1, "max_tokens": 1})).status, 200);
    let image = json!([{"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "x"}}]}]);
    server.post(CHAT, &json!({"messages": image})).is_error(400, Some("messages[0].content[1]"), "text only");
}

#[test]
fn a_message_in_parts_is_the_message() {
    let server = TestServer::start();
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "Tell me"}, {"type": "text", "text": "a story"}]}]);
    let rendered = server.post("/apply-template", &json!({"messages": parts})).ok();
    let whole = json!([{"role": "user", "content": "Tell me\na story"}]);
    assert_eq!(rendered, server.post("/apply-template", &json!({"messages": whole})).ok());
}

#[test]
fn a_prompt_seen_before_is_cached_for_those_who_may_know() {
    let server = TestServer::with(|setup| {
        setup.config.api_keys = vec!["one".into(), "two".into()];
        setup.config.salt_by_key = true;
    });
    let story = "The fox went into the wood and looked for the owl. ".repeat(8);
    let cached = |key: &str, salt: Option<&str>| {
        let body = json!({"prompt": story, "max_tokens": 1, "cache_salt": salt});
        let answer = server.post_with(TEXT, &[("authorization", &format!("Bearer {key}"))], &body).ok();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
    };
    assert_eq!(cached("one", None), 0);
    assert!(cached("one", None) >= 64);
    assert_eq!(cached("two", None), 0);
    assert_eq!(cached("one", Some("s")), 0);
    assert!(cached("one", Some("s")) >= 64);
}

#[test]
fn the_model_has_its_names() {
    let server = TestServer::with(|setup| setup.names = vec!["owner/demo".into(), "other".into()]);
    let list = server.get("/v1/models").ok();
    let ids: Vec<&str> =
        list["data"].as_array().expect("a list").iter().map(|m| m["id"].as_str().expect("a name")).collect();
    assert_eq!(ids, ["owner/demo", "other"]);
    assert_eq!(server.get("/v1/models/owner/demo").ok(), list["data"][0]);
    server.get("/v1/models/gpt-9").is_error(404, Some("model"), "owner/demo");
    let answer = server.post(TEXT, &json!({"model": "other", "prompt": "a", "max_tokens": 1})).ok();
    assert_eq!(answer["model"], "other");
    assert_eq!(server.post(TEXT, &json!({"prompt": "a", "max_tokens": 1})).ok()["model"], "owner/demo");
    server.post(CHAT, &ask("Hello.", &json!({"model": "demo"}))).is_error(
        404,
        Some("model"),
        "does not exist",
    );
}

#[test]
fn text_becomes_tokens_and_text_again() {
    let server = TestServer::start();
    let tokens =
        server.post("/tokenize", &json!({"prompt": "Ein Fuchs – 狐!", "return_token_strs": true})).ok();
    let n = tokens["tokens"].as_array().expect("a list").len();
    assert_eq!(
        (tokens["count"].as_u64(), tokens["token_strs"].as_array().map(Vec::len)),
        (Some(n as u64), Some(n))
    );
    let body = json!({"tokens": tokens["tokens"], "skip_special_tokens": true});
    assert_eq!(server.post("/detokenize", &body).ok()["prompt"], "Ein Fuchs – 狐!");
    let messages = json!([{"role": "user", "content": "Hello."}]);
    let rendered = server.post("/apply-template", &json!({"messages": messages})).ok();
    let rendered = rendered["prompt"].as_str().expect("text").to_owned();
    assert!(rendered.contains("Hello."));
    let direct = server.post("/tokenize", &json!({"prompt": rendered, "add_special_tokens": false})).ok();
    assert_eq!(server.post("/tokenize", &json!({"messages": messages})).ok()["tokens"], direct["tokens"]);
    server.post("/tokenize", &json!({})).is_error(400, Some("prompt"), "exactly one");
    server.post("/detokenize", &json!({"tokens": [1, 999_999]})).is_error(400, Some("tokens[1]"), "999999");
}

#[test]
fn metrics_count_what_was_done() {
    let server = TestServer::start();
    server.post(CHAT, &ask("Hello.", &json!({"max_tokens": 5, "ignore_eos": true}))).ok();
    let page = server.get("/metrics");
    assert!(page.header("content-type").starts_with("text/plain; version=0.0.4"));
    let value = |name: &str| -> f64 {
        let line = page.text.lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
        line.rsplit(' ').next().expect("a value").parse().expect("a number")
    };
    assert_eq!(value("realizar_requests_total"), 1.0);
    assert_eq!(value("realizar_generated_tokens_total"), 5.0);
    assert_eq!(value("realizar_finished_total{model_name=\"demo\",reason=\"length\"}"), 1.0);
    for name in ["first_token", "queue", "request"] {
        assert_eq!(value(&format!("realizar_{name}_seconds_count")), 1.0, "{name}");
    }
    assert_eq!(value("realizar_inter_token_seconds_count"), 4.0);
    assert_eq!(value("realizar_request_generated_tokens_sum"), 5.0);
    assert_eq!(value("realizar_request_prompt_tokens_count"), 1.0);
    for name in ["vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"] {
        assert!(value(name) >= 0.0);
    }
    assert!(
        page.text.contains(
            "vllm:cache_config_info{model_name=\"demo\",block_size=\"32\",num_gpu_blocks=\"256\"} 1"
        )
    );
    assert!(page.text.contains("vllm:lora_requests_info{"));
    // Every sample belongs to a family that was declared, and every line is one or the other.
    let mut family = String::new();
    for line in page.text.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(rest) => family = rest.split(' ').next().expect("a name").to_owned(),
            None => assert!(line.starts_with("# HELP ") || line.starts_with(&family), "{line}"),
        }
    }
}

#[test]
fn a_request_has_an_id() {
    let server = TestServer::start();
    let body = json!({"prompt": "a", "max_tokens": 1});
    let reply = server.post_with(TEXT, &[("x-request-id", "my-7")], &body);
    assert_eq!(reply.header("x-request-id"), "my-7");
    let own =
        server.post_with(TEXT, &[("x-request-id", "not sensible")], &body).header("x-request-id").to_owned();
    assert!(own.starts_with("req-"), "{own}");
    assert_ne!(own, server.get("/no-such-page").header("x-request-id"));
}

#[test]
fn the_document_lists_every_endpoint() {
    let server = TestServer::start();
    let document = server.get("/openapi.json").ok();
    let paths: Vec<&str> = document["paths"].as_object().expect("paths").keys().map(String::as_str).collect();
    for path in [
        CHAT,
        TEXT,
        "/v1/responses",
        "/v1/responses/{id}",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/api/chat",
        "/api/generate",
        "/v1/models",
        "/v1/models/{model}",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/health",
        "/ready",
        "/metrics",
    ] {
        assert!(paths.contains(&path), "{path} in {paths:?}");
    }
    let mut names: Vec<&str> = document["paths"]
        .as_object()
        .expect("paths")
        .values()
        .flat_map(|methods| methods.as_object().expect("methods").values())
        .map(|m| m["operationId"].as_str().expect("a name"))
        .collect();
    let n = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), n, "{names:?}");
    // What the document refers to is there.
    let text = document.to_string();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().expect("a name");
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
    }
    let page = server.get("/docs");
    assert!(page.header("content-type").starts_with("text/html") && page.text.contains("openapi.json"));
}

#[test]
fn only_pages_of_allowed_origins_may_read_answers() {
    let server = TestServer::with(|setup| setup.config.cors = vec!["https://a.example".into()]);
    let body = json!({"prompt": "a", "max_tokens": 1});
    let allowed = |origin: &str| {
        server.post_with(TEXT, &[("origin", origin)], &body).header("access-control-allow-origin").to_owned()
    };
    assert_eq!(allowed("https://a.example"), "https://a.example");
    assert_eq!(allowed("https://b.example"), "");
}

#[test]
fn pages_may_send_the_headers_that_clients_add() {
    let server = TestServer::with(|setup| setup.config.cors = vec!["https://a.example".into()]);
    let asked = "authorization,content-type,x-api-key,x-stainless-os,x-stainless-retry-count";
    let reply = server.raw(
        format!(
            "OPTIONS {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nOrigin: https://a.example\r\n\
            Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: {asked}\r\n\r\n"
        )
        .as_bytes(),
    );
    let allowed = reply.lines().find_map(|line| line.strip_prefix("access-control-allow-headers: "));
    assert_eq!(allowed, Some(asked), "{reply}");
    assert!(reply.contains("access-control-allow-origin: https://a.example"), "{reply}");
}

#[test]
fn a_key_may_stand_in_a_header_of_its_own() {
    let server = TestServer::with(|setup| setup.config.api_keys = vec!["secret".into()]);
    let body = json!({"prompt": "a", "max_tokens": 1});
    assert_eq!(server.post_with(TEXT, &[("x-api-key", "secret")], &body).status, 200);
    assert_eq!(server.post_with(TEXT, &[("x-api-key", "wrong")], &body).status, 401);
    assert_eq!(server.post_with("/completions", &[], &body).status, 401);
}

#[test]
fn endpoints_answer_without_their_version_too() {
    let server = TestServer::start();
    assert_eq!(server.get("/models").ok(), server.get("/v1/models").ok());
    assert_eq!(server.get("/models/demo").ok(), server.get("/v1/models/demo").ok());
    let body = ask("Tell me a story.", &json!({}));
    assert_eq!(
        content(&server.post("/chat/completions", &body).ok()),
        content(&server.post(CHAT, &body).ok())
    );
    let body = json!({"prompt": "a", "max_tokens": 3, "temperature": 0});
    assert_eq!(text(&server.post("/completions", &body).ok()), text(&server.post(TEXT, &body).ok()));
}

#[test]
fn several_addresses_lead_to_one_server() {
    let hosts = vec!["127.0.0.1".to_owned(), "127.0.0.2".to_owned()];
    let server = TestServer::with(|setup| setup.config.hosts = hosts);
    let second = std::net::SocketAddr::from(([127, 0, 0, 2], server.address.port()));
    for address in [server.address, second] {
        let mut stream = std::net::TcpStream::connect(address).expect("a connection");
        std::io::Write::write_all(
            &mut stream,
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        )
        .expect("it is read");
        assert!(http::read_all(&mut stream).starts_with("HTTP/1.1 200"), "{address}");
    }
}

#[test]
fn many_at_once_get_what_each_would_get_alone() {
    let server = TestServer::start();
    let questions: Vec<String> = (0..12).map(|i| format!("Tell me a story about {i} foxes.")).collect();
    let answer =
        |q: &String| content(&server.post(CHAT, &ask(q, &json!({"max_tokens": 40}))).ok()).to_owned();
    let alone: Vec<String> = questions.iter().map(answer).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = questions.iter().map(|q| scope.spawn(move || answer(q))).collect();
        threads.into_iter().map(|t| t.join().expect("an answer")).collect()
    });
    assert_eq!(together, alone);
    server.is_idle_in_the_end();
}
