//! Spans of requests, sent to a collector over OTLP/HTTP.
//!
//! A request that comes with a `traceparent` (W3C Trace Context), as routers send it, becomes a child of that span; one that says that it is
//! not sampled yields none. Names of attributes follow OpenTelemetry's conventions for generative AI, and vLLM's where these have none.

use crate::generation::Plan;
use crate::models::Lease;
use crate::totals::Totals;
use axum::http::{HeaderMap, StatusCode};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Span, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use realizar_engine::FinishReason;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// Where collectors take spans, behind an address without a path.
const PATH: &str = "/v1/traces";
/// How long a collector may take for what it is sent.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the end of the server waits for the last spans to be sent.
const LAST_SPANS: Duration = Duration::from_secs(5);

/// Makes spans and sends them.
pub(crate) struct Spans {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    router: TraceContextPropagator,
}

impl Spans {
    /// Sends spans to a collector from a thread of its own.
    ///
    /// Errors: what is wrong with the address.
    pub(crate) fn new(url: &str) -> Result<Self, String> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new())
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(TIMEOUT)
            .with_endpoint(endpoint(url)?)
            .build()
            .map_err(|error| error.to_string())?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_service_name("realizar").with_attribute(version).build();
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        let tracer = provider.tracer("realizar");
        Ok(Self { provider, tracer, router: TraceContextPropagator::new() })
    }

    /// Begins the span of a request.
    pub(crate) fn begin(&self, headers: &HeaderMap, method: &str, route: &str, id: &str) -> Arc<RequestSpan> {
        let parent = self.router.extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let span = self
            .tracer
            .span_builder(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("http.request.method", method.to_owned()),
                KeyValue::new("http.route", route.to_owned()),
                KeyValue::new("gen_ai.request.id", id.to_owned()),
            ])
            .start_with_context(&self.tracer, &parent);
        let is_chat = ["chat", "messages", "responses"].iter().any(|part| route.contains(part));
        let operation = if is_chat { "chat" } else { "text_completion" };
        Arc::new(RequestSpan { context: parent.with_span(span), tracer: self.tracer.clone(), operation })
    }

    /// Sends what is left.
    pub(crate) fn end(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(LAST_SPANS) {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// Where spans are sent: the address, with the usual path if it has none.
fn endpoint(url: &str) -> Result<String, String> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    match rest.map(|rest| rest.trim_end_matches('/')) {
        None | Some("") => Err("expected an address such as http://localhost:4318".to_owned()),
        Some(rest) if rest.contains('/') => Ok(url.to_owned()),
        Some(_) => Ok(format!("{}{PATH}", url.trim_end_matches('/'))),
    }
}

/// The span of a request, which ends when the last one who has it is done: the answer, and what generates it.
pub(crate) struct RequestSpan {
    /// Where the span is the current one.
    context: Context,
    tracer: SdkTracer,
    /// What the request asks for, if it asks a model.
    operation: &'static str,
}

impl RequestSpan {
    /// Notes how the request was answered; the answer may still be on its way.
    pub(crate) fn answered(&self, status: StatusCode) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        if status.is_server_error() {
            span.set_attribute(KeyValue::new("error.type", status.as_str().to_owned()));
            span.set_status(Status::error(""));
        }
    }

    /// Notes what was asked of which model.
    pub(crate) fn asked(&self, plan: &Plan, lease: &Lease) {
        let span = self.context.span();
        if !span.is_recording() {
            return;
        }
        span.update_name(format!("{} {}", self.operation, lease.name));
        span.set_attributes([
            KeyValue::new("gen_ai.operation.name", self.operation),
            KeyValue::new("gen_ai.provider.name", "realizar"),
            KeyValue::new("gen_ai.request.model", lease.name.clone()),
            KeyValue::new("gen_ai.response.model", lease.model.name().to_owned()),
            KeyValue::new("gen_ai.request.temperature", decimal(plan.sampling.temperature)),
            KeyValue::new("gen_ai.request.top_p", decimal(plan.sampling.top_p)),
            KeyValue::new("gen_ai.request.choice.count", i64::from(plan.n)),
        ]);
        if let Some(n) = plan.max_tokens {
            span.set_attribute(KeyValue::new("gen_ai.request.max_tokens", n as i64));
        }
    }

    /// Notes what was generated, with a span for each phase. `start`: when the engine was asked.
    pub(crate) fn generated(&self, totals: &Totals, reasons: &[FinishReason], start: SystemTime) {
        let span = self.context.span();
        if !span.is_recording() {
            return;
        }
        let reasons: Vec<StringValue> = reasons.iter().map(|reason| word(*reason).into()).collect();
        span.set_attribute(KeyValue::new(
            "gen_ai.response.finish_reasons",
            Value::Array(Array::String(reasons)),
        ));
        let Some(timings) = totals.finished() else { return };
        let usage = totals.usage();
        for (name, n) in [
            ("gen_ai.usage.input_tokens", usage.prompt_tokens),
            ("gen_ai.usage.output_tokens", usage.completion_tokens),
            ("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens),
        ] {
            span.set_attribute(KeyValue::new(name, n as i64));
        }
        for (name, time) in [
            ("gen_ai.latency.time_in_queue", timings.queue),
            ("gen_ai.latency.time_in_model_prefill", timings.prefill),
            ("gen_ai.latency.time_to_first_token", timings.first_token),
            ("gen_ai.latency.time_in_model_decode", timings.decode),
        ] {
            span.set_attribute(KeyValue::new(name, time.as_secs_f64()));
        }
        let mut begin = start;
        for (name, time) in
            [("queue", timings.queue), ("prefill", timings.prefill), ("decode", timings.decode)]
        {
            let phase = self.tracer.span_builder(name).with_start_time(begin);
            begin += time;
            phase.start_with_context(&self.tracer, &self.context).end_with_timestamp(begin);
        }
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        self.context.span().end();
    }
}

/// A number as a request writes it, without the digits that a float adds.
fn decimal(number: f32) -> f64 {
    (f64::from(number) * 1e6).round() / 1e6
}

fn word(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop { .. } => "stop",
        FinishReason::Length => "length",
        FinishReason::Cancelled => "cancelled",
    }
}

/// Sends to the collector, from the thread of the exporter.
#[derive(Debug)]
struct Collector {
    agent: ureq::Agent,
    /// Whether the last attempt failed, so that a run of failures is logged once.
    is_failing: AtomicBool,
}

impl Collector {
    fn new() -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false);
        Self { agent: config.build().into(), is_failing: AtomicBool::new(false) }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (head, body) = request.into_parts();
        let answer = self.agent.run(Request::from_parts(head, &body[..]))?;
        let (head, mut body) = answer.into_parts();
        Ok(Response::from_parts(head, body.read_to_vec()?.into()))
    }
}

#[async_trait::async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let url = request.uri().to_string();
        let sent = self.send(request);
        let error = match &sent {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("status {}", answer.status())),
            Err(error) => Some(error.to_string()),
        };
        match (&error, self.is_failing.swap(error.is_some(), Relaxed)) {
            (Some(error), false) => tracing::warn!(url, error, "spans cannot be sent; trying on"),
            (None, true) => tracing::info!(url, "spans are sent again"),
            _ => {}
        }
        Ok(sent?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_path_stands_behind_an_address_without_one() {
        for (url, expected) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces"),
            ("https://collector/", "https://collector/v1/traces"),
            ("http://collector/otlp/traces", "http://collector/otlp/traces"),
        ] {
            assert_eq!(endpoint(url).as_deref(), Ok(expected));
        }
        for wrong in ["", "localhost:4318", "http://", "grpc://collector"] {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
    }
}
