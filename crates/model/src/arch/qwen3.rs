//! Qwen 3, the text part of Qwen3-VL, Qwen3-Embedding and Qwen3-Reranker: Llama with normalized query and key heads.

use super::{ArchSpec, INV_FREQ, VISUAL, encoder, qwen2};
use crate::Result;
use crate::config::{ModelConfig, QkNorm};
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "qwen3",
    gguf: &["qwen3", "qwen3vl"],
    hf: &["Qwen3ForCausalLM", "Qwen3Model", "Qwen3VLForConditionalGeneration"],
    configure,
    ignored: &[INV_FREQ, VISUAL[0], VISUAL[1]],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "qwen3", RopeStyle::Half)?;
    c.each_attention(|a| a.qk_norm = Some(QkNorm::PerHead));
    c.read_activation(h, Activation::Silu)?;
    qwen2::slide(&mut c, h, false)?;
    // Qwen3-Embedding and Qwen3-Reranker.
    encoder::make_if_stated(&mut c, h)?;
    Ok(c)
}
