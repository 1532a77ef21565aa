//! A request of Python's that is under way or done.

use crate::blocking::block_on;
use crate::error::of_request;
use crate::forked::Owned;
use pyo3::prelude::*;
use realizar::{Completion, FinishReason, GenerateError, TextEvent, TextStream, TokenInfo};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

/// What a model generates for one prompt. Dropping it cancels the request.
#[pyclass(frozen, module = "realizar._native")]
pub(crate) struct Answer {
    /// Locked only without the interpreter's lock, which a thread that waits for the model takes again.
    growing: Owned<Mutex<Growing>>,
}

struct Growing {
    /// `None` after the end.
    stream: Option<TextStream>,
    /// What there is of it.
    completion: Completion,
}

impl Answer {
    pub(crate) fn new(stream: TextStream) -> Self {
        let growing = Growing { stream: Some(stream), completion: Completion::empty() };
        Self { growing: Owned::new(Mutex::new(growing)) }
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, Growing>> {
        Ok(self.growing.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The next piece of text that is not empty; `None` after the last.
    fn poll_text(&self, cx: &mut Context<'_>) -> Poll<PyResult<Option<String>>> {
        self.lock()?.poll_text(cx).map_err(|error| of_request(&error))
    }
}

#[pymethods]
impl Answer {
    /// The next piece of text, waiting for it; `None` after the last.
    fn next(&self, py: Python<'_>) -> PyResult<Option<String>> {
        block_on(py, |cx| self.poll_text(cx)).flatten()
    }

    /// Cancels the request if it is still under way.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            let mut growing = self.lock()?;
            if growing.stream.take().is_some() {
                growing.completion.reason = FinishReason::Cancelled;
            }
            Ok(())
        })
    }

    /// What was generated; `None` while the request is under way.
    fn completion(&self, py: Python<'_>) -> PyResult<Option<Finished>> {
        py.detach(|| {
            let growing = self.lock()?;
            Ok(growing.stream.is_none().then(|| Finished::from(&growing.completion)))
        })
    }
}

/// Waits until all requests are done, or one fails.
#[pyfunction]
pub(crate) fn wait(py: Python<'_>, answers: Vec<Py<Answer>>) -> PyResult<()> {
    let mut waiting: Vec<&Answer> = answers.iter().map(Py::get).collect();
    block_on(py, |cx| {
        let mut failed = None;
        waiting.retain(|answer| {
            loop {
                match answer.poll_text(cx) {
                    Poll::Pending => return true,
                    Poll::Ready(Ok(Some(_))) => {}
                    Poll::Ready(Ok(None)) => return false,
                    Poll::Ready(Err(error)) => {
                        failed.get_or_insert(error);
                        return false;
                    }
                }
            }
        });
        match failed {
            Some(error) => Poll::Ready(Err(error)),
            None if waiting.is_empty() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    })
    .flatten()
}

impl Growing {
    fn poll_text(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<String>, GenerateError>> {
        while let Some(stream) = &mut self.stream {
            // The last event is the one of the end, unless the engine ends.
            let event = ready!(stream.poll_next(cx)).unwrap_or(Err(GenerateError::ShuttingDown));
            match event {
                Ok(TextEvent::Prompt(_)) => {}
                Ok(TextEvent::Delta { text, token, .. }) => {
                    self.completion.text += &text;
                    self.completion.tokens.extend(token);
                    if !text.is_empty() {
                        return Poll::Ready(Ok(Some(text)));
                    }
                }
                Ok(TextEvent::Finished { reason, stop, usage, timings, .. }) => {
                    let Completion { text, tokens, .. } =
                        std::mem::replace(&mut self.completion, Completion::empty());
                    self.completion = Completion { text, tokens, reason, stop, usage, timings };
                    self.stream = None;
                }
                Err(error) => {
                    self.completion.reason = FinishReason::Cancelled;
                    self.stream = None;
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(Ok(None))
    }
}

/// Tokens and their log-probabilities, likeliest first.
type Likeliest = Vec<(u32, f32)>;

/// A completion as Python takes it: a dict with these keys.
#[derive(IntoPyObject)]
struct Finished {
    text: String,
    tokens: Vec<u32>,
    finish_reason: &'static str,
    stop: Option<String>,
    /// Of each token: its log-probability, and the likeliest tokens with theirs.
    logprobs: Option<Vec<(f32, Likeliest)>>,
    prompt_tokens: usize,
    cached_tokens: usize,
}

impl From<&Completion> for Finished {
    fn from(completion: &Completion) -> Self {
        let Completion { text, tokens, reason, stop, usage, .. } = completion;
        let logprobs = |token: &TokenInfo| Some((token.logprob?, token.top_logprobs.clone()));
        Self {
            text: text.clone(),
            tokens: tokens.iter().map(|token| token.id).collect(),
            finish_reason: match reason {
                FinishReason::Stop { .. } => "stop",
                FinishReason::Length => "length",
                FinishReason::Cancelled => "cancelled",
            },
            stop: stop.clone(),
            logprobs: tokens.iter().map(logprobs).collect(),
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
        }
    }
}
