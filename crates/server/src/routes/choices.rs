//! Answers that consist of choices: those of `/v1/chat/completions` and `/v1/completions`, whole or as chunks.

use crate::error::{ApiError, Result};
use crate::generation::Generation;
use crate::openai::{Answer, Chunk, PromptReport, StreamOptions, Timings, Usage};
use crate::sse::{self, Wording, json_event};
use axum::Json;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use realizar_engine::TextEvent;
use serde::Serialize;

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
            let chunks = Chunks { shape, head, with_usage, report: PromptReport::default() };
            Ok(sse::respond(generation, chunks, None))
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
        usage: Usage::from(generation.totals()),
        timings: Timings::from(generation.totals()),
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

/// Words a streamed answer.
struct Chunks<S: Shape> {
    shape: S,
    head: Head,
    with_usage: bool,
    /// For the next piece.
    report: PromptReport,
}

impl<S: Shape> Wording for Chunks<S> {
    type Piece = Event;

    fn begin(&mut self, generation: &Generation, out: &mut Vec<Event>) {
        let mut pieces = Vec::new();
        (0..generation.n_choices()).for_each(|c| self.shape.begin(c, &mut pieces));
        self.report = self.shape.report();
        self.push(pieces, None, out);
    }

    fn take(
        &mut self,
        generation: &Generation,
        prompt: usize,
        event: &TextEvent,
        out: &mut Vec<Event>,
    ) -> Result<()> {
        let mut pieces = Vec::new();
        for choice in choices(generation, prompt, event) {
            self.shape.take(choice, event, &mut pieces)?;
        }
        let timings = match event {
            TextEvent::Finished { usage, timings, .. } => {
                Some(Timings::new(*timings, usage.completion_tokens))
            }
            _ => None,
        };
        self.push(pieces, timings, out);
        Ok(())
    }

    fn end(&mut self, generation: &Generation, out: &mut Vec<Event>) {
        if self.with_usage {
            let totals = generation.totals();
            let chunk = self.chunk(vec![], Some(Timings::from(totals)));
            out.push(json_event(&Chunk { usage: Some(Some(Usage::from(totals))), ..chunk }));
        }
        out.push(done());
    }

    fn fail(&mut self, error: &ApiError, out: &mut Vec<Event>) {
        out.extend([json_event(&error.body()), done()]);
    }
}

/// The end of a stream that has not begun for this reason.
pub(crate) fn error_events(error: &ApiError) -> String {
    let body = serde_json::to_string(&error.body()).unwrap_or_default();
    format!("data: {body}\n\ndata: [DONE]\n\n")
}

fn done() -> Event {
    Event::default().data("[DONE]")
}

impl<S: Shape> Chunks<S> {
    /// One event per piece; the last carries the timings.
    fn push(&mut self, pieces: Vec<S::Piece>, mut timings: Option<Timings>, out: &mut Vec<Event>) {
        let n = pieces.len();
        for (i, piece) in pieces.into_iter().enumerate() {
            let timings = if i + 1 == n { timings.take() } else { None };
            out.push(json_event(&self.chunk(vec![piece], timings)));
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
}
