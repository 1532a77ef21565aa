//! Streamed answers of models that must be loaded first: comment lines keep the client waiting.

use crate::access::Access;
use crate::app::App;
use crate::error::{ApiError, Result};
use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Interval, interval};
use tracing::Instrument;

/// Between two comment lines.
const PROGRESS: Duration = Duration::from_secs(5);

/// What `answer` says. If it is a stream of server-sent events, and the model must be loaded before it can begin, the stream begins at
/// once with comment lines; then an error is an event, as `word` writes it.
///
/// Errors: as of `answer`, where nothing was sent before.
pub(crate) async fn answer(
    app: &App,
    asked: Option<&str>,
    streams: bool,
    word: fn(&ApiError) -> String,
    answer: impl Future<Output = Result<Response>> + Send + 'static,
) -> Result<Response> {
    if !streams || !app.models.must_load(asked) {
        return answer.await;
    }
    let access = Access::current();
    let answer = Box::pin(
        async {
            match access {
                Some(access) => access.scope(answer).await,
                None => answer.await,
            }
        }
        .in_current_span(),
    );
    let body = Loading { answer, word, ticks: interval(PROGRESS), state: State::Waits };
    let mut response = Body::from_stream(body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

/// Comment lines, then the answer's own bytes. Dropping it cancels the answer.
struct Loading<F> {
    answer: Pin<Box<F>>,
    word: fn(&ApiError) -> String,
    ticks: Interval,
    state: State,
}

enum State {
    /// The answer has not begun.
    Waits,
    Runs(BodyDataStream),
    Ended,
}

impl<F: Future<Output = Result<Response>>> Stream for Loading<F> {
    type Item = std::result::Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                State::Ended => return Poll::Ready(None),
                State::Runs(body) => return Pin::new(body).poll_next(cx),
                State::Waits => match this.answer.as_mut().poll(cx) {
                    Poll::Ready(Ok(response)) => {
                        this.state = State::Runs(response.into_body().into_data_stream())
                    }
                    Poll::Ready(Err(error)) => {
                        this.state = State::Ended;
                        return Poll::Ready(Some(Ok((this.word)(&error).into())));
                    }
                    Poll::Pending => {
                        ready!(this.ticks.poll_tick(cx));
                        return Poll::Ready(Some(Ok(": loading the model\n\n".into())));
                    }
                },
            }
        }
    }
}
