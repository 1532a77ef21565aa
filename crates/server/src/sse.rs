//! Streamed answers: what a generation delivers, in the words of an API, as server-sent events or in any other form.

use crate::error::{ApiError, Result};
use crate::generation::Generation;
use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use realizar_engine::TextEvent;
use serde::Serialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// How often a stream without news shows that it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How an API words what a generation delivers, as pieces that are sent one by one.
pub(crate) trait Wording: Send + Unpin + 'static {
    /// What is sent at once.
    type Piece: Send + Unpin + 'static;

    /// What comes before anything is generated.
    fn begin(&mut self, generation: &Generation, out: &mut Vec<Self::Piece>);

    /// An event of the prompt of this number.
    ///
    /// Errors: the answer cannot be what was asked for.
    fn take(
        &mut self,
        generation: &Generation,
        prompt: usize,
        event: &TextEvent,
        out: &mut Vec<Self::Piece>,
    ) -> Result<()>;

    /// What comes after the last event.
    fn end(&mut self, generation: &Generation, out: &mut Vec<Self::Piece>);

    /// What comes last if the answer breaks off.
    fn fail(&mut self, error: &ApiError, out: &mut Vec<Self::Piece>);
}

/// Lets a wording take all events of a generation, and drops the pieces: for answers that are sent whole.
///
/// Errors: as the generation's, and the wording's.
pub(crate) async fn take_all<W: Wording>(generation: &mut Generation, wording: &mut W) -> Result<()> {
    let mut pieces = Vec::new();
    wording.begin(generation, &mut pieces);
    while let Some(event) = generation.next().await {
        let (prompt, event) = event?;
        wording.take(generation, prompt, &event, &mut pieces)?;
        pieces.clear();
    }
    wording.end(generation, &mut pieces);
    Ok(())
}

/// The pieces of an answer as a stream of server-sent events. `keep_alive`: sent when there is no news for a while.
pub(crate) fn respond<W: Wording<Piece = Event>>(
    generation: Generation,
    wording: W,
    keep_alive: Option<Event>,
) -> Response {
    let interval = KeepAlive::new().interval(KEEP_ALIVE);
    let keep_alive = match keep_alive {
        Some(event) => interval.event(event),
        None => interval,
    };
    let mut response = Sse::new(Pieces::new(generation, wording)).keep_alive(keep_alive).into_response();
    // Proxies that collect answers would hold back the stream.
    let header = HeaderName::from_static("x-accel-buffering");
    response.headers_mut().insert(header, HeaderValue::from_static("no"));
    response
}

/// An event with data as JSON.
pub(crate) fn json_event(data: &impl Serialize) -> Event {
    with_json(Event::default(), data)
}

/// An event with a name, which comes first, and data as JSON.
pub(crate) fn named_event(name: &str, data: &impl Serialize) -> Event {
    with_json(Event::default().event(name), data)
}

fn with_json(event: Event, data: &impl Serialize) -> Event {
    // The wire types have no maps with keys that are not texts, nothing else fails.
    event.json_data(data).unwrap_or_else(|error| {
        tracing::error!(%error, "could not write an event");
        Event::default()
    })
}

/// The pieces of a streamed answer. Dropping it cancels the generation.
pub(crate) struct Pieces<W: Wording> {
    generation: Generation,
    wording: W,
    state: State,
    ready: VecDeque<W::Piece>,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Begins,
    Runs,
    Ended,
}

impl<W: Wording> Pieces<W> {
    pub(crate) fn new(generation: Generation, wording: W) -> Self {
        Self { generation, wording, state: State::Begins, ready: VecDeque::new() }
    }

    fn take(&mut self, prompt: usize, event: &TextEvent, out: &mut Vec<W::Piece>) -> Result<()> {
        self.wording.take(&self.generation, prompt, event, out)
    }
}

impl<W: Wording> Stream for Pieces<W> {
    type Item = std::result::Result<W::Piece, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(piece) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(piece)));
            }
            let mut pieces = Vec::new();
            match this.state {
                State::Ended => return Poll::Ready(None),
                State::Begins => {
                    this.wording.begin(&this.generation, &mut pieces);
                    this.state = State::Runs;
                }
                State::Runs => match this.generation.poll_next(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(event)) => {
                        let taken = event.and_then(|(prompt, event)| this.take(prompt, &event, &mut pieces));
                        if let Err(error) = taken {
                            tracing::warn!(message = error.message, "stream broken off");
                            this.wording.fail(&error, &mut pieces);
                            this.state = State::Ended;
                        }
                    }
                    Poll::Ready(None) => {
                        this.wording.end(&this.generation, &mut pieces);
                        this.state = State::Ended;
                    }
                },
            }
            this.ready.extend(pieces);
        }
    }
}
