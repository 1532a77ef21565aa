//! A generation in the words of llama.cpp's endpoints: pieces as server-sent events, and whole continuations.

use super::error_detail;
use super::wire::{Completion, GenerationSettings, Piece, SpeedTimings, TokenProbability};
use crate::error::{ApiError, Result};
use crate::generation::Generation;
use crate::sse::{Wording, json_event};
use axum::response::sse::Event;
use realizar_engine::{FinishReason, TextEvent, Timings, TokenInfo, Usage};
use realizar_model::tokenizer::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// -1: requests do not belong to slots.
const NO_SLOT: i32 = -1;

/// Words the continuations of a request.
pub(super) struct CompletionWording {
    pub(super) model: String,
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) settings: GenerationSettings,
    /// Of each prompt.
    pub(super) prompts: Vec<Vec<u32>>,
    pub(super) return_tokens: bool,
    pub(super) response_fields: Option<Vec<String>>,
    /// Of each continuation, what was generated so far.
    pub(super) parts: Vec<Part>,
    /// The continuations that are complete, in their order, each once it is.
    pub(super) whole: Vec<Option<Told>>,
}

/// A continuation as the client wants to hear of it.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Told {
    Whole(Box<Completion>),
    /// What `response_fields` names.
    Selected(Map<String, Value>),
}

/// What was generated of a continuation.
#[derive(Default)]
pub(super) struct Part {
    content: String,
    tokens: Vec<u32>,
    probabilities: Vec<TokenProbability>,
    /// How many of `tokens` and `probabilities` were sent.
    n_sent: usize,
}

impl CompletionWording {
    fn add(&mut self, index: usize, text: &str, token: Option<&TokenInfo>) {
        let part = &mut self.parts[index];
        part.content += text;
        if let Some(token) = token {
            part.tokens.push(token.id);
            if self.settings.n_probs > 0 {
                part.probabilities.push(TokenProbability::new(&self.tokenizer, token));
            }
        }
    }

    /// The next piece of a stream: text that has become certain, with all tokens behind it.
    fn piece(&mut self, index: usize, prompt: usize, text: String) -> Piece {
        let part = &mut self.parts[index];
        let first = std::mem::replace(&mut part.n_sent, part.tokens.len());
        Piece {
            index,
            content: text,
            tokens: part.tokens[first..].to_vec(),
            stop: false,
            id_slot: NO_SLOT,
            tokens_predicted: part.tokens.len(),
            tokens_evaluated: self.prompts[prompt].len(),
            completion_probabilities: part.probabilities.get(first..).unwrap_or_default().to_vec(),
        }
    }

    fn completion(&mut self, index: usize, prompt: usize, end: End) -> Told {
        let part = std::mem::take(&mut self.parts[index]);
        let streams = self.settings.stream;
        let has_new_line = part.content.contains('\n');
        let (stop_type, stopping_word) = match (end.reason, end.stop) {
            (FinishReason::Stop { token: None }, Some(stop)) => ("word", stop),
            (FinishReason::Stop { .. }, _) => ("eos", String::new()),
            (FinishReason::Length, _) => ("limit", String::new()),
            (FinishReason::Cancelled, _) => ("none", String::new()),
        };
        let completion = Completion {
            index,
            content: if streams { String::new() } else { part.content },
            tokens: if self.return_tokens && !streams { part.tokens } else { Vec::new() },
            id_slot: NO_SLOT,
            stop: true,
            model: self.model.clone(),
            tokens_predicted: end.usage.completion_tokens,
            tokens_evaluated: end.usage.prompt_tokens,
            tokens_cached: end.usage.cached_tokens,
            generation_settings: self.settings.clone(),
            prompt: self.tokenizer.decode(&self.prompts[prompt], false),
            has_new_line,
            truncated: false,
            stop_type,
            stopping_word,
            timings: timings(end.usage, end.timings),
            completion_probabilities: if streams { Vec::new() } else { part.probabilities },
        };
        match &self.response_fields {
            None => Told::Whole(Box::new(completion)),
            Some(names) => Told::Selected(select(&json!(completion), names)),
        }
    }
}

/// How a continuation ended.
struct End {
    reason: FinishReason,
    stop: Option<String>,
    usage: Usage,
    timings: Timings,
}

fn timings(usage: Usage, timings: Timings) -> SpeedTimings {
    let (prompt_n, predicted_n) = (usage.prompt_tokens - usage.cached_tokens, usage.completion_tokens);
    let (prompt_ms, predicted_ms) = (timings.prefill.as_secs_f64() * 1e3, timings.decode.as_secs_f64() * 1e3);
    let per_token = |ms: f64, n: usize| if n > 0 { ms / n as f64 } else { 0.0 };
    let per_second = |ms: f64, n: usize| if ms > 0.0 { n as f64 * 1e3 / ms } else { 0.0 };
    SpeedTimings {
        cache_n: usage.cached_tokens,
        prompt_n,
        prompt_ms,
        prompt_per_token_ms: per_token(prompt_ms, prompt_n),
        prompt_per_second: per_second(prompt_ms, prompt_n),
        predicted_n,
        predicted_ms,
        predicted_per_token_ms: per_token(predicted_ms, predicted_n),
        predicted_per_second: per_second(predicted_ms, predicted_n),
    }
}

/// The fields of an object that have these names, also those of objects in it, whose names have slashes. Other names are passed over.
fn select(object: &Value, names: &[String]) -> Map<String, Value> {
    let find = |name: &str| name.split('/').try_fold(object, |value, key| value.get(key));
    names.iter().filter_map(|name| Some((name.clone(), find(name)?.clone()))).collect()
}

impl Wording for CompletionWording {
    type Piece = Event;

    fn begin(&mut self, generation: &Generation, _: &mut Vec<Event>) {
        self.parts.resize_with(generation.n_choices(), Part::default);
        self.whole.resize_with(generation.n_choices(), || None);
    }

    fn take(
        &mut self,
        generation: &Generation,
        prompt: usize,
        event: &TextEvent,
        out: &mut Vec<Event>,
    ) -> Result<()> {
        match event {
            TextEvent::Prompt(_) => {}
            TextEvent::Delta { choice, text, token } => {
                let index = generation.index(prompt, *choice);
                self.add(index, text, token.as_ref());
                if self.settings.stream && !text.is_empty() {
                    out.push(json_event(&self.piece(index, prompt, text.clone())));
                }
            }
            TextEvent::Finished { choice, reason, stop, usage, timings } => {
                let index = generation.index(prompt, *choice);
                let end = End { reason: *reason, stop: stop.clone(), usage: *usage, timings: *timings };
                let completion = self.completion(index, prompt, end);
                match self.settings.stream {
                    true => out.push(json_event(&completion)),
                    false => self.whole[index] = Some(completion),
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, _: &Generation, _: &mut Vec<Event>) {}

    fn fail(&mut self, error: &ApiError, out: &mut Vec<Event>) {
        out.push(json_event(&json!({ "error": error_detail(error) })));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_objects_are_selected_by_names_with_slashes() {
        let whole = json!({"content": "a", "generation_settings": {"n_predict": 3}, "stop": true});
        let names = ["content", "generation_settings/n_predict", "nothing", "content/x"].map(str::to_owned);
        let selected = json!({"content": "a", "generation_settings/n_predict": 3});
        assert_eq!(Value::Object(select(&whole, &names)), selected);
    }
}
