//! Granite 3 and 4 dense (IBM 2024): Llama with factors on embeddings, on what blocks add, on scores and on logits.

use super::{ArchSpec, INV_FREQ, llama};
use crate::Result;
use crate::config::ModelConfig;
use crate::hyper::Hyper;

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "granite",
    gguf: &["granite"],
    hf: &["GraniteForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    if h.is_gguf() && h.source().metadata().get("granite.deepstack_mapping").is_some() {
        return Err(
            h.unsupported("Granite 4 Vision, whose image features enter several layers, is not supported")
        );
    }
    let mut c = llama::base(h, "granite")?;
    read_factors(&mut c, h)?;
    Ok(c)
}

/// The factors of the family, and whether positions are told.
pub(super) fn read_factors(c: &mut ModelConfig, h: &Hyper<'_>) -> Result<()> {
    let factor = |key: &str| match h.f32(key)? {
        Some(f) if !(f.is_finite() && f > 0.0) => Err(h.invalid(format!("{key} is {f}"))),
        f => Ok(f),
    };
    c.embed_scale = factor("embed_scale")?.unwrap_or(1.0);
    c.residual_scale = factor("residual_scale")?.unwrap_or(1.0);
    c.logit_scale = 1.0 / factor("logit_scale")?.unwrap_or(1.0);
    // In `config.json` a missing factor is 1, in GGUF it is the usual one.
    if let Some(scale) = factor("attention_scale")?.or((!h.is_gguf()).then_some(1.0)) {
        c.each_attention(|a| a.scale = scale);
    }
    // How GGUF says that positions are not told.
    let finetuned = format!("{}.rope.scaling.finetuned", c.arch);
    if h.is_gguf() && h.source().metadata().get_bool(&finetuned)? == Some(false) {
        c.each_attention(|a| a.rope = None);
    }
    Ok(())
}
