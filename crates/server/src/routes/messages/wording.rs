//! A generation in the words of Anthropic's API: events one by one, and the answer that they make.

use super::error_detail;
use super::wire::{Answer, AnswerBlock, BlockDelta, MessageEnd, OutputTokensDetails, StreamEvent, Usage};
use crate::error::{ApiError, Result};
use crate::generation::Generation;
use crate::seal::Seal;
use crate::sse::{Wording, named_event};
use crate::turn::{AnswerParser, News};
use axum::response::sse::Event;
use realizar_engine::{FinishReason, TextEvent};
use serde_json::{Value, json};

/// Words one answer.
pub(super) struct MessageWording {
    /// As far as it has been generated, without the block that is open.
    pub(super) answer: Answer,
    pub(super) parser: AnswerParser,
    pub(super) seal: Seal,
    /// Tokens of the prompt.
    pub(super) n_prompt: usize,
    pub(super) max_tokens: usize,
    /// Thoughts are sent as their signature only.
    pub(super) omits_thoughts: bool,
    /// The block that is being generated.
    pub(super) open: Option<Open>,
}

/// A block that is being generated.
pub(super) enum Open {
    Thinking(String),
    Text(String),
    Call { id: String, name: String, input: String },
}

impl MessageWording {
    fn news(&mut self, news: News, out: &mut Vec<StreamEvent>) {
        match news {
            News::Reasoning(text) => {
                if !matches!(self.open, Some(Open::Thinking(_))) {
                    let block = AnswerBlock::Thinking { thinking: String::new(), signature: String::new() };
                    self.begin(Open::Thinking(String::new()), block, out);
                }
                let index = self.answer.content.len();
                let Some(Open::Thinking(all)) = &mut self.open else { return };
                *all += &text;
                if !self.omits_thoughts {
                    let delta = BlockDelta::ThinkingDelta { thinking: text };
                    out.push(StreamEvent::ContentBlockDelta { index, delta });
                }
            }
            News::Text(text) => {
                if !matches!(self.open, Some(Open::Text(_))) {
                    self.begin(Open::Text(String::new()), AnswerBlock::Text { text: String::new() }, out);
                }
                let index = self.answer.content.len();
                let Some(Open::Text(all)) = &mut self.open else { return };
                *all += &text;
                out.push(StreamEvent::ContentBlockDelta { index, delta: BlockDelta::TextDelta { text } });
            }
            News::Call { id, name, .. } => {
                let block = AnswerBlock::ToolUse { id: id.clone(), name: name.clone(), input: json!({}) };
                self.begin(Open::Call { id, name, input: String::new() }, block, out);
            }
            News::Arguments { fragment, .. } => {
                let index = self.answer.content.len();
                let Some(Open::Call { input, .. }) = &mut self.open else { return };
                *input += &fragment;
                let delta = BlockDelta::InputJsonDelta { partial_json: fragment };
                out.push(StreamEvent::ContentBlockDelta { index, delta });
            }
        }
    }

    fn begin(&mut self, open: Open, content_block: AnswerBlock, out: &mut Vec<StreamEvent>) {
        self.close(out);
        self.open = Some(open);
        out.push(StreamEvent::ContentBlockStart { index: self.answer.content.len(), content_block });
    }

    /// Ends the block that is open.
    fn close(&mut self, out: &mut Vec<StreamEvent>) {
        let index = self.answer.content.len();
        let block = match self.open.take() {
            None => return,
            Some(Open::Text(text)) => AnswerBlock::Text { text },
            Some(Open::Thinking(thinking)) => {
                let signature = match self.omits_thoughts {
                    true => self.seal.seal(&thinking),
                    false => self.seal.sign(&thinking),
                };
                let thinking = if self.omits_thoughts { String::new() } else { thinking };
                let delta = BlockDelta::SignatureDelta { signature: signature.clone() };
                out.push(StreamEvent::ContentBlockDelta { index, delta });
                AnswerBlock::Thinking { thinking, signature }
            }
            Some(Open::Call { id, name, input }) => AnswerBlock::ToolUse { id, name, input: object(input) },
        };
        self.answer.content.push(block);
        out.push(StreamEvent::ContentBlockStop { index });
    }

    fn take_event(&mut self, event: &TextEvent, out: &mut Vec<StreamEvent>) {
        match event {
            TextEvent::Prompt(_) => {}
            TextEvent::Delta { text, token, .. } => {
                let news = self.parser.push(text, usize::from(token.is_some()));
                news.into_iter().for_each(|news| self.news(news, out));
            }
            TextEvent::Finished { reason, stop, usage, .. } => {
                let news = self.parser.finish();
                news.into_iter().for_each(|news| self.news(news, out));
                self.close(out);
                self.answer.stop_reason = Some(match reason {
                    FinishReason::Length if usage.completion_tokens < self.max_tokens => {
                        "model_context_window_exceeded"
                    }
                    FinishReason::Length => "max_tokens",
                    _ if stop.is_some() => "stop_sequence",
                    _ if self.parser.n_calls() > 0 => "tool_use",
                    _ => "end_turn",
                });
                self.answer.stop_sequence.clone_from(stop);
                self.answer.usage = Usage {
                    input_tokens: usage.prompt_tokens - usage.cached_tokens,
                    cache_creation_input_tokens: 0,
                    cache_read_input_tokens: usage.cached_tokens,
                    output_tokens: usage.completion_tokens,
                    output_tokens_details: OutputTokensDetails {
                        // A token that ends the answer may be among those of the reasoning.
                        thinking_tokens: self.parser.reasoning_tokens().min(usage.completion_tokens),
                    },
                };
                let delta = MessageEnd { stop_reason: self.answer.stop_reason, stop_sequence: stop.clone() };
                out.push(StreamEvent::MessageDelta { delta, usage: self.answer.usage });
                out.push(StreamEvent::MessageStop);
            }
        }
    }
}

/// The input of a call: an object, or what the model wrote instead.
fn object(input: String) -> Value {
    match serde_json::from_str::<Value>(&input) {
        Ok(value) if value.is_object() => value,
        _ => json!({"INVALID_JSON": input}),
    }
}

impl StreamEvent {
    /// The event as it is sent.
    pub(super) fn sent(&self) -> Event {
        let name = match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
            Self::Error { .. } => "error",
        };
        named_event(name, self)
    }
}

impl Wording for MessageWording {
    type Piece = Event;

    fn begin(&mut self, _: &Generation, out: &mut Vec<Event>) {
        // How much of the prompt is cached is known at the end.
        self.answer.usage.input_tokens = self.n_prompt;
        out.push(StreamEvent::MessageStart { message: self.answer.clone() }.sent());
        out.push(StreamEvent::Ping.sent());
    }

    fn take(&mut self, _: &Generation, _: usize, event: &TextEvent, out: &mut Vec<Event>) -> Result<()> {
        let mut events = Vec::new();
        self.take_event(event, &mut events);
        out.extend(events.iter().map(StreamEvent::sent));
        Ok(())
    }

    fn end(&mut self, _: &Generation, _: &mut Vec<Event>) {}

    fn fail(&mut self, error: &ApiError, out: &mut Vec<Event>) {
        out.push(StreamEvent::Error { error: error_detail(error) }.sent());
    }
}
