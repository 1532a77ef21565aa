//! A generation in the words of Ollama's API: lines of JSON, and the answer that they make.

use super::wire::{Answer, AnswerCall, AnswerMessage, CalledFunction, End, ErrorBody};
use crate::app::now_rfc3339;
use crate::error::{ApiError, Result};
use crate::generation::Generation;
use crate::openai::TokenLogprob;
use crate::sse::Wording;
use crate::turn::{AnswerParser, News};
use realizar_engine::{FinishReason, TextEvent, Timings, TokenInfo, Usage};
use realizar_model::tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Which of the endpoints words an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// In a message.
    Chat,
    /// As a response.
    Generate,
}

/// Words one answer.
pub(super) struct LineWording {
    pub(super) kind: Kind,
    pub(super) model: String,
    /// Without it, all text is the answer.
    pub(super) parser: Option<AnswerParser>,
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) wants_logprobs: bool,
    /// A call that is not complete: calls are sent whole.
    pub(super) call: Option<AnswerCall>,
    /// Its arguments so far.
    pub(super) arguments: String,
    /// All lines so far as one.
    pub(super) whole: Answer,
}

impl LineWording {
    pub(super) fn new(
        kind: Kind,
        model: String,
        parser: Option<AnswerParser>,
        tokenizer: Arc<Tokenizer>,
        wants_logprobs: bool,
    ) -> Self {
        let whole = empty(kind, &model);
        Self { kind, model, parser, tokenizer, wants_logprobs, call: None, arguments: String::new(), whole }
    }

    /// The lines for some news. A token's log-probability comes with the first of them.
    fn lines(&mut self, news: Vec<News>, token: Option<&TokenInfo>, out: &mut Vec<Answer>) {
        let n_before = out.len();
        for news in news {
            match news {
                News::Text(text) => out.push(self.line(text, None)),
                News::Reasoning(text) => out.push(self.line(String::new(), Some(text))),
                News::Call { id, name, .. } => {
                    self.end_call(out);
                    self.call =
                        Some(AnswerCall { id, function: CalledFunction { name, arguments: Value::Null } });
                }
                News::Arguments { fragment, .. } => self.arguments += &fragment,
            }
        }
        if let Some(token) = token.filter(|_| self.wants_logprobs) {
            if out.len() == n_before {
                out.push(self.line(String::new(), None));
            }
            out[n_before].logprobs.push(TokenLogprob::new(&self.tokenizer, token));
        }
    }

    fn end_call(&mut self, out: &mut Vec<Answer>) {
        let Some(mut call) = self.call.take() else { return };
        let arguments = std::mem::take(&mut self.arguments);
        call.function.arguments = match serde_json::from_str::<Value>(&arguments) {
            Ok(value) if value.is_object() => value,
            // What the model wrote instead of an object.
            _ => json!({"INVALID_JSON": arguments}),
        };
        let mut line = self.line(String::new(), None);
        if let Some(message) = &mut line.message {
            message.tool_calls.push(call);
        }
        out.push(line);
    }

    fn line(&self, text: String, thinking: Option<String>) -> Answer {
        let mut line = empty(self.kind, &self.model);
        match &mut line.message {
            Some(message) => (message.content, message.thinking) = (text, thinking),
            None => (line.response, line.thinking) = (Some(text), thinking),
        }
        line
    }

    fn take_event(&mut self, event: &TextEvent) -> Vec<Answer> {
        let mut lines = Vec::new();
        match event {
            TextEvent::Prompt(_) => {}
            TextEvent::Delta { text, token, .. } => {
                let news = match &mut self.parser {
                    Some(parser) => parser.push(text, 1),
                    None if text.is_empty() => Vec::new(),
                    None => vec![News::Text(text.clone())],
                };
                self.lines(news, token.as_ref(), &mut lines);
            }
            TextEvent::Finished { reason, usage, timings, .. } => {
                let news = self.parser.as_mut().map(AnswerParser::finish).unwrap_or_default();
                self.lines(news, None, &mut lines);
                self.end_call(&mut lines);
                let done_reason = if *reason == FinishReason::Length { "length" } else { "stop" };
                let mut last = self.line(String::new(), None);
                last.done = true;
                last.end = Some(end(done_reason, *usage, *timings));
                lines.push(last);
            }
        }
        lines.iter().for_each(|line| self.add(line));
        lines
    }

    /// Adds a line to the whole.
    fn add(&mut self, line: &Answer) {
        let whole = &mut self.whole;
        let add = |all: &mut Option<String>, more: &Option<String>| {
            if let Some(more) = more {
                all.get_or_insert_default().push_str(more);
            }
        };
        if let (Some(all), Some(more)) = (&mut whole.message, &line.message) {
            all.content += &more.content;
            add(&mut all.thinking, &more.thinking);
            all.tool_calls.extend(more.tool_calls.iter().cloned());
        }
        add(&mut whole.response, &line.response);
        add(&mut whole.thinking, &line.thinking);
        whole.logprobs.extend(line.logprobs.iter().cloned());
        (whole.done, whole.end) = (line.done, line.end.clone());
    }
}

/// An answer without contents.
pub(super) fn empty(kind: Kind, model: &str) -> Answer {
    let message = || AnswerMessage { role: "assistant", ..AnswerMessage::default() };
    Answer {
        model: model.to_owned(),
        created_at: now_rfc3339(),
        message: (kind == Kind::Chat).then(message),
        response: (kind == Kind::Generate).then(String::new),
        ..Answer::default()
    }
}

/// What the last line has.
pub(super) fn end(done_reason: &'static str, usage: Usage, timings: Timings) -> End {
    let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    End {
        done_reason,
        total_duration: ns(timings.first_token + timings.decode),
        load_duration: 0,
        prompt_eval_count: usage.prompt_tokens,
        prompt_eval_duration: ns(timings.prefill),
        eval_count: usage.completion_tokens,
        eval_duration: ns(timings.decode),
    }
}

/// A line as it is sent.
fn written(line: &impl serde::Serialize) -> String {
    match serde_json::to_string(line) {
        Ok(text) => text + "\n",
        Err(error) => {
            tracing::error!(%error, "could not write a line");
            String::new()
        }
    }
}

impl Wording for LineWording {
    type Piece = String;

    fn begin(&mut self, _: &Generation, _: &mut Vec<String>) {}

    fn take(&mut self, _: &Generation, _: usize, event: &TextEvent, out: &mut Vec<String>) -> Result<()> {
        out.extend(self.take_event(event).iter().map(written));
        Ok(())
    }

    fn end(&mut self, _: &Generation, _: &mut Vec<String>) {}

    fn fail(&mut self, error: &ApiError, out: &mut Vec<String>) {
        out.push(written(&ErrorBody { error: error.message.clone() }));
    }
}
