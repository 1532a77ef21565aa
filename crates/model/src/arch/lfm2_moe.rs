//! LFM2 with a mixture of experts (Liquid AI 2025): dense layers first, then experts chosen by sigmoid.

use super::{ArchSpec, INV_FREQ, lfm2};
use crate::Result;
use crate::config::{ModelConfig, Presence};
use crate::hyper::Hyper;
use realizar_compute::{GroupScore, RouterScores};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "lfm2moe",
    gguf: &["lfm2moe"],
    hf: &["Lfm2MoeForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = lfm2::base(h, "lfm2moe")?;
    let n_dense = h.usize("n_leading_dense_layers")?.unwrap_or(if h.is_gguf() { 0 } else { 2 });
    c.add_experts(h, h.bool("norm_topk")?.unwrap_or(true), |i| i >= n_dense)?;
    c.read_router(h, RouterScores::Sigmoid, GroupScore::TopTwo)?;
    let has_bias = h.is_gguf() || h.hf_bool("use_expert_bias")?.unwrap_or(true);
    c.each_experts(|e| e.selection_bias = if has_bias { Presence::Needed } else { Presence::Absent });
    Ok(c)
}
