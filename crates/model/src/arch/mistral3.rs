//! Mistral Small 3.1 and later, Devstral, Magistral, and Ministral 3: Mistral without a window, often beside an image encoder. Ministral 3
//! stretches its context by YaRN and has queries that grow with their position.

use super::{ArchSpec, IMAGES, INV_FREQ, Ignored, attention_temperature, llama, mistral4};
use crate::Result;
use crate::config::{ModelConfig, Tied};
use crate::hyper::Hyper;

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
        match kind {
            None | Some("mistral" | "ministral3") => {}
            Some("mistral4") => return mistral4::configure(h),
            Some(other) => return Err(h.unsupported(format!("its text part is of type {other:?}"))),
        }
    }
    let mut c = llama::base(h, "mistral3")?;
    if h.source().metadata().get_str("text_config.model_type")?.is_some() {
        // The whole model and its text part may state different things. The weights say it.
        c.tied = Tied::IfAbsent;
    }
    c.slide(h, h.usize("sliding_window")?, |_| true)?;
    let temperature = attention_temperature(h, None)?;
    c.each_attention(|a| a.temperature = temperature);
    Ok(c)
}
