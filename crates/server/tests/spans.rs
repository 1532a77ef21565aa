//! Spans over OTLP/HTTP: what a collector receives of a request.
//!
//! Method: a receiver that reads HTTP by itself and decodes bodies with OpenTelemetry's own types, beside the answers of the server.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod http;

use http::{PATIENCE, TestServer};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use realizar_server::Ended;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A collector: its address, and what it is sent.
fn collector() -> (String, Receiver<ExportTraceServiceRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            while let Some(body) = read_request(&stream) {
                let request = ExportTraceServiceRequest::decode(&body[..]).expect("protobuf");
                if sender.send(request).is_err() {
                    return;
                }
                (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").expect("a reader");
            }
        }
    });
    (url, receiver)
}

/// The body of the next request on a connection.
fn read_request(stream: &TcpStream) -> Option<Vec<u8>> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line).ok().filter(|&n| n > 0)?;
    assert!(line.starts_with("POST /v1/traces "), "{line}");
    while line.trim() != "" {
        line.clear();
        reader.read_line(&mut line).expect("a header");
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
        assert!(!lower.starts_with("content-type:") || lower.contains("application/x-protobuf"), "{line}");
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    Some(body)
}

/// All spans that were sent when the server has ended.
fn spans(server: TestServer, received: &Receiver<ExportTraceServiceRequest>) -> Vec<Span> {
    server.handle.stop();
    assert_eq!(server.join(), Ended::Drained);
    let mut spans = Vec::new();
    while let Ok(request) = received.recv_timeout(std::time::Duration::from_millis(300)) {
        for resource in request.resource_spans {
            let attributes = resource.resource.expect("a resource").attributes;
            assert!(attributes.iter().any(|a| a.key == "service.name"), "{attributes:?}");
            spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    }
    spans
}

fn attribute(span: &Span, key: &str) -> Value {
    let found = span.attributes.iter().find(|a| a.key == key).and_then(|a| a.value.clone()?.value);
    match found {
        None => Value::Null,
        Some(Any::StringValue(text)) => text.into(),
        Some(Any::IntValue(n)) => n.into(),
        Some(Any::DoubleValue(x)) => x.into(),
        Some(Any::ArrayValue(array)) => array
            .values
            .into_iter()
            .map(|value| match value.value {
                Some(Any::StringValue(text)) => Value::from(text),
                other => panic!("{other:?}"),
            })
            .collect(),
        other => panic!("{key}: {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn body(stream: bool) -> Value {
    json!({
        "messages": [{"role": "user", "content": "Tell me a story about a fox who went to the market."}],
        "max_tokens": 20, "temperature": 0.7, "seed": 1, "stream": stream,
        "stream_options": stream.then(|| json!({"include_usage": true})),
    })
}

/// Milliseconds of a span's child.
fn phase_ms(spans: &[Span], parent: &Span, name: &str) -> f64 {
    let found = spans.iter().find(|s| s.name == name && s.parent_span_id == parent.span_id).expect("a phase");
    assert_eq!(found.trace_id, parent.trace_id);
    assert!(
        found.start_time_unix_nano >= parent.start_time_unix_nano
            && found.end_time_unix_nano <= parent.end_time_unix_nano
    );
    (found.end_time_unix_nano - found.start_time_unix_nano) as f64 / 1e6
}

#[test]
fn a_span_is_a_child_of_the_router_s_and_has_the_numbers_of_the_answer() {
    let (url, received) = collector();
    let server = TestServer::with(|setup| setup.config.otlp = Some(url));
    let headers = [("traceparent", TRACEPARENT), ("x-request-id", "asked-1")];
    server.post_with("/v1/chat/completions", &headers, &body(false)).ok();
    let answer = server.post_with("/v1/chat/completions", &headers, &body(false)).ok();
    let (usage, timings) = (&answer["usage"], &answer["timings"]);
    let spans = spans(server, &received);
    let requests: Vec<&Span> = spans.iter().filter(|s| s.name == "chat demo").collect();
    assert_eq!(requests.len(), 2);
    let span = requests[1];
    assert_eq!(hex(&span.trace_id), TRACEPARENT[3..35]);
    assert_eq!(hex(&span.parent_span_id), TRACEPARENT[36..52]);
    for (key, expected) in [
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.provider.name", json!("realizar")),
        ("gen_ai.request.model", json!("demo")),
        ("gen_ai.request.id", json!("asked-1")),
        ("gen_ai.request.max_tokens", json!(20)),
        ("gen_ai.request.temperature", json!(0.7)),
        ("gen_ai.usage.input_tokens", usage["prompt_tokens"].clone()),
        ("gen_ai.usage.output_tokens", usage["completion_tokens"].clone()),
        ("gen_ai.usage.cache_read.input_tokens", usage["prompt_tokens_details"]["cached_tokens"].clone()),
        ("gen_ai.response.finish_reasons", json!([answer["choices"][0]["finish_reason"]])),
        ("http.route", json!("/v1/chat/completions")),
        ("http.response.status_code", json!(200)),
    ] {
        assert_eq!(attribute(span, key), expected, "{key}");
    }
    assert!(usage["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(0), "{usage}");
    for (phase, attribute_name, timing) in [
        ("queue", "gen_ai.latency.time_in_queue", "queue_ms"),
        ("prefill", "gen_ai.latency.time_in_model_prefill", "prefill_ms"),
        ("decode", "gen_ai.latency.time_in_model_decode", "decode_ms"),
    ] {
        let ms = timings[timing].as_f64().expect("a number");
        let seconds = attribute(span, attribute_name).as_f64().expect("a number");
        let close = |other: f64| (ms - other).abs() < 0.01;
        assert!(
            close(seconds * 1e3) && close(phase_ms(&spans, span, phase)),
            "{phase}: {ms} ms, {seconds} s"
        );
    }
}

#[test]
fn a_stream_s_span_lasts_until_its_end() {
    let (url, received) = collector();
    let server = TestServer::with(|setup| setup.config.otlp = Some(url));
    let events = server.events("/v1/chat/completions", &body(true));
    let usage = &events.last().expect("an event")["usage"];
    let spans = spans(server, &received);
    let span = spans.iter().find(|s| s.name == "chat demo").expect("a span");
    assert_eq!(hex(&span.parent_span_id), "", "nobody sent one");
    assert_eq!(attribute(span, "gen_ai.usage.output_tokens"), usage["completion_tokens"]);
    assert!(phase_ms(&spans, span, "decode") > 0.0);
}

#[test]
fn what_is_refused_or_not_sampled_or_a_probe_is_no_span_of_a_model() {
    let (url, received) = collector();
    let server = TestServer::with(|setup| setup.config.otlp = Some(url));
    assert_eq!(server.get("/health").status, 200);
    let unsampled = TRACEPARENT.replace("-01", "-00");
    server.post_with("/v1/chat/completions", &[("traceparent", &unsampled)], &body(false)).ok();
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "x", "model": "other"})).status, 404);
    let spans = spans(server, &received);
    assert_eq!(spans.len(), 1, "{spans:?}");
    assert_eq!(spans[0].name, "POST /v1/completions");
    assert_eq!(attribute(&spans[0], "http.response.status_code"), json!(404));
    assert_eq!(attribute(&spans[0], "gen_ai.usage.input_tokens"), Value::Null);
}

#[test]
fn a_collector_that_is_not_there_costs_no_answer() {
    // A port that nobody listens at.
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let server = TestServer::with(|setup| setup.config.otlp = Some(format!("http://127.0.0.1:{port}")));
    let start = std::time::Instant::now();
    assert_eq!(server.post("/v1/chat/completions", &body(false)).status, 200);
    drop(server);
    assert!(start.elapsed() < PATIENCE);
}
