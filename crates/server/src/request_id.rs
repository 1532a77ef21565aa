//! A number and a span for each request.

use crate::access::{Access, Peer};
use crate::app::App;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;
use tracing::Instrument;

const HEADER: &str = "x-request-id";
const MAX_LEN: usize = 128;

/// A request's id, among its extensions.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) HeaderValue);

/// Gives each request an id, the client's own if it has a sensible one; the answer and the logs carry it.
pub(crate) async fn trace(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let given = request.headers().get(HEADER).filter(|v| is_sensible(v.as_bytes())).cloned();
    let id = match given {
        Some(id) => id,
        None => HeaderValue::try_from(app.new_id("req-")).unwrap_or(HeaderValue::from_static("req-0")),
    };
    let route = request.extensions().get::<MatchedPath>().map_or("none", |path| path.as_str()).to_owned();
    let span =
        tracing::info_span!("request", id = id.to_str().unwrap_or(""), method = %request.method(), route);
    // Probes and scrapers ask with GET all the time.
    let collected = app.spans.as_ref().filter(|_| request.method() == Method::POST);
    let traced = collected
        .map(|spans| spans.begin(request.headers(), "POST", &route, id.to_str().unwrap_or_default()));
    let client = request.extensions().get::<Peer>().map(|Peer(address)| *address);
    let (method, path) = (request.method().clone(), request.uri().path());
    let access = Access::new(method, path, id.to_str().unwrap_or_default(), client, traced);
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = access.clone().scope(next.run(request).instrument(span)).await;
    access.answered(response.status());
    response.headers_mut().insert(HEADER, id);
    response
}

fn is_sensible(id: &[u8]) -> bool {
    (1..=MAX_LEN).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}
