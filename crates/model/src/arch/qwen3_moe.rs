//! Qwen 3 with a mixture of experts.

use super::{ArchSpec, INV_FREQ, qwen2};
use crate::Result;
use crate::config::{ModelConfig, QkNorm};
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "qwen3moe",
    gguf: &["qwen3moe"],
    hf: &["Qwen3MoeForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "qwen3moe", RopeStyle::Half)?;
    c.each_attention(|a| a.qk_norm = Some(QkNorm::PerHead));
    c.read_activation(h, Activation::Silu)?;
    qwen2::slide(&mut c, h, true)?;
    // GGUF leaves the key out, and every published model of this architecture has it set.
    let norm_topk = h.bool("norm_topk")?.unwrap_or(h.is_gguf());
    let every = if h.is_gguf() { 1 } else { h.hf_usize("decoder_sparse_step")?.unwrap_or(1) };
    let dense = if h.is_gguf() { None } else { h.hf_f32s("mlp_only_layers")? }.unwrap_or_default();
    if every == 0 {
        return Err(h.invalid("decoder_sparse_step is 0"));
    }
    c.add_experts(h, norm_topk, |i| !dense.contains(&(i as f32)) && (i + 1).is_multiple_of(every))?;
    Ok(c)
}
