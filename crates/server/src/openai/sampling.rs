//! What chat and text requests have in common: how to choose tokens, when to end, how to answer.

use super::{Endpoint, FormatFields, OpenAiFields, TokenFields};
use crate::auth::Caller;
use crate::error::{ApiError, Result};
use crate::fields::OtherFields;
use crate::generation::{Plan, stop_strings};
use crate::models::Lease;
use crate::params::ParamFields;
use crate::token_limits::TokenRules;
use realizar_engine::{SamplingParams, StopStrings};
use serde::Deserialize;
use std::collections::HashMap;
use utoipa::ToSchema;

/// Continuations of one prompt at most.
pub(crate) const MAX_N: u32 = 128;
/// Likeliest tokens that may be asked for at each place.
pub(crate) const MAX_LOGPROBS: usize = 20;
/// Steps of priority in either direction.
const MAX_PRIORITY: i32 = 1000;

/// How to choose tokens, when to end, how to answer.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct SamplingFields {
    #[serde(flatten)]
    pub(crate) params: ParamFields,
    #[serde(flatten)]
    pub(crate) tokens: TokenFields,
    #[serde(flatten)]
    pub(crate) formats: FormatFields,
    #[serde(flatten)]
    #[schema(ignore)]
    pub(crate) other: OtherFields<OpenAiFields>,
    /// Tokens to generate at most.
    max_tokens: Option<u32>,
    /// Extension: another name of `max_tokens`; a negative number goes to the end of the context.
    n_predict: Option<i64>,
    /// Extension: how many of the last tokens penalties look at; -1 for all, which is the default.
    #[schema(minimum = -1)]
    repeat_last_n: Option<i64>,
    /// Added to logits: token ids, as strings, to numbers from -100 to 100.
    pub(crate) logit_bias: Option<HashMap<String, f32>>,
    /// The same seed and request give the same answer again.
    pub(crate) seed: Option<i64>,
    /// Ends the text before this string, or the first of these.
    pub(crate) stop: Option<OneOrMany>,
    /// Extension: goes on after the tokens by which the model ends its text.
    pub(crate) ignore_eos: Option<bool>,
    /// Extension: whether guesses may speed it up, where the server makes any; they never change the answer.
    pub(crate) speculate: Option<bool>,
    /// Continuations of each prompt.
    #[schema(minimum = 1, maximum = 128)]
    pub(crate) n: Option<u32>,
    /// Sends the answer in pieces as it is generated, as server-sent events.
    pub(crate) stream: Option<bool>,
    /// What a streamed answer carries.
    pub(crate) stream_options: Option<StreamOptions>,
    /// Extension: lower goes first; one step is worth some seconds of waiting.
    #[schema(minimum = -1000, maximum = 1000)]
    pub(crate) priority: Option<i32>,
    /// Extension: only requests with the same salt share cached prefixes.
    pub(crate) cache_salt: Option<String>,
}

/// What a streamed answer carries.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct StreamOptions {
    /// A last piece without choices has the usage of the whole request.
    #[serde(default)]
    pub(crate) include_usage: Option<bool>,
    /// Not offered; only false.
    #[serde(default)]
    continuous_usage_stats: Option<bool>,
}

/// A string or a list of strings.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl SamplingFields {
    /// What to generate.
    ///
    /// Errors: the field that is out of range, or that is not offered.
    pub(crate) fn plan(&self, lease: &Lease, caller: Caller, endpoint: Endpoint) -> Result<Plan> {
        self.other.check(endpoint)?;
        let tokens = &self.tokens;
        let info = lease.model.engine.client().info();
        let mut plan = Plan {
            sampling: self.sampling(&lease.model.sampling)?,
            max_tokens: self.max_tokens()?,
            n: self.n()?,
            stops: self.stops()?,
            include_stops: tokens.include_stop_str_in_output.unwrap_or(false),
            stop_tokens: tokens.stop_token_ids.clone().unwrap_or_default(),
            min_tokens: tokens.min_tokens.unwrap_or(0) as usize,
            kept_prompt_tokens: tokens.kept_prompt_tokens(info.max_seq_len().saturating_sub(1))?,
            return_token_ids: tokens.return_token_ids.unwrap_or(false),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            speculate: self.speculate,
            prompt_logprobs: check_logprobs("prompt_logprobs", tokens.prompt_logprobs)?,
            priority: self.engine_priority()?,
            cache_salt: lease.app.cache_salt(caller, self.cache_salt.as_deref()),
            ..Plan::new(lease, caller)
        };
        if plan.prompt_logprobs.is_some() && self.streaming()?.is_some() {
            let message = "prompt_logprobs are not streamed; leave out one of prompt_logprobs and stream";
            return Err(ApiError::invalid_param("prompt_logprobs", message));
        }
        let tokenizer = lease.model.engine.tokenizer();
        if tokens.skip_special_tokens == Some(false) {
            let n_tokens = info.vocab_size.min(tokenizer.vocab_size()) as u32;
            plan.shown = (0..n_tokens).filter(|&id| tokenizer.is_special(id)).collect();
        }
        let eos = if plan.ignore_eos { &[][..] } else { tokenizer.eos_ids() };
        let rules = TokenRules {
            allowed: tokens.allowed_token_ids.as_deref(),
            min_tokens: plan.min_tokens,
            ends: &[eos, &plan.stop_tokens].concat(),
            vocab_size: info.vocab_size,
        };
        plan.constraint = rules.constraint()?;
        Ok(plan)
    }

    /// The fields as the engine takes them, over the server's `defaults`.
    ///
    /// Errors: the field that is out of range.
    fn sampling(&self, defaults: &SamplingParams) -> Result<SamplingParams> {
        let defaults = SamplingParams {
            logit_bias: self.biases()?,
            seed: self.seed.map(|seed| seed as u64),
            penalty_window: self.penalty_window(defaults)?,
            ..defaults.clone()
        };
        Ok(self.params.0.over(defaults).map_err(realizar_engine::Error::from)?)
    }

    fn biases(&self) -> Result<Vec<(u32, f32)>> {
        let mut biases = Vec::new();
        for (id, &bias) in self.logit_bias.iter().flatten() {
            let id = id.trim().parse().map_err(|_| {
                ApiError::invalid_param(
                    "logit_bias",
                    format!("logit_bias names {id:?}, which is not a token id"),
                )
            })?;
            biases.push((id, bias));
        }
        // The order of a JSON object means nothing, and the same request must give the same answer.
        biases.sort_by_key(|&(id, _)| id);
        biases.dedup_by_key(|&mut (id, _)| id);
        Ok(biases)
    }

    fn penalty_window(&self, defaults: &SamplingParams) -> Result<Option<usize>> {
        match self.repeat_last_n {
            None => Ok(defaults.penalty_window),
            Some(-1) => Ok(None),
            Some(n @ 0..) => Ok(Some(n as usize)),
            Some(n) => {
                let message = format!("repeat_last_n is {n} but must be -1 or at least 0");
                Err(ApiError::invalid_param("repeat_last_n", message))
            }
        }
    }

    /// Tokens to generate at most.
    ///
    /// Errors: two names of the field with two values.
    fn max_tokens(&self) -> Result<Option<usize>> {
        let n_predict = self.n_predict.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        match (self.max_tokens.map(|n| n as usize), n_predict) {
            (Some(n), Some(other)) if n != other => {
                Err(ApiError::invalid_param("n_predict", "max_tokens and n_predict differ"))
            }
            (n, other) => Ok(n.or(other)),
        }
    }

    /// Continuations of each prompt.
    fn n(&self) -> Result<u32> {
        match self.n.unwrap_or(1) {
            n @ 1..=MAX_N => Ok(n),
            n => Err(ApiError::invalid_param("n", format!("n is {n} but must be between 1 and {MAX_N}"))),
        }
    }

    fn stops(&self) -> Result<StopStrings> {
        let stops = match &self.stop {
            None => Vec::new(),
            Some(OneOrMany::One(stop)) => vec![stop.clone()],
            Some(OneOrMany::Many(stops)) => stops.clone(),
        };
        stop_strings("stop", &stops)
    }

    /// The engine's priority, of which the higher goes first.
    fn engine_priority(&self) -> Result<i32> {
        let p = self.priority.unwrap_or(0);
        if (-MAX_PRIORITY..=MAX_PRIORITY).contains(&p) {
            return Ok(-p);
        }
        let message = format!("priority is {p} but must be between -{MAX_PRIORITY} and {MAX_PRIORITY}");
        Err(ApiError::invalid_param("priority", message))
    }

    /// Whether the answer is streamed, and whether its usage is.
    ///
    /// Errors: `stream_options` without `stream`.
    pub(crate) fn streaming(&self) -> Result<Option<StreamOptions>> {
        let stream = self.stream.unwrap_or(false);
        if !stream && self.stream_options.is_some() {
            let message = "stream_options are only allowed when stream is true";
            return Err(ApiError::invalid_param("stream_options", message));
        }
        if self.stream_options.is_some_and(|o| o.continuous_usage_stats == Some(true)) {
            let message = "continuous_usage_stats is not supported; include_usage sends the usage at the end";
            return Err(ApiError::invalid_param("stream_options", message).code("unsupported"));
        }
        Ok(stream.then(|| self.stream_options.unwrap_or_default()))
    }
}

/// `what` asks for this many of the likeliest tokens.
///
/// Errors: more than the server gives.
pub(crate) fn check_logprobs(what: &'static str, n: Option<u32>) -> Result<Option<usize>> {
    match n.map(|n| n as usize) {
        Some(n) if n > MAX_LOGPROBS => {
            Err(ApiError::invalid_param(what, format!("{what} is {n} but must be at most {MAX_LOGPROBS}")))
        }
        n => Ok(n),
    }
}
