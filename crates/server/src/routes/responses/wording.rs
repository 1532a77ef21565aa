//! A generation in the words of the Responses API: events one by one, and the response that they make.

use super::wire::{
    EventNews, IncompleteDetails, InputTokensDetails, OutputItem, OutputPart, OutputTokensDetails, Response,
    ResponseError, Status, StreamEvent, Usage,
};
use crate::app::unix_time;
use crate::auth::Caller;
use crate::conversation::MessageList;
use crate::error::{ApiError, Result};
use crate::generation::Generation;
use crate::models::Lease;
use crate::openai::TokenLogprob;
use crate::response_store::Stored;
use crate::sse::{Wording, named_event};
use crate::turn::{AnswerParser, News};
use axum::http::StatusCode;
use axum::response::sse::Event;
use realizar_engine::{FinishReason, TextEvent, TokenInfo, Usage as Sizes};
use serde_json::Value;

/// Words one response.
pub(super) struct ResponseWording {
    pub(super) lease: Lease,
    pub(super) caller: Caller,
    /// As far as it has been generated, without the item that is open.
    pub(super) response: Response,
    pub(super) parser: AnswerParser,
    /// The conversation so far, if the response is to be stored.
    pub(super) messages: Option<Vec<Value>>,
    /// Reasoning has `encrypted_content`.
    pub(super) seals: bool,
    pub(super) logprobs: Option<Logprobs>,
    pub(super) open: Option<Open>,
    /// Events so far.
    pub(super) n_events: u64,
}

/// Log-probabilities of tokens whose text has not come yet.
#[derive(Default)]
pub(super) struct Logprobs {
    waiting: Vec<TokenLogprob>,
}

/// An item that is being generated.
pub(super) enum Open {
    Reasoning { id: String, text: String },
    Text { id: String, text: String, logprobs: Vec<TokenLogprob> },
    Call { id: String, call_id: String, name: String, arguments: String },
}

impl Open {
    fn id(&self) -> String {
        match self {
            Self::Reasoning { id, .. } | Self::Text { id, .. } | Self::Call { id, .. } => id.clone(),
        }
    }

    /// The only part of the item, if it has parts.
    fn part(&self) -> Option<OutputPart> {
        match self {
            Self::Reasoning { text, .. } => Some(OutputPart::ReasoningText { text: text.clone() }),
            Self::Text { text, logprobs, .. } => Some(OutputPart::OutputText {
                text: text.clone(),
                annotations: Vec::new(),
                logprobs: logprobs.clone(),
            }),
            Self::Call { .. } => None,
        }
    }
}

impl ResponseWording {
    fn output_index(&self) -> usize {
        self.response.output.len()
    }

    /// The item that is open; `sealed`: the text of its reasoning.
    fn item(&self, open: &Open, status: Status) -> OutputItem {
        let content = || open.part().filter(|_| status != Status::InProgress).into_iter().collect();
        match open {
            Open::Reasoning { id, text } => OutputItem::Reasoning {
                id: id.clone(),
                status,
                summary: Vec::new(),
                content: content(),
                encrypted_content: (self.seals && status != Status::InProgress)
                    .then(|| self.lease.seal().seal(text)),
            },
            Open::Text { id, .. } => {
                OutputItem::Message { id: id.clone(), status, role: "assistant", content: content() }
            }
            Open::Call { id, call_id, name, arguments } => OutputItem::FunctionCall {
                id: id.clone(),
                status,
                call_id: call_id.clone(),
                name: name.clone(),
                arguments: arguments.clone(),
            },
        }
    }

    fn begin_item(&mut self, open: Open, out: &mut Vec<EventNews>) {
        self.close(Status::Completed, out);
        let output_index = self.output_index();
        out.push(EventNews::ItemAdded { output_index, item: self.item(&open, Status::InProgress) });
        if let Some(part) = open.part() {
            out.push(EventNews::PartAdded { item_id: open.id(), output_index, content_index: 0, part });
        }
        self.open = Some(open);
    }

    /// Ends the item that is open.
    fn close(&mut self, status: Status, out: &mut Vec<EventNews>) {
        let Some(open) = self.open.take() else { return };
        let (output_index, content_index, item_id) = (self.output_index(), 0, open.id());
        let id = item_id.clone();
        out.push(match &open {
            Open::Reasoning { text, .. } => {
                EventNews::ReasoningDone { item_id: id, output_index, content_index, text: text.clone() }
            }
            Open::Text { text, logprobs, .. } => {
                let (text, logprobs) = (text.clone(), logprobs.clone());
                EventNews::TextDone { item_id: id, output_index, content_index, text, logprobs }
            }
            Open::Call { name, arguments, .. } => {
                let (name, arguments) = (name.clone(), arguments.clone());
                EventNews::ArgumentsDone { item_id: id, output_index, name, arguments }
            }
        });
        if let Some(part) = open.part() {
            out.push(EventNews::PartDone { item_id, output_index, content_index, part });
        }
        let item = self.item(&open, status);
        self.response.output.push(item.clone());
        out.push(EventNews::ItemDone { output_index, item });
    }

    fn news(&mut self, news: News, out: &mut Vec<EventNews>) {
        let content_index = 0;
        match news {
            News::Reasoning(delta) => {
                if !matches!(self.open, Some(Open::Reasoning { .. })) {
                    let open = Open::Reasoning { id: self.lease.app.new_id("rs_"), text: String::new() };
                    self.begin_item(open, out);
                }
                let output_index = self.output_index();
                let Some(Open::Reasoning { id, text }) = &mut self.open else { return };
                *text += &delta;
                out.push(EventNews::ReasoningDelta {
                    item_id: id.clone(),
                    output_index,
                    content_index,
                    delta,
                });
            }
            News::Text(delta) => {
                if !matches!(self.open, Some(Open::Text { .. })) {
                    let id = self.lease.app.new_id("msg_");
                    self.begin_item(Open::Text { id, text: String::new(), logprobs: Vec::new() }, out);
                }
                let output_index = self.output_index();
                let new = self.logprobs.as_mut().map(|l| std::mem::take(&mut l.waiting)).unwrap_or_default();
                let Some(Open::Text { id, text, logprobs }) = &mut self.open else { return };
                *text += &delta;
                logprobs.extend(new.iter().cloned());
                let item_id = id.clone();
                out.push(EventNews::TextDelta { item_id, output_index, content_index, delta, logprobs: new });
            }
            News::Call { id: call_id, name, .. } => {
                let id = self.lease.app.new_id("fc_");
                self.begin_item(Open::Call { id, call_id, name, arguments: String::new() }, out);
            }
            News::Arguments { fragment: delta, .. } => {
                let output_index = self.output_index();
                let Some(Open::Call { id, arguments, .. }) = &mut self.open else { return };
                *arguments += &delta;
                out.push(EventNews::ArgumentsDelta { item_id: id.clone(), output_index, delta });
            }
        }
    }

    fn take_event(&mut self, event: &TextEvent, out: &mut Vec<EventNews>) {
        match event {
            TextEvent::Prompt(_) => {}
            TextEvent::Delta { text, token, .. } => {
                let n_before = self.parser.reasoning_tokens();
                let news = self.parser.push(text, usize::from(token.is_some()));
                let is_reasoning = self.parser.reasoning_tokens() > n_before;
                self.note_logprob(token.as_ref().filter(|_| !is_reasoning), &news);
                news.into_iter().for_each(|news| self.news(news, out));
            }
            TextEvent::Finished { reason, usage, .. } => {
                let news = self.parser.finish();
                news.into_iter().for_each(|news| self.news(news, out));
                self.finish(*reason, *usage, out);
            }
        }
    }

    /// Keeps a token's log-probability until its text comes; those of reasoning and calls are not reported.
    fn note_logprob(&mut self, token: Option<&TokenInfo>, news: &[News]) {
        let (Some(logprobs), Some(token)) = (&mut self.logprobs, token) else { return };
        if news.iter().any(|news| !matches!(news, News::Text(_))) {
            logprobs.waiting.clear();
        }
        if news.is_empty() || news.iter().any(|news| matches!(news, News::Text(_))) {
            logprobs.waiting.push(TokenLogprob::new(self.lease.model.engine.tokenizer(), token));
        }
    }

    fn finish(&mut self, reason: FinishReason, usage: Sizes, out: &mut Vec<EventNews>) {
        let status = match reason {
            FinishReason::Length => Status::Incomplete,
            FinishReason::Stop { .. } | FinishReason::Cancelled => Status::Completed,
        };
        self.close(status, out);
        let response = &mut self.response;
        response.status = status;
        response.usage = Some(Usage {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokensDetails {
                cached_tokens: usage.cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: usage.completion_tokens,
            // A token that ends the answer may be among those of the reasoning.
            output_tokens_details: OutputTokensDetails {
                reasoning_tokens: self.parser.reasoning_tokens().min(usage.completion_tokens),
            },
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
        });
        match status {
            Status::Incomplete => {
                response.incomplete_details = Some(IncompleteDetails { reason: "max_output_tokens" });
                out.push(EventNews::Incomplete { response: response.clone() });
            }
            _ => {
                response.completed_at = Some(unix_time());
                out.push(EventNews::Completed { response: response.clone() });
            }
        }
        self.store();
    }

    fn store(&mut self) {
        let Some(messages) = self.messages.take() else { return };
        let mut list = MessageList::after(messages);
        for item in &self.response.output {
            match item {
                OutputItem::Reasoning { content, .. } | OutputItem::Message { content, .. } => {
                    for part in content {
                        match part {
                            OutputPart::ReasoningText { text } => list.thought(text),
                            OutputPart::OutputText { text, .. } => list.assistant(text),
                        }
                    }
                }
                OutputItem::FunctionCall { call_id, name, arguments, .. } => {
                    let arguments =
                        serde_json::from_str(arguments).unwrap_or_else(|_| arguments.as_str().into());
                    list.call(call_id, name, arguments);
                }
            }
        }
        match serde_json::to_value(&self.response) {
            Ok(response) => {
                let stored = Stored { response, messages: list.into_messages() };
                self.lease.app.responses.put(self.caller, &self.response.id, stored);
            }
            Err(error) => tracing::error!(%error, "could not write a response"),
        }
    }

    fn send(&mut self, news: Vec<EventNews>, out: &mut Vec<Event>) {
        for news in news {
            let name = news.name();
            let event = StreamEvent { sequence_number: self.n_events, news };
            self.n_events += 1;
            out.push(named_event(name, &event));
        }
    }
}

impl Wording for ResponseWording {
    type Piece = Event;

    fn begin(&mut self, _: &Generation, out: &mut Vec<Event>) {
        let response = || self.response.clone();
        let news =
            vec![EventNews::Created { response: response() }, EventNews::InProgress { response: response() }];
        self.send(news, out);
    }

    fn take(&mut self, _: &Generation, _: usize, event: &TextEvent, out: &mut Vec<Event>) -> Result<()> {
        let mut news = Vec::new();
        self.take_event(event, &mut news);
        self.send(news, out);
        Ok(())
    }

    fn end(&mut self, _: &Generation, _: &mut Vec<Event>) {}

    fn fail(&mut self, error: &ApiError, out: &mut Vec<Event>) {
        let code = match error.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_exceeded",
            _ => "server_error",
        };
        self.response.status = Status::Failed;
        self.response.error = Some(ResponseError { code, message: error.message.clone() });
        self.send(vec![EventNews::Failed { response: self.response.clone() }], out);
    }
}
