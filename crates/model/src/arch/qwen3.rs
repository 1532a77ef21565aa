//! Qwen 3, and the text part of Qwen3-VL: Llama with normalized query and key heads.

use super::{ArchSpec, INV_FREQ, VISUAL, qwen2};
use crate::Result;
use crate::config::{ModelConfig, QkNorm};
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "qwen3",
    gguf: &["qwen3", "qwen3vl"],
    hf: &["Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration"],
    configure,
    ignored: &[INV_FREQ, VISUAL[0], VISUAL[1]],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "qwen3", RopeStyle::Half)?;
    c.each_attention(|a| a.qk_norm = Some(QkNorm::PerHead));
    c.read_activation(h, Activation::Silu)?;
    qwen2::slide(&mut c, h, false)?;
    Ok(c)
}
