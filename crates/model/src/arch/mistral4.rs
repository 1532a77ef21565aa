//! Mistral Small 4: latent attention with queries that grow with their position, and experts in all layers.

use super::{ArchSpec, deepseek2, mistral3};
use crate::Result;
use crate::config::{ModelConfig, Tied};
use crate::hyper::Hyper;
use realizar_compute::GroupScore;

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "mistral4",
    gguf: &["mistral4"],
    hf: &["Mistral4ForCausalLM"],
    configure,
    ignored: mistral3::SPEC.ignored,
};

/// How fast queries grow. GGUF files leave it out.
const TEMPERATURE: f32 = 0.1;

/// Also of the text part of `Mistral3ForConditionalGeneration`, where that is of this kind.
pub(super) fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let temperature = h.is_gguf().then_some(TEMPERATURE);
    let mut c = deepseek2::base(h, "mistral4", GroupScore::TopTwo, temperature)?;
    if h.source().metadata().get_str("text_config.model_type")?.is_some() {
        // The whole model and its text part may state different things. The weights say it.
        c.tied = Tied::IfAbsent;
    }
    Ok(c)
}
