//! MiniMax-M2 and M2.1 (2025): experts chosen by sigmoid, queries and keys normalized over all heads together.

use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::{ModelConfig, Presence, QkNorm};
use crate::hyper::Hyper;
use realizar_compute::{Activation, GroupScore, RopeStyle, RouterScores};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "minimax-m2",
    gguf: &["minimax-m2"],
    hf: &["MiniMaxM2ForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "minimax-m2", RopeStyle::Half)?;
    if h.f32("rope_theta")?.is_none() {
        c.ropes[0].theta = 5e6;
    }
    c.read_activation(h, Activation::Silu)?;
    c.each_attention(|a| a.qk_norm = Some(QkNorm::FullWidth));
    c.add_experts(h, true, |_| true)?;
    c.read_router(h, RouterScores::Sigmoid, GroupScore::TopTwo)?;
    c.each_experts(|e| e.selection_bias = Presence::Needed);
    Ok(c)
}
