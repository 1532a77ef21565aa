//! Gemma 1 and CodeGemma (Gemma team 2024): Llama with GELU, scaled embeddings and norm weights stored as their difference from 1.

use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::ModelConfig;
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec =
    ArchSpec { name: "gemma", gguf: &["gemma"], hf: &["GemmaForCausalLM"], configure, ignored: &[INV_FREQ] };

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "gemma", RopeStyle::Half)?;
    c.embed_scale = (c.hidden_size as f32).sqrt();
    c.norm_offset = if h.is_gguf() { 0.0 } else { 1.0 };
    c.read_activation(h, Activation::GeluTanh)?;
    // The first published files name the exact GELU and mean the approximation.
    c.each_dense(|dense| {
        if dense.activation == Activation::GeluErf {
            dense.activation = Activation::GeluTanh;
        }
    });
    Ok(c)
}
