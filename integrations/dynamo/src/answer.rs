//! From the engine's events to Dynamo's chunks.
//!
//! Tokens that are ready together are one chunk. The last chunk says why the answer ended, and has the token that ended it: Dynamo's
//! frontend hides it or shows it, as the request says. Dropping the chunks cancels the request in the engine.

use crate::error::{from_engine, internal};
use dynamo_backend_common::{
    DynamoError, GenerateContext, LLMEngineOutput, LLMEngineOutputExt, PromptTokensDetails, TopLogprob, usage,
};
use futures::FutureExt;
use realizar_engine::{Event, FinishReason, Stream};

type Chunk = Result<LLMEngineOutput, DynamoError>;

/// The chunks of a request with one choice. `n_prompt`: tokens of its prompt.
pub(crate) fn chunks(
    mut stream: Stream,
    context: GenerateContext,
    n_prompt: usize,
) -> impl futures::Stream<Item = Chunk> + Send {
    async_stream::stream! {
        let mut n_tokens = 0;
        loop {
            let first = tokio::select! {
                biased;
                () = context.stopped() => None,
                event = stream.next_event() => Some(event),
            };
            let Some(first) = first else {
                yield Ok(LLMEngineOutput::cancelled().with_usage(usage(n_prompt as u32, n_tokens)));
                return;
            };
            let mut tokens = Tokens::default();
            let mut end = tokens.take(first, n_tokens);
            while end.is_none() && let Some(event) = stream.next_event().now_or_never() {
                end = tokens.take(event, n_tokens);
            }
            n_tokens += tokens.chunk.token_ids.len() as u32;
            if !tokens.chunk.token_ids.is_empty() {
                yield Ok(tokens.chunk);
            }
            if let Some(end) = end {
                yield end;
                return;
            }
        }
    }
}

/// Tokens of one chunk.
#[derive(Default)]
struct Tokens {
    chunk: LLMEngineOutput,
}

impl Tokens {
    /// Takes a token, or returns the last chunk. `n_before`: tokens of the chunks before.
    fn take(&mut self, event: Option<Event>, n_before: u32) -> Option<Chunk> {
        match event {
            Some(Event::Token { id, logprob, top_logprobs, .. }) => {
                self.chunk.token_ids.push(id);
                if let Some(logprob) = logprob {
                    self.chunk.log_probs.get_or_insert_default().push(f64::from(logprob));
                    self.chunk.top_logprobs.get_or_insert_default().push(likeliest(&top_logprobs));
                }
                None
            }
            // Not asked for.
            Some(Event::PromptToken { .. }) => None,
            Some(Event::Finished { reason, usage, .. }) => {
                Some(Ok(last_chunk(reason, usage, n_before + self.chunk.token_ids.len() as u32)))
            }
            Some(Event::Error(error)) => Some(Err(from_engine(&error))),
            None => Some(Err(internal("the engine gave up the request without saying why"))),
        }
    }
}

/// Dynamo's frontend adds the tokens' texts.
fn likeliest(tokens: &[(u32, f32)]) -> Vec<TopLogprob> {
    let entry = |(i, &(token_id, logprob)): (usize, &(u32, f32))| TopLogprob {
        rank: i as u32 + 1,
        token_id,
        token: None,
        logprob: f64::from(logprob),
        bytes: None,
    };
    tokens.iter().enumerate().map(entry).collect()
}

fn last_chunk(reason: FinishReason, sizes: realizar_engine::Usage, n_tokens: u32) -> LLMEngineOutput {
    let (chunk, end) = match reason {
        FinishReason::Stop { token } => (LLMEngineOutput::stop(), token),
        FinishReason::Length => (LLMEngineOutput::length(), None),
        FinishReason::Cancelled => (LLMEngineOutput::cancelled(), None),
    };
    let end: Vec<u32> = end.into_iter().collect();
    let mut usage = usage(sizes.prompt_tokens as u32, n_tokens + end.len() as u32);
    let cached_tokens = Some(sizes.cached_tokens as u32);
    usage.prompt_tokens_details =
        Some(PromptTokensDetails { cached_tokens, ..PromptTokensDetails::default() });
    chunk.with_tokens(end).with_usage(usage)
}
