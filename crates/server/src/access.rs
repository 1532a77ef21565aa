//! The access log: a line for each request when its answer has ended, with nothing of what was asked and answered.

use crate::spans::RequestSpan;
use axum::http::{Method, StatusCode};
use realizar_engine::Usage;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What probes and scrapers ask for all the time.
const PROBES: [&str; 3] = ["/health", "/ready", "/metrics"];

tokio::task_local! {
    static CURRENT: Arc<Access>;
}

/// The other side of a request's connection, among its extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// What is recorded of a request. The last one who has it, be it the answer or what generates it, ends the request and so writes the line.
pub(crate) struct Access {
    method: Method,
    /// Without the query.
    path: String,
    id: String,
    client: Option<SocketAddr>,
    /// The request's span, if spans are collected.
    pub(crate) span: Option<Arc<RequestSpan>>,
    start: Instant,
    end: Mutex<End>,
}

#[derive(Default)]
struct End {
    /// `None`: the client left before.
    status: Option<StatusCode>,
    tokens: Option<Usage>,
}

impl Access {
    pub(crate) fn new(
        method: Method,
        path: &str,
        id: &str,
        client: Option<SocketAddr>,
        span: Option<Arc<RequestSpan>>,
    ) -> Arc<Self> {
        let (path, id) = (path.to_owned(), id.to_owned());
        Arc::new(Self { method, path, id, client, span, start: Instant::now(), end: Mutex::default() })
    }

    /// The request that this task answers.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Answers the request.
    pub(crate) async fn scope<T>(self: Arc<Self>, answer: impl Future<Output = T>) -> T {
        CURRENT.scope(self, answer).await
    }

    /// Notes how the request was answered; the answer may still be on its way.
    pub(crate) fn answered(&self, status: StatusCode) {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).status = Some(status);
        if let Some(span) = &self.span {
            span.answered(status);
        }
    }

    /// Adds tokens that the request read or generated.
    pub(crate) fn used(&self, tokens: Usage) {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = end.tokens.get_or_insert_default();
        sum.prompt_tokens += tokens.prompt_tokens;
        sum.completion_tokens += tokens.completion_tokens;
        sum.cached_tokens += tokens.cached_tokens;
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        let Self { method, path, id, client, start, end, .. } = self;
        let End { status, tokens } = end.get_mut().unwrap_or_else(PoisonError::into_inner);
        let ms = start.elapsed().as_millis() as u64;
        let client = client.map(tracing::field::display);
        let (prompt, cached, generated) = match tokens {
            Some(t) => (Some(t.prompt_tokens), Some(t.cached_tokens), Some(t.completion_tokens)),
            None => (None, None, None),
        };
        macro_rules! log {
            ($level:ident, $message:literal) => {
                tracing::$level!(
                    parent: None,
                    %method, path, status = status.map(|s| s.as_u16()), ms, prompt_tokens = prompt,
                    cached_tokens = cached, tokens = generated, id, client, $message
                )
            };
        }
        match status {
            None => log!(info, "the client left"),
            // What is not offered is nobody's failure.
            Some(s) if s.is_server_error() && *s != StatusCode::NOT_IMPLEMENTED => log!(warn, "answered"),
            Some(_) if PROBES.contains(&&**path) => log!(debug, "answered"),
            Some(_) => log!(info, "answered"),
        }
    }
}
