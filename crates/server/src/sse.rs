//! Answers to generations: whole, or as server-sent events.

use crate::error::Result;
use crate::generation::Generation;
use crate::openai::{Answer, Chunk, PromptReport, StreamOptions, Timings};
use axum::Json;
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

/// How one endpoint words what a generation delivers. A whole answer is its pieces put together.
pub(crate) trait Shape: Send + Unpin + 'static {
    /// News about a choice.
    type Piece: Serialize + Send + Unpin;
    /// A whole choice.
    type Choice: Serialize;

    /// What `object` says of a piece.
    const CHUNK: &'static str;
    /// What `object` says of a whole answer.
    const WHOLE: &'static str;

    /// What comes before anything is generated.
    fn begin(&mut self, choice: usize, out: &mut Vec<Self::Piece>);

    /// Words an event of a choice; events of a prompt are passed for each of its choices.
    ///
    /// Errors: the answer cannot be what was asked for.
    fn take(&mut self, choice: usize, event: &TextEvent, out: &mut Vec<Self::Piece>) -> Result<()>;

    /// What the answer reports about its prompt, once for all choices; asked for once, before the first piece of a stream and after the
    /// last event otherwise.
    fn report(&mut self) -> PromptReport {
        PromptReport::default()
    }

    /// Puts the pieces of all choices together.
    fn put_together(self, n_choices: usize, pieces: Vec<Self::Piece>) -> Vec<Self::Choice>;
}

/// What all pieces of an answer say.
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
}

/// Answers as the request wants it.
pub(crate) async fn answer<S: Shape>(
    streaming: Option<StreamOptions>,
    generation: Generation,
    shape: S,
    head: Head,
) -> Result<Response> {
    match streaming {
        None => whole(generation, shape, head).await,
        Some(options) => {
            let with_usage = options.include_usage.unwrap_or(false);
            let ready = VecDeque::new();
            let report = PromptReport::default();
            let events = Events { generation, shape, head, with_usage, state: State::Begins, ready, report };
            let mut response =
                Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
            // Proxies that collect answers would hold back the stream.
            let header = HeaderName::from_static("x-accel-buffering");
            response.headers_mut().insert(header, HeaderValue::from_static("no"));
            Ok(response)
        }
    }
}

async fn whole<S: Shape>(mut generation: Generation, mut shape: S, head: Head) -> Result<Response> {
    let (n_choices, mut pieces) = (generation.n_choices(), Vec::new());
    (0..n_choices).for_each(|choice| shape.begin(choice, &mut pieces));
    while let Some(event) = generation.next().await {
        let (prompt, event) = event?;
        for choice in choices(&generation, prompt, &event) {
            shape.take(choice, &event, &mut pieces)?;
        }
    }
    let Head { id, created, model } = head;
    let prompt = shape.report();
    Ok(Json(Answer {
        id,
        object: S::WHOLE,
        created,
        model,
        choices: shape.put_together(n_choices, pieces),
        usage: generation.totals().usage(),
        timings: generation.totals().timings(),
        prompt,
    })
    .into_response())
}

/// The choices that an event is about.
fn choices(generation: &Generation, prompt: usize, event: &TextEvent) -> std::ops::Range<usize> {
    match event {
        TextEvent::Prompt(_) => generation.index(prompt, 0)..generation.index(prompt + 1, 0),
        TextEvent::Delta { choice, .. } | TextEvent::Finished { choice, .. } => {
            let index = generation.index(prompt, *choice);
            index..index + 1
        }
    }
}

/// The events of a streamed answer.
struct Events<S: Shape> {
    generation: Generation,
    shape: S,
    head: Head,
    with_usage: bool,
    state: State,
    ready: VecDeque<Event>,
    /// For the next piece.
    report: PromptReport,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Begins,
    Runs,
    Ended,
}

impl<S: Shape> Stream for Events<S> {
    type Item = std::result::Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(event) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            match this.state {
                State::Ended => return Poll::Ready(None),
                State::Begins => {
                    let mut pieces = Vec::new();
                    (0..this.generation.n_choices()).for_each(|c| this.shape.begin(c, &mut pieces));
                    this.report = this.shape.report();
                    this.push(pieces, None);
                    this.state = State::Runs;
                }
                State::Runs => match this.generation.poll_next(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(event)) => {
                        if let Err(error) = event.and_then(|(prompt, event)| this.take(prompt, &event)) {
                            tracing::warn!(message = error.message, "stream broken off");
                            this.send(&error.body());
                            this.end();
                        }
                    }
                    Poll::Ready(None) => {
                        if this.with_usage {
                            let totals = this.generation.totals();
                            let (usage, timings) = (totals.usage(), totals.timings());
                            let chunk =
                                Chunk { usage: Some(Some(usage)), ..this.chunk(vec![], Some(timings)) };
                            this.send(&chunk);
                        }
                        this.end();
                    }
                },
            }
        }
    }
}

impl<S: Shape> Events<S> {
    fn take(&mut self, prompt: usize, event: &TextEvent) -> Result<()> {
        let mut pieces = Vec::new();
        for choice in choices(&self.generation, prompt, event) {
            self.shape.take(choice, event, &mut pieces)?;
        }
        let timings = match event {
            TextEvent::Finished { usage, timings, .. } => {
                Some(Timings::new(*timings, usage.completion_tokens))
            }
            _ => None,
        };
        self.push(pieces, timings);
        Ok(())
    }

    /// One event per piece; the last carries the timings.
    fn push(&mut self, pieces: Vec<S::Piece>, mut timings: Option<Timings>) {
        let n = pieces.len();
        for (i, piece) in pieces.into_iter().enumerate() {
            let timings = if i + 1 == n { timings.take() } else { None };
            let chunk = self.chunk(vec![piece], timings);
            self.send(&chunk);
        }
    }

    fn chunk(&mut self, choices: Vec<S::Piece>, timings: Option<Timings>) -> Chunk<S::Piece> {
        let Head { id, created, model } = &self.head;
        let usage = self.with_usage.then_some(None);
        Chunk {
            id: id.clone(),
            object: S::CHUNK,
            created: *created,
            model: model.clone(),
            choices,
            usage,
            timings,
            prompt: std::mem::take(&mut self.report),
        }
    }

    fn send(&mut self, data: &impl Serialize) {
        match Event::default().json_data(data) {
            Ok(event) => self.ready.push_back(event),
            Err(error) => tracing::error!(%error, "could not write an event"),
        }
    }

    fn end(&mut self) {
        self.ready.push_back(Event::default().data("[DONE]"));
        self.state = State::Ended;
    }
}
