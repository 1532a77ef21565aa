//! Qwen 2 and 2.5, and the text part of Qwen2-VL and Qwen2.5-VL: Llama with biases on q, k and v.

use super::{ArchSpec, INV_FREQ, VISUAL};
use crate::Result;
use crate::config::{ModelConfig, Presence};
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "qwen2",
    gguf: &["qwen2", "qwen2vl"],
    hf: &["Qwen2ForCausalLM", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"],
    configure,
    ignored: &[INV_FREQ, VISUAL[0], VISUAL[1]],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "qwen2", RopeStyle::Half)?;
    c.read_activation(h, Activation::Silu)?;
    c.each_attention(|a| a.qkv_bias = Presence::Needed);
    slide(&mut c, h, false)?;
    Ok(c)
}

/// Qwen states a window and whether to use it; where it is used, the first `max_window_layers` see everything.
pub(super) fn slide(c: &mut ModelConfig, h: &Hyper<'_>, all_layers: bool) -> Result<()> {
    if h.is_gguf() || !h.hf_bool("use_sliding_window")?.unwrap_or(false) {
        return Ok(());
    }
    let full = if all_layers { 0 } else { h.hf_usize("max_window_layers")?.unwrap_or(28) };
    c.slide(h, Some(h.usize("sliding_window")?.unwrap_or(4096)), |i| i >= full)
}
