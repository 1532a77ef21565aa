//! ERNIE 4.5 dense (Baidu 2025): Llama whose neighbouring elements turn together.

use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::{ModelConfig, Presence};
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "ernie4_5",
    gguf: &["ernie4_5"],
    hf: &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    if h.is_gguf() && h.source().metadata().get("ernie4_5.rope.dimension_sections").is_some() {
        return Err(h.unsupported("positions in sections, as PaddleOCR-VL has them, are not supported"));
    }
    let mut c = ModelConfig::base(h, "ernie4_5", RopeStyle::Interleaved)?;
    if h.f32("rope_theta")?.is_none() {
        c.ropes[0].theta = 500_000.0;
    }
    c.read_activation(h, Activation::Silu)?;
    if !h.is_gguf() {
        let bias = if h.hf_bool("use_bias")?.unwrap_or(false) { Presence::Needed } else { Presence::Absent };
        c.each_attention(|a| (a.qkv_bias, a.o_bias) = (bias, bias));
        c.each_dense(|dense| dense.bias = bias);
    }
    Ok(c)
}
