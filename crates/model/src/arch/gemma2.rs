//! Gemma 2 (Gemma team 2024): soft caps, alternating windows, norms before and after each block.

use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::{LayerNorms, ModelConfig};
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "gemma2",
    gguf: &["gemma2"],
    hf: &["Gemma2ForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    // Of the published sizes, only the one with 46 layers divides scores by the root of hidden_size / n_heads.
    let mut c = base(h, "gemma2", 46)?;
    let softcap = h.f32("attn_softcap")?.or(h.is_gguf().then_some(50.0));
    c.each_attention(|a| a.softcap = softcap);
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
    c.read_activation(h, Activation::GeluTanh)?;
    c.layers.iter_mut().for_each(|l| l.norms = LayerNorms::PRE_AND_POST);
    // Hugging Face stores norm weights as their difference from 1.
    c.norm_offset = if h.is_gguf() { 0.0 } else { 1.0 };
    let stated = h.f32("query_pre_attn_scalar")?.or((!h.is_gguf()).then_some(256.0));
    if let Some(scalar) = stated.filter(|s| !(s.is_finite() && *s > 0.0)) {
        return Err(h.invalid(format!("query_pre_attn_scalar is {scalar}")));
    }
    let (hidden_size, is_odd_one) = (c.hidden_size, c.layers.len() == odd_one);
    c.each_attention(|a| {
        let usual = if is_odd_one { hidden_size / a.heads.n_heads } else { a.heads.head_dim };
        a.scale = 1.0 / stated.unwrap_or(usual as f32).sqrt();
    });
    Ok(c)
}
