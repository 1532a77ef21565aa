//! Formats that once ended the process or occupied its threads for ever: each is refused in time, and named, and others are answered
//! meanwhile. A stack overflow would end this test's process.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod http;

use http::{Reply, TestServer, ask};
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";

fn schema(schema: Value) -> Value {
    let format = json!({"name": "a", "schema": schema, "strict": true});
    json!({"response_format": {"type": "json_schema", "json_schema": format}, "max_tokens": 4})
}

/// Definitions that each refer to the next.
fn chain(n: usize, link: impl Fn(String) -> Value) -> Value {
    let mut defs: Map<String, Value> =
        (0..n).map(|i| (format!("d{i}"), link(format!("#/$defs/d{}", i + 1)))).collect();
    defs.insert(format!("d{n}"), json!({"type": "null"}));
    json!({"$defs": defs, "$ref": "#/$defs/d0"})
}

fn object(property: String) -> Value {
    json!({
        "type": "object", "properties": {"a": {"$ref": property}}, "required": ["a"], "additionalProperties": false
    })
}

fn lark_chain(n: usize) -> String {
    let rules: String = (0..n).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
    format!("start: r0\n{rules}r{n}: \"a\"\n")
}

fn primes() -> Value {
    let all: Vec<Value> =
        [2, 3, 5, 7, 11, 13, 17, 19, 23].map(|p| json!({"type": "integer", "multipleOf": p})).to_vec();
    json!({ "allOf": all })
}

/// An object of many properties, all of them required.
fn wide(n: usize) -> Value {
    let names: Vec<String> = (0..n).map(|i| format!("p{i}")).collect();
    let properties: Map<String, Value> =
        names.iter().map(|n| (n.clone(), json!({"type": "string"}))).collect();
    json!({"type": "object", "properties": properties, "required": names, "additionalProperties": false})
}

fn strict_tool(n: usize) -> Value {
    let parameters = wide(n);
    json!({"tools": [{"type": "function", "function": {"name": "t", "strict": true, "parameters": parameters}}],
           "tool_choice": "required", "max_tokens": 4})
}

fn post(server: &TestServer, more: &Value) -> (Reply, Duration) {
    let before = Instant::now();
    let reply = server.post(CHAT, &ask("Go.", more));
    (reply, before.elapsed())
}

#[test]
fn deep_formats_within_the_bounds_are_followed() {
    let server = TestServer::start();
    for more in [
        json!({"grammar": lark_chain(2000), "max_tokens": 4}),
        schema(chain(100, object)),
        schema(chain(120, |next| json!({"anyOf": [{"$ref": next}, {"type": "null"}]}))),
        schema(wide(1000)),
    ] {
        let (reply, _) = post(&server, &more);
        reply.ok();
    }
}

#[test]
fn formats_beyond_a_bound_are_refused_by_its_name() {
    let server = TestServer::start();
    let names: Vec<String> = (0..5000).map(|i| format!("n{i}")).collect();
    for (more, said) in [
        (json!({"grammar": lark_chain(4000)}), "lines of the grammar"),
        (
            json!({"grammar": format!("start: {}\"a\"{}", "(".repeat(3000), ")".repeat(3000))}),
            "depth of groups",
        ),
        (json!({"grammar": format!("start: A\nA: {}/a/", "~".repeat(9000))}), "negations"),
        (schema(chain(300, object)), "references followed"),
        (schema(chain(600, |next| json!({"anyOf": [{"$ref": next}, {"type": "null"}]}))), "definitions"),
        (schema(json!({"type": "object", "required": names})), "required"),
        (schema(primes()), "multipleOf"),
        (json!({"grammar": format!("start: %json {}", primes())}), "multipleOf"),
        (strict_tool(5000), "properties"),
        (schema(json!({"type": "integer", "multipleOf": 1e-7})), "decimals"),
        (json!({"grammar": "root ::= \"a\"{100000}"}), "elements"),
    ] {
        let (reply, took) = post(&server, &more);
        assert_eq!(reply.status, 400, "{said}: {}", reply.text);
        assert!(reply.text.contains(said), "{said}: {}", reply.text);
        assert!(took < Duration::from_secs(10), "{said}: {took:?}");
    }
}

#[test]
fn searches_without_end_are_given_up() {
    let server = TestServer::start();
    let intersection = "start: A\nA: /[0-9]*1[0-9]{60}/ & /[0-9]*2[0-9]{61}/ & /1[0-9]*/\n";
    let alternatives: Vec<String> =
        (0..40).map(|i| format!("[a-{}]{}", (b'b' + i % 20) as char, i)).collect();
    let product: Vec<Value> =
        (0..3).map(|_| json!({"type": "string", "pattern": alternatives.join("|")})).collect();
    for more in [
        json!({"grammar": intersection}),
        schema(json!({"allOf": product})),
        schema(json!({"type": "integer", "multipleOf": 50_000_017, "minimum": 1})),
        json!({"grammar": "root ::= ([a-z ,.]* [aeiou] [a-z ,.]{400})+"}),
        json!({"regex": "((a|b)*a(a|b){20})*"}),
    ] {
        // It may be taken where it is found to be harmless; it must not take long, and the server goes on.
        let (reply, took) = post(&server, &json!({"max_tokens": 2}).merged(&more));
        assert!([200, 400].contains(&reply.status), "{}", reply.text);
        assert!(took < Duration::from_secs(20), "{more}: {took:?}");
    }
    server.post("/tokenize", &json!({"content": "a"})).ok();
}

#[test]
fn others_are_answered_while_formats_are_compiled() {
    let server = TestServer::start();
    std::thread::scope(|scope| {
        for client in 0..12 {
            let server = &server;
            scope.spawn(move || {
                for i in 0..3 {
                    let grammar = format!(
                        "start: A\nA: /[0-9]*1[0-9]{{60}}/ & /[0-9]*2[0-9]{{61}}/ & /1[0-9]*{client}{i}/\n"
                    );
                    let (reply, _) = post(server, &json!({"grammar": grammar, "max_tokens": 2}));
                    assert!([200, 400, 429].contains(&reply.status), "{}", reply.text);
                    if reply.status == 429 {
                        assert!(!reply.header("retry-after").is_empty(), "{:?}", reply.headers);
                    }
                }
            });
        }
        for _ in 0..5 {
            server.post("/tokenize", &json!({"content": "a b c"})).ok();
            server.post(CHAT, &ask("Go.", &json!({"max_tokens": 2}))).ok();
        }
    });
}

/// A list whose items each have a schema of their own, nested alternatives, and a grammar whose masks take long.
fn slow_masks() -> [Value; 3] {
    let item = |i: usize| json!({"type": "object", "properties": {format!("p{i}"): {"type": "string", "pattern": "[a-z]{1,20}"}}});
    let items: Vec<Value> = (0..400).map(item).collect();
    let alternatives = (0..12).fold(json!({"type": "string"}), |inner, i| {
        json!({"anyOf": [{"type": "array", "items": inner, "minItems": 1}, {"type": "object", "properties": {format!("q{i}"): {"type": "number"}}}]})
    });
    [
        schema(json!({"type": "array", "prefixItems": items, "items": false, "minItems": 400})),
        schema(alternatives),
        json!({"grammar": "root ::= ([a-z ,.]* [aeiou] [a-z ,.]{400})+"}),
    ]
}

/// Others get the texts that they get alone while the rows of such formats wait for their masks.
#[test]
fn others_go_on_while_masks_are_computed() {
    let server = TestServer::start();
    let (stop, followed) = (AtomicBool::new(false), [0; 3].map(AtomicUsize::new));
    std::thread::scope(|scope| {
        for (i, more) in slow_masks().into_iter().chain(slow_masks()).enumerate() {
            let (server, stop, followed) = (&server, &stop, &followed[i % 3]);
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    let (reply, _) = post(server, &json!({"max_tokens": 40}).merged(&more));
                    assert!([200, 400, 429].contains(&reply.status), "{}", reply.text);
                    followed.fetch_add(usize::from(reply.status == 200), Relaxed);
                }
            });
        }
        let alone = TestServer::start();
        for i in 0..10 {
            let more = json!({"max_tokens": 30, "temperature": 0, "seed": i});
            let chat = ask(&format!("Tell me about {i}."), &more);
            let content = |reply: Reply| reply.ok()["choices"][0]["message"]["content"].clone();
            assert_eq!(content(server.post(CHAT, &chat)), content(alone.post(CHAT, &chat)));
        }
        stop.store(true, Relaxed);
    });
    let followed = followed.map(AtomicUsize::into_inner);
    assert!(followed.iter().all(|&n| n > 0), "a format was never taken, and had no masks: {followed:?}");
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_format_is_compiled_once() {
    let server = TestServer::start();
    let more = schema(wide(500));
    let (first, compiled) = post(&server, &more);
    first.ok();
    let best = (0..5).map(|_| post(&server, &more).1).min().expect("a time");
    assert!(best < compiled, "again {best:?}, first {compiled:?}");
}

trait Merged {
    fn merged(&self, other: &Value) -> Value;
}

impl Merged for Value {
    fn merged(&self, other: &Value) -> Value {
        let mut all = self.as_object().cloned().unwrap_or_default();
        all.extend(other.as_object().cloned().unwrap_or_default());
        Value::Object(all)
    }
}
