//! Qwen3-Next: Qwen 3.5's layers with experts, but other tensors for the gated delta rule.

use super::{ArchSpec, INV_FREQ, qwen2_moe, qwen35};
use crate::Result;
use crate::config::ModelConfig;
use crate::hyper::Hyper;
use realizar_compute::HeadOrder;

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "qwen3next",
    gguf: &["qwen3next"],
    hf: &["Qwen3NextForCausalLM"],
    configure,
    ignored: &[INV_FREQ, qwen35::DRAFTS[0], qwen35::DRAFTS[1]],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = qwen35::hybrid(h, "qwen3next", HeadOrder::Grouped)?;
    qwen2_moe::add_experts(&mut c, h, true)?;
    let norm_topk = h.bool("norm_topk")?.unwrap_or(true);
    c.each_experts(|e| e.router.norm_topk = norm_topk);
    qwen2_moe::add_shared_expert(&mut c, h, 512)?;
    Ok(c)
}
