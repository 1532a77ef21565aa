//! llama.cpp's endpoints, as its users' scripts ask them.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod http;

use http::{TestServer, data_of};
use serde_json::{Value, json};

/// A text, continued greedily.
fn continued(prompt: Value, more: &Value) -> Value {
    let mut body = json!({"prompt": prompt, "temperature": 0, "n_predict": 8});
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

/// The pieces of a stream.
fn pieces(server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let reply = server.post(path, body);
    assert_eq!((reply.status, reply.header("content-type")), (200, "text/event-stream"), "{}", reply.text);
    data_of(&reply.text).iter().map(|data| serde_json::from_str(data).expect("JSON")).collect()
}

#[test]
fn a_completion_has_all_fields() {
    let server = TestServer::start();
    let text = server
        .post("/v1/completions", &json!({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 8}))
        .ok();
    let body = continued(
        json!("Once upon a time"),
        &json!({"return_tokens": true, "seed": 7, "top_k": 5, "stop": ["zebra"]}),
    );
    let answer = server.post("/completion", &body).ok();
    assert_eq!(answer["content"], text["choices"][0]["text"]);
    assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(8));
    let expected = [
        ("index", json!(0)),
        ("stop", json!(true)),
        ("stop_type", json!("limit")),
        ("stopping_word", json!("")),
        ("model", json!("demo")),
        ("tokens_predicted", json!(8)),
        ("truncated", json!(false)),
        ("has_new_line", json!(false)),
        ("id_slot", json!(-1)),
    ];
    for (field, value) in expected {
        assert_eq!(answer[field], value, "{field}");
    }
    let n_prompt = answer["tokens_evaluated"].as_u64().expect("a number");
    let (timings, settings) = (&answer["timings"], &answer["generation_settings"]);
    assert_eq!(
        timings["prompt_n"].as_u64().expect("a number") + timings["cache_n"].as_u64().expect("a number"),
        n_prompt
    );
    assert_eq!(timings["predicted_n"], 8);
    assert!(timings["predicted_per_second"].as_f64().is_some_and(|speed| speed > 0.0), "{timings}");
    for (field, value) in [
        ("seed", json!(7)),
        ("top_k", json!(5)),
        ("temperature", json!(0.0)),
        ("n_predict", json!(8)),
        ("repeat_last_n", json!(64)),
        ("stop", json!(["zebra"])),
        ("stream", json!(false)),
    ] {
        assert_eq!(settings[field], value, "{field}");
    }
    let again = server
        .post(
            "/completion",
            &continued(
                json!("Once upon a time"),
                &json!({"response_fields": ["content", "generation_settings/n_predict", "x"]}),
            ),
        )
        .ok();
    assert_eq!(again, json!({"content": answer["content"], "generation_settings/n_predict": 8}));
    assert_eq!(server.post("/completion", &continued(json!("Once"), &json!({}))).ok()["tokens"], json!([]));
}

#[test]
fn a_streamed_completion_is_the_whole_one_in_pieces() {
    let server = TestServer::start();
    let more = json!({"n_probs": 2, "return_tokens": true});
    let whole = server.post("/completion", &continued(json!("Once upon a time"), &more)).ok();
    let streamed = pieces(
        &server,
        "/completion",
        &continued(json!("Once upon a time"), &json!({"n_probs": 2, "stream": true})),
    );
    let (last, pieces) = streamed.split_last().expect("pieces");
    let content: String = pieces.iter().map(|piece| piece["content"].as_str().expect("text")).collect();
    assert_eq!(whole["content"], content);
    let all = |field: &str| -> Vec<Value> {
        pieces.iter().flat_map(|piece| piece[field].as_array().expect("a list").clone()).collect()
    };
    assert_eq!(whole["tokens"], Value::Array(all("tokens")));
    assert_eq!(whole["completion_probabilities"], Value::Array(all("completion_probabilities")));
    assert!(pieces.iter().all(|piece| piece["stop"] == false && piece["index"] == 0));
    assert_eq!(
        (&last["stop"], &last["content"], &last["stop_type"]),
        (&json!(true), &json!(""), &json!("limit"))
    );
    assert_eq!(last["generation_settings"]["stream"], true);
    let first = &whole["completion_probabilities"][0];
    let top = first["top_logprobs"].as_array().expect("a list");
    assert_eq!((top.len(), &top[0]["id"]), (2, &first["id"]), "greedily the first is the likeliest");
    assert!(first["logprob"].as_f64().is_some_and(|logprob| logprob <= 0.0));
    assert_eq!(first["bytes"].as_array().map(Vec::len), first["token"].as_str().map(str::len));
}

#[test]
fn prompts_come_in_all_forms() {
    let server = TestServer::start();
    let tokens = server.post("/tokenize", &json!({"content": "Once upon a time", "add_special": true})).ok()
        ["tokens"]
        .clone();
    let content = |prompt: &Value| server.post("/completion", &continued(prompt.clone(), &json!({}))).ok();
    let one = content(&json!("Once upon a time"));
    assert_eq!(content(&tokens)["content"], one["content"]);
    assert_eq!(content(&json!({"prompt_string": "Once upon a time"}))["content"], one["content"]);
    let mut mixed = tokens.as_array().expect("a list").clone();
    let text = server.post("/detokenize", &json!({"tokens": [mixed.pop()]})).ok()["content"].clone();
    mixed.push(text);
    assert_eq!(content(&Value::Array(mixed))["content"], one["content"]);
    let many = content(&json!(["The fox", tokens, {"prompt_string": "Once upon a time"}]));
    let many = many.as_array().expect("a list");
    assert_eq!((many.len(), &many[1]["content"], &many[2]["index"]), (3, &one["content"], &json!(2)));
    assert_eq!(many[1]["content"], many[2]["content"]);
    let twice = server.post("/completion", &continued(json!("The fox"), &json!({"n_cmpl": 2}))).ok();
    assert_eq!(twice.as_array().map(Vec::len), Some(2));
    for (wrong, said) in [
        (json!([]), "empty list"),
        (json!(3), "prompt is a text"),
        (json!([1, 999_999]), "999999"),
        (json!([1, -1]), "-1"),
        (json!([[1.5]]), "1.5"),
        (json!({"prompt": "a"}), "prompt_string"),
        (json!({"prompt_string": "a", "multimodal_data": ["eA=="]}), "only text"),
    ] {
        is_error(
            &server.post("/completion", &continued(wrong, &json!({}))),
            400,
            "invalid_request_error",
            said,
        );
    }
}

#[test]
fn an_answer_ends_as_it_was_asked_to() {
    let server = TestServer::start();
    let long =
        server.post("/completion", &continued(json!("Once upon a time"), &json!({"n_predict": 40}))).ok();
    let word = long["content"].as_str().expect("text").split(' ').nth(6).expect("words").to_owned();
    let stopped = server
        .post("/completion", &continued(json!("Once upon a time"), &json!({"n_predict": 40, "stop": word})))
        .ok();
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&json!("word"), &json!(word)));
    assert!(!stopped["content"].as_str().expect("text").contains(&word));
    let numbers = json!({"grammar": "root ::= [0-9]{3}", "n_predict": 20});
    let number = server.post("/completion", &continued(json!("Once"), &numbers)).ok();
    assert!(
        number["content"].as_str().is_some_and(|text| text.len() == 3 && text.parse::<u32>().is_ok()),
        "{number}"
    );
    assert_eq!(
        (&number["stop_type"], &number["generation_settings"]["grammar"]),
        (&json!("eos"), &numbers["grammar"])
    );
    let schema = json!({"json_schema": {"enum": ["a", "b"]}, "n_predict": 20});
    let chosen = server.post("/completion", &continued(json!("Once"), &schema)).ok();
    assert!(["\"a\"", "\"b\""].contains(&chosen["content"].as_str().expect("text")), "{chosen}");
    let fox = server.post("/tokenize", &json!({"content": " fox"})).ok()["tokens"][0].clone();
    for bias in [json!([[fox, 100]]), json!([[" fox", 100]]), json!({fox.to_string(): 100})] {
        let biased = server
            .post("/completion", &continued(json!("The"), &json!({"logit_bias": bias, "n_predict": 2})))
            .ok();
        assert_eq!(biased["content"], " fox fox", "{bias}");
    }
    let never = json!({"logit_bias": [[fox, false]], "n_predict": 2});
    assert_ne!(server.post("/completion", &continued(json!("The"), &never)).ok()["content"], " fox fox");
}

/// An error in llama.cpp's words.
#[track_caller]
fn is_error(reply: &http::Reply, status: u16, kind: &str, said: &str) {
    assert_eq!(reply.status, status, "{}", reply.text);
    let body: Value = serde_json::from_str(&reply.text).expect("JSON");
    assert_eq!((&body["error"]["code"], &body["error"]["type"]), (&json!(status), &json!(kind)), "{body}");
    assert!(
        body["error"]["message"].as_str().is_some_and(|message| message.contains(said)),
        "{said:?} in {body}"
    );
}

#[test]
fn errors_are_worded_as_llama_cpp_does() {
    let server = TestServer::with(|setup| setup.config.api_keys = vec!["secret".into()]);
    let key = [("authorization", "Bearer secret")];
    is_error(&server.post("/completion", &json!({"prompt": "a"})), 401, "authentication_error", "key");
    let wrong = |body: &Value| server.post_with("/completion", &key, body);
    is_error(&wrong(&json!({})), 400, "invalid_request_error", "prompt");
    is_error(
        &wrong(&json!({"prompt": "a", "mirostat": 2})),
        400,
        "invalid_request_error",
        "mirostat is not supported",
    );
    is_error(&wrong(&json!({"prompt": "a", "n_probs": 21})), 400, "invalid_request_error", "n_probs");
    is_error(&wrong(&json!({"prompt": "a", "logit_bias": 1})), 400, "invalid_request_error", "logit_bias");
    is_error(
        &wrong(&json!({"prompt": "a", "grammar": "root ::= \"a\"", "json_schema": {}})),
        400,
        "invalid_request_error",
        "combined",
    );
    is_error(
        &wrong(&json!({"prompt": "fox ".repeat(3000)})),
        400,
        "exceed_context_size_error",
        "maximum context length is",
    );
    let gap = json!({"input_prefix": "a", "input_suffix": "b"});
    is_error(&server.post_with("/infill", &key, &gap), 501, "not_supported_error", "fill in the middle");
    let file = json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "f"}]});
    is_error(&server.post_with("/infill", &key, &file), 400, "invalid_request_error", "text");
    for path in ["/props", "/lora-adapters", "/slots/0?action=save"] {
        is_error(&server.post_with(path, &key, &json!({})), 501, "not_supported_error", "");
    }
}

#[test]
fn the_server_tells_of_itself() {
    let server = TestServer::start();
    let props = server.get("/props").ok();
    assert_eq!((&props["model_alias"], &props["bos_token"].is_string()), (&json!("demo"), &true));
    assert!(
        props["chat_template"].as_str().is_some_and(|template| template.contains("<|im_start|>")),
        "{props}"
    );
    let n_ctx = props["default_generation_settings"]["n_ctx"].as_u64();
    assert_eq!(n_ctx, Some(1024));
    let slots = server.get("/slots").ok();
    let slots = slots.as_array().expect("a list");
    assert_eq!(Some(slots.len() as u64), props["total_slots"].as_u64());
    assert!(slots.iter().all(|slot| slot["is_processing"] == false && slot["n_ctx"] == 1024));
    assert_eq!(server.get("/slots?fail_on_no_slot=1").status, 200);
    assert_eq!(server.get("/lora-adapters").ok(), json!([]));
    is_error(&server.get("/props?model=x"), 404, "not_found_error", "demo");
}

#[test]
fn a_text_is_tokenized_as_llama_cpp_does() {
    let server = TestServer::start();
    let plain = server.post("/tokenize", &json!({"content": "Ein Fuchs – 狐!"})).ok();
    let pieces = server.post("/tokenize", &json!({"content": "Ein Fuchs – 狐!", "with_pieces": true})).ok();
    let pieces = pieces["tokens"].as_array().expect("a list");
    let ids: Vec<&Value> = pieces.iter().map(|token| &token["id"]).collect();
    assert_eq!(plain["tokens"].as_array().map(|tokens| tokens.iter().collect()), Some(ids));
    let bytes: Vec<u8> = pieces
        .iter()
        .flat_map(|token| match &token["piece"] {
            Value::String(text) => text.clone().into_bytes(),
            bytes => {
                bytes.as_array().expect("bytes").iter().map(|b| b.as_u64().expect("a byte") as u8).collect()
            }
        })
        .collect();
    assert_eq!(String::from_utf8(bytes).as_deref(), Ok("Ein Fuchs – 狐!"));
    let text = server.post("/detokenize", &json!({"tokens": plain["tokens"]})).ok();
    assert_eq!(text["content"], "Ein Fuchs – 狐!");
    server.post("/tokenize", &json!({"content": "a", "prompt": "a"})).is_error(
        400,
        Some("content"),
        "combined",
    );
}
