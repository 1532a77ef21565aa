//! StarCoder 2 (BigCode 2024): LayerNorm, biases on all matrices, a feed-forward block without gate, a sliding window.

use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::{ModelConfig, Presence};
use crate::hyper::Hyper;
use realizar_compute::{Activation, NormKind, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "starcoder2",
    gguf: &["starcoder2"],
    hf: &["Starcoder2ForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "starcoder2", RopeStyle::Half)?;
    (c.norm_kind, c.norm_bias) = (NormKind::Layer, true);
    c.without_gates();
    c.read_activation(h, Activation::GeluTanh)?;
    let bias = match h.is_gguf() {
        true => Presence::Optional,
        false if h.hf_bool("use_bias")?.unwrap_or(true) => Presence::Needed,
        false => Presence::Absent,
    };
    c.each_attention(|a| (a.qkv_bias, a.o_bias) = (bias, bias));
    c.each_dense(|dense| dense.bias = bias);
    // GGUF does not state the window, which is the same in the published sizes; Granite Code has the same name and none.
    let published = h.is_gguf() && [30, 32, 40].contains(&c.layers.len());
    c.slide(h, h.usize("sliding_window")?.or(published.then_some(4096)), |_| true)?;
    Ok(c)
}
