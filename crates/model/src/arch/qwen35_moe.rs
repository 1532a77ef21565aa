//! Qwen 3.5 and 3.6 with a mixture of experts in every layer, and a shared expert with a gate beside them.

use super::{ArchSpec, qwen2_moe, qwen35};
use crate::Result;
use crate::config::ModelConfig;
use crate::hyper::Hyper;
use realizar_compute::HeadOrder;

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "qwen35moe",
    gguf: &["qwen35moe"],
    hf: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
    configure,
    ignored: qwen35::IGNORED,
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = qwen35::hybrid(h, "qwen35moe", HeadOrder::Tiled)?;
    // Weights are always normalized.
    c.add_experts(h, true, |_| true)?;
    qwen2_moe::add_shared_expert(&mut c, h, 512)?;
    Ok(c)
}
