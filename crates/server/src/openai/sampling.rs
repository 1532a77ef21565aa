//! What chat and text requests have in common: how to choose tokens, when to end, how to answer.

use super::{FormatFields, OtherFields, ParamFields, TokenFields};
use crate::error::{ApiError, Result};
use realizar_engine::SamplingParams;
use serde::Deserialize;
use std::collections::HashMap;
use utoipa::ToSchema;

/// Continuations of one prompt at most.
pub(crate) const MAX_N: u32 = 128;
/// Likeliest tokens that may be asked for at each place.
pub(crate) const MAX_LOGPROBS: usize = 20;
/// Stop strings of a request at most.
const MAX_STOPS: usize = 64;
/// Bytes of a request's stop strings together at most.
const MAX_STOP_BYTES: usize = 64 << 10;
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
    pub(crate) other: OtherFields,
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
    /// The fields as the engine takes them, over the server's `defaults`.
    ///
    /// Errors: the field that is out of range.
    pub(crate) fn sampling(&self, defaults: &SamplingParams) -> Result<SamplingParams> {
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
    pub(crate) fn max_tokens(&self) -> Result<Option<usize>> {
        let n_predict = self.n_predict.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        match (self.max_tokens.map(|n| n as usize), n_predict) {
            (Some(n), Some(other)) if n != other => {
                Err(ApiError::invalid_param("n_predict", "max_tokens and n_predict differ"))
            }
            (n, other) => Ok(n.or(other)),
        }
    }

    /// Continuations of each prompt.
    pub(crate) fn n(&self) -> Result<u32> {
        match self.n.unwrap_or(1) {
            n @ 1..=MAX_N => Ok(n),
            n => Err(ApiError::invalid_param("n", format!("n is {n} but must be between 1 and {MAX_N}"))),
        }
    }

    pub(crate) fn stops(&self) -> Result<Vec<String>> {
        let stops = match &self.stop {
            None => Vec::new(),
            Some(OneOrMany::One(stop)) => vec![stop.clone()],
            Some(OneOrMany::Many(stops)) => stops.clone(),
        };
        if stops.iter().any(String::is_empty) {
            return Err(realizar_engine::Error::EmptyStop.into());
        }
        if stops.len() > MAX_STOPS {
            let message = format!("there are {} stop strings but at most {MAX_STOPS} are taken", stops.len());
            return Err(ApiError::invalid_param("stop", message));
        }
        let n_bytes: usize = stops.iter().map(String::len).sum();
        if n_bytes > MAX_STOP_BYTES {
            let message =
                format!("the stop strings have {n_bytes} bytes but at most {MAX_STOP_BYTES} are taken");
            return Err(ApiError::invalid_param("stop", message));
        }
        Ok(stops)
    }

    /// The engine's priority, of which the higher goes first.
    pub(crate) fn engine_priority(&self) -> Result<i32> {
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
