//! From Dynamo's request to the engine's.
//!
//! Dynamo's frontend has rendered and tokenized the prompt, and looks for stop strings itself. What this worker cannot do is refused by
//! name, since an answer without it would be wrong.

use crate::error::{internal, invalid};
use dynamo_backend_common::{DynamoError, PreprocessedRequest, SamplingOptions, StopConditions};
use dynamo_kv_hashing::compute_salt_hash;
use realizar_engine::{Constraint, Request, RunnerInfo, SamplingParams, TokenMask};
use std::sync::Arc;

/// The engine's request, without the format of guided decoding. `defaults`: how tokens are chosen where the request does not say.
///
/// Errors: what is asked for and not supported, or out of range.
pub(crate) fn engine_request(
    request: &PreprocessedRequest,
    defaults: &SamplingParams,
    info: &RunnerInfo,
) -> Result<Request, DynamoError> {
    refuse_unsupported(request)?;
    let stops = &request.stop_conditions;
    let routing = request.routing.as_ref();
    let mut engine_request =
        Request::new(request.token_ids.to_vec(), stops.max_tokens.map_or(info.max_seq_len(), |n| n as usize));
    engine_request.sampling = sampling(&request.sampling_options, defaults)?;
    engine_request.stop_tokens = stop_tokens(request);
    engine_request.n_logprobs = request.output_options.logprobs.map(|n| n as usize);
    engine_request.priority = routing.and_then(|r| r.priority).unwrap_or(0);
    engine_request.cache_salt = salt(routing.and_then(|r| r.cache_namespace.as_deref()))?;
    engine_request.constraint = min_tokens(stops, &engine_request.stop_tokens, info.vocab_size);
    engine_request.validate(info).map_err(|error| crate::error::from_engine(&error))?;
    Ok(engine_request)
}

fn refuse_unsupported(request: &PreprocessedRequest) -> Result<(), DynamoError> {
    let (sampling, stops) = (&request.sampling_options, &request.stop_conditions);
    let extra = |name| request.extra_args.as_ref()?.get("sampling_options")?.get(name);
    let unsupported = [
        ("n above 1", sampling.n.is_some_and(|n| n > 1)),
        ("best_of above 1", sampling.best_of.is_some_and(|n| n > 1)),
        ("beam search", sampling.use_beam_search == Some(true)),
        ("a budget of thinking tokens", stops.max_thinking_tokens.is_some()),
        ("log-probabilities of the prompt", request.output_options.prompt_logprobs.is_some()),
        ("allowed_token_ids", extra("allowed_token_ids").is_some()),
        ("bad_words_token_ids", extra("bad_words_token_ids").is_some()),
        ("logprob_token_ids", extra("logprob_token_ids").is_some()),
        ("a LoRA adapter", request.routing.as_ref().is_some_and(|r| r.lora_name.is_some())),
        ("images, videos or audio", request.multi_modal_data.as_ref().is_some_and(|data| !data.is_empty())),
        ("prompt embeddings", request.prompt_embeds.is_some()),
        ("the result of an encoder", request.encoder_result.is_some()),
        (
            "a prompt that another worker has computed",
            request.prefill_result.is_some() || request.bootstrap_info.is_some(),
        ),
    ];
    match unsupported.iter().find(|(_, is_asked)| *is_asked) {
        Some((what, _)) => Err(invalid(format!("this worker does not support {what}"))),
        None => Ok(()),
    }
}

/// Ranges are checked by [`Request::validate`].
fn sampling(options: &SamplingOptions, defaults: &SamplingParams) -> Result<SamplingParams, DynamoError> {
    let top_k = match options.top_k {
        None => defaults.top_k,
        Some(-1) => 0,
        Some(k) => {
            usize::try_from(k).map_err(|_| invalid(format!("top_k is {k} but must be at least -1")))?
        }
    };
    Ok(SamplingParams {
        temperature: options.temperature.unwrap_or(defaults.temperature),
        top_k,
        top_p: options.top_p.unwrap_or(defaults.top_p),
        min_p: options.min_p.unwrap_or(defaults.min_p),
        repetition_penalty: options.repetition_penalty.unwrap_or(defaults.repetition_penalty),
        frequency_penalty: options.frequency_penalty.unwrap_or(defaults.frequency_penalty),
        presence_penalty: options.presence_penalty.unwrap_or(defaults.presence_penalty),
        seed: options.seed.map(i64::cast_unsigned),
        ..defaults.clone()
    })
}

/// All tokens that end the answer, each once.
fn stop_tokens(request: &PreprocessedRequest) -> Vec<u32> {
    let stops = &request.stop_conditions;
    if stops.ignore_eos == Some(true) {
        return Vec::new();
    }
    let lists = [&stops.stop_token_ids, &stops.stop_token_ids_hidden, &stops.stop_token_ids_visible];
    let mut tokens = request.eos_token_ids.clone();
    tokens.extend(lists.into_iter().flatten().flatten());
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

/// The number by which Dynamo's router tells the blocks of a namespace apart.
fn salt(namespace: Option<&str>) -> Result<Option<u64>, DynamoError> {
    let Some(namespace) = namespace.filter(|name| !name.is_empty()) else { return Ok(None) };
    compute_salt_hash(Some(namespace), None).map(Some).map_err(internal)
}

/// Forbids the tokens that end the answer among the first ones.
#[derive(Clone)]
struct MinTokens {
    n_left: u32,
    early: Arc<TokenMask>,
    late: Arc<TokenMask>,
}

fn min_tokens(stops: &StopConditions, ends: &[u32], vocab_size: usize) -> Option<Box<dyn Constraint>> {
    let n_left = stops.min_tokens.filter(|&n| n > 0 && !ends.is_empty())?;
    let (mut early, mut late) = (TokenMask::none(vocab_size), TokenMask::none(vocab_size));
    for id in 0..vocab_size as u32 {
        late.allow(id);
        if !ends.contains(&id) {
            early.allow(id);
        }
    }
    Some(Box::new(MinTokens { n_left, early: Arc::new(early), late: Arc::new(late) }))
}

impl Constraint for MinTokens {
    fn allowed(&mut self) -> Result<&TokenMask, String> {
        Ok(if self.n_left > 0 { &self.early } else { &self.late })
    }

    fn accept(&mut self, _: u32) -> Result<(), String> {
        self.n_left = self.n_left.saturating_sub(1);
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const INFO: RunnerInfo = RunnerInfo {
        vocab_size: 100,
        n_blocks: 8,
        block_size: 16,
        context_length: 64,
        limits: realizar_compute::BatchLimits { n_tokens: 8, n_seqs: 8, n_blocks: 8, n_logits: 8 },
        slots: None,
        asynchronous: false,
        drafts: false,
    };

    fn parse(more: Value) -> Result<Request, DynamoError> {
        let mut body = json!({"model": "m", "token_ids": [1, 2, 3], "eos_token_ids": [9]});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let request: PreprocessedRequest = serde_json::from_value(body).expect("a request");
        let defaults = SamplingParams { temperature: 0.6, top_k: 20, ..SamplingParams::default() };
        engine_request(&request, &defaults, &INFO)
    }

    #[test]
    fn what_a_request_says_goes_before_what_the_model_recommends() {
        let request = parse(json!({})).expect("a request");
        assert_eq!((request.sampling.temperature, request.sampling.top_k), (0.6, 20));
        assert_eq!((request.prompt.len(), request.max_tokens, request.stop_tokens), (3, 64, vec![9]));
        let request = parse(json!({
            "sampling_options": {"temperature": 0.0, "top_k": -1, "seed": -2, "presence_penalty": 0.5},
            "stop_conditions": {"max_tokens": 5, "stop_token_ids": [7], "stop_token_ids_hidden": [9, 8]},
            "output_options": {"logprobs": 2},
            "routing": {"priority": 3, "cache_salt": "tenant"},
        }))
        .expect("a request");
        assert_eq!((request.sampling.temperature, request.sampling.top_k), (0.0, 0));
        assert_eq!((request.sampling.seed, request.sampling.presence_penalty), (Some(u64::MAX - 1), 0.5));
        assert_eq!((request.max_tokens, request.stop_tokens), (5, vec![7, 8, 9]));
        assert_eq!((request.n_logprobs, request.priority), (Some(2), 3));
        assert_ne!(request.cache_salt, None);
    }

    #[test]
    fn the_end_is_ignored_or_put_off_where_that_is_asked_for() {
        let request =
            parse(json!({"stop_conditions": {"ignore_eos": true, "min_tokens": 4}})).expect("a request");
        assert!(request.stop_tokens.is_empty() && request.constraint.is_none());
        let request = parse(json!({"stop_conditions": {"min_tokens": 1}})).expect("a request");
        let mut constraint = request.constraint.expect("a constraint");
        assert!(!constraint.allowed().expect("a mask").contains(9));
        assert!(constraint.allowed().expect("a mask").contains(99));
        constraint.accept(5).expect("accepted");
        assert!(constraint.allowed().expect("a mask").contains(9));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (more, what) in [
            (json!({"sampling_options": {"n": 2}}), "n above 1"),
            (json!({"sampling_options": {"use_beam_search": true}}), "beam search"),
            (json!({"output_options": {"prompt_logprobs": 0}}), "log-probabilities of the prompt"),
            (json!({"stop_conditions": {"max_thinking_tokens": 8}}), "a budget of thinking tokens"),
            (json!({"routing": {"lora_name": "a"}}), "a LoRA adapter"),
            (json!({"extra_args": {"sampling_options": {"allowed_token_ids": [1]}}}), "allowed_token_ids"),
            (json!({"sampling_options": {"top_k": -2}}), "top_k is -2"),
            (json!({"sampling_options": {"temperature": -1.0}}), "temperature is -1"),
            (json!({"token_ids": []}), "empty prompt"),
            (json!({"token_ids": [100]}), "token 100"),
        ] {
            let error = parse(more).map(|_| ()).expect_err(what).to_string();
            assert!(error.contains(what), "{error} does not say {what}");
        }
    }
}
