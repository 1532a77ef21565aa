//! Qwen 3 with a mixture of experts.

use super::{ArchSpec, INV_FREQ, qwen2, qwen2_moe};
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
    qwen2_moe::add_experts(&mut c, h, true)?;
    Ok(c)
}
