//! Gemma 2 (Gemma team 2024): soft caps, alternating windows, norms before and after each block.

use super::ArchSpec;
use crate::Result;
use crate::config::ModelConfig;
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec =
    ArchSpec { name: "gemma2", gguf: &["gemma2"], hf: &["Gemma2ForCausalLM"], configure };

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    // Of the published sizes, only the one with 46 layers divides scores by the root of hidden_size / n_heads.
    let mut c = base(h, "gemma2", 46)?;
    c.attn_softcap = h.f32("attn_softcap")?.or(h.is_gguf().then_some(50.0));
    c.logit_softcap = h.f32("logit_softcap")?.or(h.is_gguf().then_some(30.0));
    let window = h.usize("sliding_window")?.unwrap_or(4096);
    c.slide(h, Some(window), |i| i.is_multiple_of(2))?;
    Ok(c)
}

/// What Gemma 2 and 3 share. GGUF does not state the scale of attention, which follows from `head_dim` but for one model of each
/// family, known by its number of layers.
pub(super) fn base(h: &Hyper<'_>, arch: &'static str, odd_one: usize) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, arch, RopeStyle::Half)?;
    c.embed_scale = (c.hidden_size as f32).sqrt();
    c.activation = Activation::GeluTanh;
    c.read_activation(h)?;
    c.post_norms = true;
    // Hugging Face stores norm weights as their difference from 1.
    c.norm_offset = if h.is_gguf() { 0.0 } else { 1.0 };
    let scalar = match h.f32("query_pre_attn_scalar")? {
        Some(s) => s,
        None if h.is_gguf() && c.layers.len() == odd_one => (c.hidden_size / c.heads.n_heads) as f32,
        None if h.is_gguf() => c.heads.head_dim as f32,
        None => 256.0,
    };
    if !(scalar.is_finite() && scalar > 0.0) {
        return Err(h.invalid(format!("query_pre_attn_scalar is {scalar}")));
    }
    c.attn_scale = 1.0 / scalar.sqrt();
    Ok(c)
}
