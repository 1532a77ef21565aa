//! Mistral Small 3.1 and later, Devstral, Magistral, and Ministral 3: Mistral without a window, often beside an image encoder. Ministral 3
//! stretches its context by YaRN and has queries that grow with their position.

use super::{ArchSpec, IMAGES, INV_FREQ, Ignored, llama};
use crate::Result;
use crate::config::{ModelConfig, Tied};
use crate::hyper::Hyper;
use realizar_compute::AttentionTemperature;

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "mistral3",
    gguf: &["mistral3"],
    hf: &["Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"],
    configure,
    ignored: &[
        INV_FREQ,
        Ignored { pattern: "vision_tower.*", reason: IMAGES },
        Ignored { pattern: "multi_modal_projector.*", reason: IMAGES },
        Ignored { pattern: "model.vision_tower.*", reason: IMAGES },
        Ignored { pattern: "model.multi_modal_projector.*", reason: IMAGES },
    ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    if !h.is_gguf() {
        let kind = h.source().metadata().get_str("text_config.model_type")?;
        if let Some(other) = kind.filter(|kind| !["mistral", "ministral3"].contains(kind)) {
            return Err(h.unsupported(format!(
                "its text part is of type {other:?}; Mistral Small 4 and Mistral Large 3 need latent attention, which is not supported"
            )));
        }
    }
    let mut c = llama::base(h, "mistral3")?;
    if h.source().metadata().get_str("text_config.model_type")?.is_some() {
        // The whole model and its text part may state different things. The weights say it.
        c.tied = Tied::IfAbsent;
    }
    c.slide(h, h.usize("sliding_window")?, |_| true)?;
    if let Some(beta) = h.f32("attention_temperature")?.filter(|&beta| beta != 0.0) {
        let period = match h.usize("rope_original_context")? {
            Some(n) => Some(n),
            None => h.hf_usize("rope_parameters.original_max_position_embeddings")?,
        };
        let period = period.filter(|&n| n > 0).ok_or_else(|| {
            h.invalid("queries grow with their position, but the context of the first training is not stated")
        })?;
        if !beta.is_finite() {
            return Err(h.invalid(format!("queries grow with their position by {beta}")));
        }
        c.each_attention(|a| a.temperature = Some(AttentionTemperature { beta, period }));
    }
    Ok(c)
}
