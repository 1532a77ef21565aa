//! Mistral (Jiang et al. 2023): Llama with a sliding window on all layers; Ministral of 2024 lists the layers.

use super::{ArchSpec, INV_FREQ, llama};
use crate::Result;
use crate::config::ModelConfig;
use crate::hyper::Hyper;

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "mistral",
    gguf: &[],
    hf: &["MistralForCausalLM", "MinistralForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = llama::base(h, "mistral")?;
    c.slide(h, window(h)?, |_| true)?;
    Ok(c)
}

/// The window of Mistral and Mixtral. In `config.json` only an explicit null means that there is none, and only for Mistral does a
/// missing key mean 4096.
fn window(h: &Hyper<'_>) -> Result<Option<usize>> {
    let stated = h.usize("sliding_window")?;
    let null = h.source().metadata().config_json().is_none_or(|j| j.get("sliding_window").is_some());
    Ok(stated.or(if null { None } else { Some(4096) }))
}
