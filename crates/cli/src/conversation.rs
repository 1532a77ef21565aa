//! What a chat keeps, whichever model answers.

use anyhow::Result;
use realizar::{SamplingParams, TextParams};
use realizar_compute::sampling::SamplingOverrides;
use serde_json::{Value, json};

/// Messages, and what the person set.
pub(crate) struct Conversation {
    /// With the system message first if there is one.
    pub(crate) messages: Vec<Value>,
    /// What the person set, over what the model's files and the arguments say.
    pub(crate) overrides: SamplingOverrides,
    /// As `overrides`.
    pub(crate) seed: Option<u64>,
    /// As `overrides`.
    pub(crate) max_tokens: Option<usize>,
}

impl Conversation {
    pub(crate) fn new(system: Option<&str>) -> Self {
        Self {
            messages: system.iter().map(|s| json!({"role": "system", "content": s})).collect(),
            overrides: SamplingOverrides::default(),
            seed: None,
            max_tokens: None,
        }
    }

    /// `params` with what the person set.
    pub(crate) fn params(&self, params: &TextParams) -> Result<TextParams> {
        let sampling = SamplingParams { seed: self.seed.or(params.sampling.seed), ..params.sampling.clone() };
        Ok(TextParams {
            sampling: self.overrides.over(sampling)?,
            max_tokens: self.max_tokens.or(params.max_tokens),
            ..params.clone()
        })
    }
}
