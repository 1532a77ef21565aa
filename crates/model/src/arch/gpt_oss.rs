//! gpt-oss (OpenAI 2025): experts with biases and a clamped SwiGLU, attention sinks, a window in every second layer.

use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::{LayerNorms, ModelConfig, Presence};
use crate::hyper::Hyper;
use crate::rope::RopeScaling;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "gpt-oss",
    gguf: &["gpt-oss"],
    hf: &["GptOssForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "gpt-oss", RopeStyle::Half)?;
    if h.f32("rope_theta")?.is_none() {
        c.ropes[0].theta = 150_000.0;
    }
    // GGUF does not state it.
    if let (true, RopeScaling::Yarn { truncate, .. }) = (h.is_gguf(), &mut c.ropes[0].scaling) {
        *truncate = false;
    }
    let stated = |key| if h.is_gguf() { Ok(None) } else { h.hf_f32(key) };
    for (key, own) in [("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)] {
        if let Some(other) = stated(key)?.filter(|&x| x != own) {
            return Err(h.unsupported(format!("{key} is {other}, and only {own} is supported")));
        }
    }
    c.layers.iter_mut().for_each(|l| l.norms = LayerNorms::PRE_NAMED_POST_ATTENTION);
    c.slide(h, Some(h.usize("sliding_window")?.unwrap_or(128)), |i| i.is_multiple_of(2))?;
    c.each_attention(|a| {
        a.sinks = true;
        (a.qkv_bias, a.o_bias) = (Presence::Needed, Presence::Needed);
    });
    c.add_experts(h, true, |_| true)?;
    c.each_experts(|e| {
        e.activation = Activation::ClampedSwiglu;
        (e.router_bias, e.bias) = (Presence::Needed, Presence::Needed);
    });
    Ok(c)
}
