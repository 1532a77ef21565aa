//! Text in, text out: chat template and tokenizer before the engine, detokenizing and stop strings after it.
//!
//! All of it runs on the caller's thread; the engine sees token ids only.

use crate::request::{Event, FinishReason, Request, Timings, Usage};
use crate::stop_strings::{Passed, StopFilter, StopStrings};
use crate::stream::Stream;
use crate::{Client, Error, Result, SamplingParams};
use realizar_model::chat_template::{ChatTemplate, Timestamp};
use realizar_model::tokenizer::{EncodeOptions, StreamDecoder, Tokenizer};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// An engine that speaks text. Cloned freely.
#[derive(Clone)]
pub struct TextEngine {
    client: Client,
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
}

/// What to generate, for all ways to ask for text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextParams {
    /// Tokens to generate at most. Default `None`: to the end of the context.
    pub max_tokens: Option<usize>,
    /// How the next token is chosen.
    pub sampling: SamplingParams,
    /// Strings that end the text; they are not part of it. Default empty.
    pub stop: Vec<String>,
    /// Goes on after tokens that end a turn. Default false.
    pub ignore_eos: bool,
    /// Reports log-probabilities: of the chosen tokens and of this many of the likeliest. Default `None`.
    pub n_logprobs: Option<usize>,
    /// Whether guesses may speed it up, where the engine makes any; they never change the text. Default `None`: as the engine was
    /// configured.
    pub speculate: Option<bool>,
}

/// What a [`TextStream`] delivers.
#[derive(Clone, Debug, PartialEq)]
pub enum TextEvent {
    /// A token of the prompt, if its log-probabilities were asked for.
    Prompt(TokenInfo),
    /// A token was generated, or text that was held back is certain.
    Delta {
        /// Which of the request's continuations, from 0.
        choice: u32,
        /// Text that has become certain; often that of the token, empty while a character or a stop string may be unfinished.
        text: String,
        /// The token; `None` for text held back until the end.
        token: Option<TokenInfo>,
    },
    /// A continuation is complete.
    Finished {
        /// Which of the request's continuations, from 0.
        choice: u32,
        /// Why it ended.
        reason: FinishReason,
        /// The stop string that was found, if that is why.
        stop: Option<String>,
        /// Its size.
        usage: Usage,
        /// Where the time went.
        timings: Timings,
    },
}

/// A token and, if asked for, log-probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenInfo {
    /// Its id.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logprob: Option<f32>,
    /// The likeliest tokens in its place, likeliest first.
    pub top_logprobs: Vec<(u32, f32)>,
}

/// A whole continuation.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Its text.
    pub text: String,
    /// Its tokens; those of a stop string are among them, a stop token is not.
    pub tokens: Vec<TokenInfo>,
    /// Why it ended.
    pub reason: FinishReason,
    /// The stop string that was found, if that is why.
    pub stop: Option<String>,
    /// Its size.
    pub usage: Usage,
    /// Where the time went.
    pub timings: Timings,
}

impl Completion {
    /// The continuation of nothing.
    pub fn empty() -> Self {
        Partial::default().completion(FinishReason::Length)
    }
}

impl TextEngine {
    /// Puts a model's tokenizer and chat template around its engine.
    pub fn new(client: Client, tokenizer: Arc<Tokenizer>, template: Option<ChatTemplate>) -> Self {
        Self { client, tokenizer, template: template.map(Arc::new) }
    }

    /// The engine.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The model's chat template.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_deref()
    }

    /// Token ids of a text to continue, with what the model expects around it. The texts of control tokens become those tokens.
    pub fn encode_prompt(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: true })
    }

    /// Token ids of a conversation: an object with `messages` and whatever else the template takes.
    ///
    /// Errors: [`Error::NoChatTemplate`]; [`Error::Template`] if the template refuses the conversation or fails.
    pub fn encode_chat(&self, conversation: &serde_json::Value, now: Timestamp) -> Result<Vec<u32>> {
        let template = self.template.as_ref().ok_or(Error::NoChatTemplate)?;
        let text = template.render(conversation, true, now);
        let text = text.map_err(|error| Error::Template { message: error.to_string() })?;
        Ok(self.encode_rendered(&text))
    }

    /// Token ids of a conversation that the template has rendered.
    ///
    /// Where the tokenizer's files ask for BOS, it comes first exactly once, whether the template writes it or not.
    pub fn encode_rendered(&self, text: &str) -> Vec<u32> {
        let tokenizer = &self.tokenizer;
        let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
        let is_there = |id| tokenizer.token_text(id).is_some_and(|bos| text.trim_start().starts_with(bos));
        let mut ids: Vec<u32> = bos.filter(|&id| !is_there(id)).into_iter().collect();
        ids.extend(tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: true }));
        ids
    }

    /// A request to continue `prompt`; the model's own tokens that end a turn end it.
    pub fn request(&self, prompt: Vec<u32>, params: &TextParams) -> Request {
        let vocab_size = self.client.info().vocab_size;
        let ends = self.tokenizer.eos_ids().iter().copied().filter(|&id| (id as usize) < vocab_size);
        Request {
            sampling: params.sampling.clone(),
            stop_tokens: ends.collect(),
            ignore_eos: params.ignore_eos,
            n_logprobs: params.n_logprobs,
            speculate: params.speculate,
            ..Request::new(prompt, params.max_tokens.unwrap_or(usize::MAX))
        }
    }

    /// Hands a request to the engine and turns its tokens into text, which ends before the first of the `stop` strings.
    ///
    /// Errors: as [`Client::submit`] and [`StopStrings::new`].
    pub fn submit(&self, request: Request, stop: &[String]) -> Result<TextStream> {
        self.submit_showing(request, &StopStrings::new(stop)?, &[])
    }

    /// Like [`TextEngine::submit`], with stop strings that many requests share, and with the texts of some control tokens, which are
    /// left out otherwise.
    ///
    /// Errors: as [`Client::submit`].
    pub fn submit_showing(&self, request: Request, stops: &StopStrings, shown: &[u32]) -> Result<TextStream> {
        let n = request.n as usize;
        let choice = ChoiceText {
            decoder: StreamDecoder::new(self.tokenizer.clone(), true).showing(shown),
            filter: stops.filter(),
            stop: None,
            n_tokens: 0,
        };
        let stream = self.client.submit(request)?;
        let (choices, ready) = (vec![choice; n], VecDeque::new());
        Ok(TextStream { stream, stops: stops.clone(), choices, ready, include_stops: false, n_exempt: 0 })
    }

    /// Continues a text.
    ///
    /// Errors: as [`TextEngine::submit`]; [`Error::EmptyPrompt`] if neither the text nor the tokenizer brings a token.
    pub fn complete(&self, prompt: &str, params: &TextParams) -> Result<TextStream> {
        self.complete_tokens(self.encode_prompt(prompt), params)
    }

    /// Continues token ids.
    ///
    /// Errors: as [`TextEngine::submit`].
    pub fn complete_tokens(&self, prompt: Vec<u32>, params: &TextParams) -> Result<TextStream> {
        let stream = self.submit(self.request(prompt.clone(), params), &params.stop)?;
        Ok(stream.continuing(&prompt))
    }

    /// Answers a conversation: an object with `messages` and whatever else the template takes. `now`: the date that the template may
    /// print.
    ///
    /// Errors: as [`TextEngine::submit`] and [`TextEngine::encode_chat`].
    pub fn chat(
        &self,
        conversation: &serde_json::Value,
        now: Timestamp,
        params: &TextParams,
    ) -> Result<TextStream> {
        self.submit(self.request(self.encode_chat(conversation, now)?, params), &params.stop)
    }

    /// Continues many prompts of token ids side by side, each with its own parameters, and returns their completions in order. An
    /// empty prompt has an empty continuation.
    pub fn generate_batch(&self, prompts: &[(Vec<u32>, TextParams)]) -> Vec<Result<Completion>> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut cx = Context::from_waker(&waker);
        let mut results: Vec<Option<Result<Completion>>> = prompts.iter().map(|_| None).collect();
        let mut active: Vec<(usize, TextStream, Partial)> = Vec::new();
        let mut next = 0;
        while next < prompts.len() || !active.is_empty() {
            while let Some((prompt, params)) = prompts.get(next) {
                if prompt.is_empty() {
                    results[next] = Some(Ok(Completion::empty()));
                } else {
                    match self.complete_tokens(prompt.clone(), params) {
                        Ok(stream) => active.push((next, stream, Partial::default())),
                        // The queue is full of our own: the rest follows when some of them are done.
                        Err(Error::Overloaded { .. }) if !active.is_empty() => break,
                        Err(error) => results[next] = Some(Err(error)),
                    }
                }
                next += 1;
            }
            let n_active = active.len();
            active.retain_mut(|(i, stream, partial)| {
                while let Poll::Ready(event) = stream.poll_next(&mut cx) {
                    let done = match event {
                        Some(Ok(event)) => partial.take(event).map(Ok),
                        Some(Err(error)) => Some(Err(error)),
                        None => Some(Err(Error::ShuttingDown)),
                    };
                    if let Some(done) = done {
                        results[*i] = Some(done);
                        return false;
                    }
                }
                true
            });
            if active.len() == n_active && n_active > 0 {
                std::thread::park();
            }
        }
        results.into_iter().map(|r| r.expect("each prompt was answered")).collect()
    }
}

/// The text of one request, as it comes. Dropping it cancels the request.
pub struct TextStream {
    stream: Stream,
    stops: StopStrings,
    choices: Vec<ChoiceText>,
    ready: VecDeque<TextEvent>,
    /// What ends a text is part of it.
    include_stops: bool,
    /// Tokens at the beginning in which no stop string is looked for.
    n_exempt: usize,
}

#[derive(Clone)]
struct ChoiceText {
    decoder: StreamDecoder,
    filter: StopFilter,
    /// The stop string that ended it, as an index.
    stop: Option<usize>,
    n_tokens: usize,
}

impl ChoiceText {
    /// Text that comes before its end: what a stop string may begin in is held back.
    fn push(&mut self, text: &str, n_exempt: usize) -> Passed {
        match self.n_tokens <= n_exempt {
            true => Passed { text: text.to_owned(), stop: None },
            false => self.filter.push(text),
        }
    }
}

impl TextStream {
    /// Makes the stop string, or the text of the stop token, that ends a text part of it.
    pub fn including_stops(mut self) -> Self {
        self.include_stops = true;
        self
    }

    /// Joins the text to the prompt's: it begins with the space that separates them, if the model writes one. For texts that are
    /// continued; the beginning of an answer loses such a space.
    pub fn continuing(mut self, prompt: &[u32]) -> Self {
        if let Some(&last) = prompt.last() {
            for choice in &mut self.choices {
                choice.decoder = choice.decoder.clone().after(last);
            }
        }
        self
    }

    /// Looks for stop strings only in what follows the first `n` tokens.
    pub fn stopping_after(mut self, n: usize) -> Self {
        self.n_exempt = n;
        self
    }

    /// The request's number, as it stands in logs.
    pub fn number(&self) -> u64 {
        self.stream.number()
    }

    /// The next event, waiting for it; `None` after the last. After an error nothing follows.
    pub fn recv(&mut self) -> Option<Result<TextEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            match self.stream.recv()? {
                Event::Error(error) => return Some(Err(error)),
                event => self.take(event),
            }
        }
    }

    /// The next event, to be called again when the task is woken; `Ready(None)` after the last.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<TextEvent>>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            match self.stream.poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Event::Error(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(Some(event)) => self.take(event),
            }
        }
    }

    /// The next event, on any async runtime; `None` after the last.
    pub async fn next_event(&mut self) -> Option<Result<TextEvent>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Ends all choices; each delivers its last event.
    pub fn cancel(&self) {
        self.stream.cancel();
    }

    /// Runs the request to its end and returns its first choice.
    ///
    /// Errors: the request ended early, with the reason.
    pub fn completion(self) -> Result<Completion> {
        self.run(|_| true)?.into_iter().next().ok_or(Error::ShuttingDown)
    }

    /// Runs the request to its end and returns its choices. `on_text` gets the first choice's text as it comes; when it returns
    /// false, the request is cancelled and it is not called again.
    pub fn run(mut self, mut on_text: impl FnMut(&str) -> bool) -> Result<Vec<Completion>> {
        let mut partial = vec![Partial::default(); self.choices.len()];
        let mut done: Vec<Option<Completion>> = vec![None; self.choices.len()];
        let mut wanted = true;
        while let Some(event) = self.recv() {
            let event = event?;
            let choice = match &event {
                TextEvent::Prompt(_) => continue,
                TextEvent::Delta { choice, text, .. } => {
                    // What comes after the caller had enough is as if it had not been computed.
                    if !wanted {
                        continue;
                    }
                    if *choice == 0 && !text.is_empty() && !on_text(text) {
                        wanted = false;
                        self.cancel();
                    }
                    *choice as usize
                }
                TextEvent::Finished { choice, .. } => *choice as usize,
            };
            if let Some(mut completion) = partial[choice].take(event) {
                if !wanted {
                    (completion.reason, completion.stop) = (FinishReason::Cancelled, None);
                }
                done[choice] = Some(completion);
            }
        }
        done.into_iter().map(|c| c.ok_or(Error::ShuttingDown)).collect()
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::PromptToken { id, logprob, top_logprobs } => {
                self.ready.push_back(TextEvent::Prompt(TokenInfo { id, logprob, top_logprobs }));
            }
            Event::Token { choice, id, logprob, top_logprobs, .. } => {
                let state = &mut self.choices[choice as usize];
                if state.stop.is_some() {
                    return; // computed before the engine heard of the stop string
                }
                state.n_tokens += 1;
                let text = state.decoder.push(id);
                let mut passed = state.push(&text, self.n_exempt);
                if let Some(stop) = passed.stop {
                    state.stop = passed.stop;
                    self.stream.cancel_choice(choice);
                    if self.include_stops {
                        passed.text += self.stops.get(stop).map_or("", String::as_str);
                    }
                }
                let token = Some(TokenInfo { id, logprob, top_logprobs });
                self.ready.push_back(TextEvent::Delta { choice, text: passed.text, token });
            }
            Event::Finished { choice, reason, mut usage, timings } => {
                let state = &mut self.choices[choice as usize];
                if state.stop.is_none() {
                    let mut rest = String::new();
                    if let (true, FinishReason::Stop { token: Some(id) }) = (self.include_stops, reason) {
                        rest += &state.decoder.push(id);
                    }
                    rest += &state.decoder.finish();
                    let mut passed = state.push(&rest, self.n_exempt);
                    state.stop = passed.stop;
                    match passed.stop {
                        None => passed.text += &state.filter.finish(),
                        Some(stop) if self.include_stops => {
                            passed.text += self.stops.get(stop).map_or("", String::as_str)
                        }
                        Some(_) => {}
                    }
                    if !passed.text.is_empty() {
                        let text = passed.text;
                        self.ready.push_back(TextEvent::Delta { choice, text, token: None });
                    }
                }
                usage.completion_tokens = state.n_tokens;
                let stop = state.stop.and_then(|i| self.stops.get(i).cloned());
                let reason = if stop.is_some() { FinishReason::Stop { token: None } } else { reason };
                self.ready.push_back(TextEvent::Finished { choice, reason, stop, usage, timings });
            }
            Event::Error(_) => unreachable!("errors are returned where they are received"),
        }
    }
}

impl Iterator for TextStream {
    type Item = Result<TextEvent>;

    fn next(&mut self) -> Option<Result<TextEvent>> {
        self.recv()
    }
}

impl futures_core::Stream for TextStream {
    type Item = Result<TextEvent>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        TextStream::poll_next(self.get_mut(), cx)
    }
}

/// A continuation that grows.
#[derive(Clone, Default)]
struct Partial {
    text: String,
    tokens: Vec<TokenInfo>,
}

impl Partial {
    /// Returns the completion when it is complete.
    fn take(&mut self, event: TextEvent) -> Option<Completion> {
        match event {
            TextEvent::Prompt(_) => None,
            TextEvent::Delta { text, token, .. } => {
                self.text += &text;
                self.tokens.extend(token);
                None
            }
            TextEvent::Finished { reason, stop, mut usage, timings, .. } => {
                let completion = std::mem::take(self).completion(reason);
                usage.completion_tokens = completion.tokens.len();
                Some(Completion { stop, usage, timings, ..completion })
            }
        }
    }

    fn completion(self, reason: FinishReason) -> Completion {
        let (usage, timings) = (Usage::default(), Timings::default());
        Completion { text: self.text, tokens: self.tokens, reason, stop: None, usage, timings }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
