//! One HTTP request in the engine: the continuations of each of its prompts, as one stream of events.

use crate::auth::Caller;
use crate::error::{ApiError, Result};
use crate::models::{Lease, Model};
use crate::totals::Totals;
use realizar_engine::{
    Constraint, Error as EngineError, FinishReason, SamplingParams, StopStrings, TextEvent, TextParams,
    TextStream,
};
use realizar_structured::{Before, Format, GrammarError};
use std::task::{Context, Poll};
use std::time::SystemTime;

/// Stop strings of a request at most.
const MAX_STOPS: usize = 64;
/// Bytes of a request's stop strings together at most.
const MAX_STOP_BYTES: usize = 64 << 10;

/// Stop strings, checked. `field`: the one that has them.
///
/// Errors: an empty one; too many.
pub(crate) fn stop_strings(field: &'static str, stops: &[String]) -> Result<StopStrings> {
    if stops.iter().any(String::is_empty) {
        return Err(ApiError::from(EngineError::EmptyStop).param(field));
    }
    if stops.len() > MAX_STOPS {
        let message = format!("there are {} stop strings but at most {MAX_STOPS} are taken", stops.len());
        return Err(ApiError::invalid_param(field, message));
    }
    let n_bytes: usize = stops.iter().map(String::len).sum();
    if n_bytes > MAX_STOP_BYTES {
        let message = format!("the stop strings have {n_bytes} bytes but at most {MAX_STOP_BYTES} are taken");
        return Err(ApiError::invalid_param(field, message));
    }
    StopStrings::new(stops).map_err(|error| ApiError::from(error).param(field))
}

/// What to generate from every prompt of a request; checked, but for what only the engine knows.
pub(crate) struct Plan {
    pub(crate) sampling: SamplingParams,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) n: u32,
    pub(crate) stops: StopStrings,
    pub(crate) include_stops: bool,
    /// Tokens that end the text, besides the model's own.
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) min_tokens: usize,
    /// Tokens of a longer prompt that are kept.
    pub(crate) kept_prompt_tokens: Option<usize>,
    pub(crate) return_token_ids: bool,
    pub(crate) ignore_eos: bool,
    /// The answer goes on with the prompt's text, as opposed to a turn of its own.
    pub(crate) continues_text: bool,
    pub(crate) speculate: Option<bool>,
    pub(crate) n_logprobs: Option<usize>,
    pub(crate) prompt_logprobs: Option<usize>,
    pub(crate) priority: i32,
    pub(crate) cache_salt: Option<u64>,
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    /// Control tokens that are part of the text.
    pub(crate) shown: Vec<u32>,
}

/// Work that gives a format.
type MakeFormat = Box<dyn FnOnce(&Model) -> std::result::Result<Format, GrammarError> + Send>;

/// What an answer must look like, before it is compiled.
pub(crate) struct Wanted {
    /// The same for the same format.
    pub(crate) key: String,
    /// The field of the request that says it.
    pub(crate) field: &'static str,
    /// What comes before the format holds.
    pub(crate) before: Before,
    /// The format; it may compute for a while.
    pub(crate) format: MakeFormat,
}

impl Wanted {
    /// A format that a field of the request has.
    pub(crate) fn format(format: Format, field: &'static str, before: Before) -> Self {
        let key = format!("{format:?}");
        Self { key, field, before, format: Box::new(move |_| Ok(format)) }
    }
}

impl Plan {
    /// One continuation as the model's defaults have it, to the end of the context.
    pub(crate) fn new(lease: &Lease, caller: Caller) -> Self {
        Self {
            sampling: lease.model.sampling.clone(),
            max_tokens: None,
            n: 1,
            stops: StopStrings::default(),
            include_stops: false,
            stop_tokens: Vec::new(),
            min_tokens: 0,
            kept_prompt_tokens: None,
            return_token_ids: false,
            ignore_eos: false,
            continues_text: false,
            speculate: None,
            n_logprobs: None,
            prompt_logprobs: None,
            priority: 0,
            cache_salt: lease.app.cache_salt(caller, None),
            constraint: None,
            shown: Vec::new(),
        }
    }

    /// Errors: a text that may not end, or rules on its tokens, where a format says what may follow and where the text ends.
    pub(crate) fn check_format(&self) -> Result<()> {
        if self.ignore_eos {
            let message = "ignore_eos cannot be combined with a format, which says where the text ends";
            return Err(ApiError::invalid_param("ignore_eos", message));
        }
        if self.constraint.is_some() {
            let field = if self.min_tokens > 0 { "min_tokens" } else { "allowed_token_ids" };
            let message =
                format!("{field} cannot be combined with a format, which says itself what may follow");
            return Err(ApiError::invalid_param(field, message));
        }
        Ok(())
    }

    /// Takes from the beginning of a prompt what the request does not want to keep; the token that begins every text stays.
    pub(crate) fn truncate(&self, lease: &Lease, prompt: &mut Vec<u32>) {
        let Some(n) = self.kept_prompt_tokens.filter(|&n| n < prompt.len()) else { return };
        let bos = lease.model.engine.tokenizer().bos().filter(|bos| prompt.first() == Some(bos));
        let n_first = usize::from(bos.is_some());
        prompt.drain(n_first..(prompt.len() - n + n_first).min(prompt.len()));
    }

    /// Hands all prompts to the engine, or none.
    ///
    /// Errors: as [`realizar_engine::TextEngine::submit`]; more continuations than may ever wait.
    pub(crate) fn submit(&self, lease: &Lease, prompts: Vec<Vec<u32>>) -> Result<Generation> {
        let (n_choices, room) =
            (prompts.len() * self.n as usize, lease.model.engine.client().config().max_queue);
        if n_choices > room {
            let message = format!("the request has {n_choices} continuations, and at most {room} may wait");
            return Err(ApiError::invalid_param("prompt", message));
        }
        if self.max_tokens.is_some_and(|n| n < self.min_tokens) {
            let message = format!("min_tokens is {}, which is more than max_tokens", self.min_tokens);
            return Err(ApiError::invalid_param("min_tokens", message));
        }
        let params = TextParams {
            max_tokens: self.max_tokens,
            sampling: self.sampling.clone(),
            stop: Vec::new(),
            ignore_eos: self.ignore_eos,
            speculate: self.speculate,
            n_logprobs: self.n_logprobs,
        };
        // Requests dropped on the way out are cancelled.
        let streams = prompts.into_iter().map(|prompt| {
            let mut request = lease.model.engine.request(prompt.clone(), &params);
            request.n = self.n;
            request.prompt_logprobs = self.prompt_logprobs;
            request.priority = self.priority;
            request.cache_salt = self.cache_salt;
            request.constraint = self.constraint.as_ref().map(|c| c.fork());
            // The request's own stop tokens hold in any case.
            if self.ignore_eos && !self.stop_tokens.is_empty() {
                (request.ignore_eos, request.stop_tokens) = (false, Vec::new());
            }
            request.stop_tokens.extend(&self.stop_tokens);
            let stream = lease.model.engine.submit_showing(request, &self.stops, &self.shown)?;
            let stream = stream.stopping_after(self.min_tokens);
            let stream = if self.continues_text { stream.continuing(&prompt) } else { stream };
            Ok(Some(if self.include_stops { stream.including_stops() } else { stream }))
        });
        let start = SystemTime::now();
        let streams = streams.collect::<Result<_>>()?;
        if let Some(span) = lease.access.as_ref().and_then(|access| access.span.as_ref()) {
            span.asked(self, lease);
        }
        let (totals, lease) = (Totals::default(), lease.clone());
        Ok(Generation { streams, n: self.n as usize, next: 0, totals, reasons: Vec::new(), start, lease })
    }
}

/// The continuations of a request. Dropping it cancels those that have not ended.
pub(crate) struct Generation {
    /// Per prompt, until all its continuations have ended.
    streams: Vec<Option<TextStream>>,
    n: usize,
    /// Whose turn it is to be asked first.
    next: usize,
    totals: Totals,
    /// Why continuations ended, and when they were asked for.
    reasons: Vec<FinishReason>,
    start: SystemTime,
    /// Keeps the model.
    lease: Lease,
}

impl Drop for Generation {
    fn drop(&mut self) {
        let Some(access) = &self.lease.access else { return };
        if self.totals.finished().is_some() {
            access.used(self.totals.usage());
        }
        if let Some(span) = &access.span {
            span.generated(&self.totals, &self.reasons, self.start);
        }
    }
}

impl Generation {
    /// Continuations of all prompts.
    pub(crate) fn n_choices(&self) -> usize {
        self.streams.len() * self.n
    }

    /// Sizes and times of what has ended.
    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The next event and the number of its prompt; `None` after the last. After an error nothing follows.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(usize, TextEvent)>>> {
        let n = self.streams.len();
        let mut open = false;
        for i in (0..n).map(|i| (self.next + i) % n) {
            let Some(stream) = &mut self.streams[i] else { continue };
            match stream.poll_next(cx) {
                Poll::Pending => open = true,
                Poll::Ready(None) => self.streams[i] = None,
                Poll::Ready(Some(Ok(event))) => {
                    self.next = (i + 1) % n;
                    if let TextEvent::Finished { usage, timings, reason, .. } = &event {
                        self.reasons.push(*reason);
                        self.totals.add(i, *usage, *timings);
                        self.lease.model.sizes.prompt.record(usage.prompt_tokens);
                        self.lease.model.sizes.generated.record(usage.completion_tokens);
                    }
                    return Poll::Ready(Some(Ok((i, event))));
                }
                Poll::Ready(Some(Err(error))) => {
                    self.streams.clear();
                    return Poll::Ready(Some(Err(error.into())));
                }
            }
        }
        if open { Poll::Pending } else { Poll::Ready(None) }
    }

    /// The next event and the number of its prompt; `None` after the last.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, TextEvent)>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The number of a prompt's continuation among all of the request.
    pub(crate) fn index(&self, prompt: usize, choice: u32) -> usize {
        prompt * self.n + choice as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::{MAX_LOGPROBS, MAX_N};

    #[test]
    fn the_documents_state_the_limits() {
        let kib = MAX_STOP_BYTES >> 10;
        assert_eq!(kib << 10, MAX_STOP_BYTES, "the documents round");
        let row = format!("| stop strings of a request | {MAX_STOPS}, together {kib} KiB |");
        assert!(include_str!("../../../SECURITY.md").contains(&row), "{row}");
        for part in [
            format!("`stop` (a string or up to {MAX_STOPS}, {kib} KiB together)"),
            format!("`n` (up to {MAX_N}, "),
            format!("likeliest tokens to report (up to {MAX_LOGPROBS})"),
        ] {
            let page = include_str!("../../../docs/serving.md").replace('\n', " ");
            assert!(page.contains(&part), "docs/serving.md lacks {part}");
        }
    }
}
