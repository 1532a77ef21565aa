//! Command R7B, Command A and Aya Expanse's successors (Cohere 2024): attention and feed-forward side by side, LayerNorm without bias, a
//! window in three of four layers and no rotation in the others.

use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::ModelConfig;
use crate::hyper::Hyper;
use realizar_compute::{Activation, NormKind, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "cohere2",
    gguf: &["cohere2"],
    hf: &["Cohere2ForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "cohere2", RopeStyle::Interleaved)?;
    c.read_activation(h, Activation::Silu)?;
    c.norm_kind = NormKind::Layer;
    for layer in &mut c.layers {
        layer.parallel = true;
        layer.norms.pre_ffn = None;
    }
    c.logit_scale = match h.f32("logit_scale")? {
        Some(scale) if !scale.is_finite() => return Err(h.invalid(format!("logit_scale is {scale}"))),
        scale => scale.unwrap_or(0.0625),
    };
    let every = match h.is_gguf() {
        true => h.gguf_usize_unless_array("attention.sliding_window_pattern")?,
        false => h.hf_usize("sliding_window_pattern")?,
    };
    let every = every.unwrap_or(4).max(1);
    let window = h.usize("sliding_window")?.unwrap_or(4096);
    c.slide(h, Some(window), |i| !(i + 1).is_multiple_of(every))?;
    c.each_attention(|a| a.rope = a.window.is_some().then_some(0));
    Ok(c)
}
