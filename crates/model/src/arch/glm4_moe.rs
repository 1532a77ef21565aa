//! GLM-4.5, 4.6 and 4.7 (Zeng et al. 2025): dense layers first, then experts chosen by sigmoid with a shared one beside them.

use super::{ArchSpec, INV_FREQ};
use crate::config::{LayerNorms, ModelConfig, Presence, QkNorm, SharedExpert};
use crate::hyper::Hyper;
use crate::{Result, names};
use realizar_compute::{Activation, GroupScore, RopeStyle, RouterScores};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "glm4moe",
    gguf: &["glm4moe"],
    hf: &["Glm4MoeForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    if h.is_gguf() && h.source().metadata().get("glm4moe.rope.dimension_sections").is_some() {
        return Err(h.unsupported("GLM-4.5V, whose positions have sections, is not supported"));
    }
    let mut c = ModelConfig::base(h, "glm4moe", RopeStyle::Half)?;
    if !h.is_gguf() && h.f32("partial_rotary_factor")?.is_none() {
        c.ropes[0].dim /= 2;
    }
    c.read_activation(h, Activation::Silu)?;
    c.layers.iter_mut().for_each(|l| l.norms = LayerNorms::PRE_NAMED_POST_ATTENTION);
    // GGUF says by the weights alone whether queries and keys are normalized.
    let has_qk_norm = match h.is_gguf() {
        true => names::file_name(h.source(), "q_norm", Some(0), None, "weight").is_some(),
        false => h.hf_bool("use_qk_norm")?.unwrap_or(false),
    };
    c.each_attention(|a| {
        a.o_bias = Presence::Absent;
        a.qk_norm = has_qk_norm.then_some(QkNorm::PerHead);
    });
    let n_dense = h.usize("n_leading_dense_layers")?.unwrap_or(usize::from(!h.is_gguf()));
    c.add_experts(h, h.bool("norm_topk")?.unwrap_or(true), |i| i >= n_dense)?;
    c.read_router(h, RouterScores::Sigmoid, GroupScore::TopTwo)?;
    let n_shared = h.usize("n_shared_experts")?.unwrap_or(1);
    c.each_experts(|e| {
        e.selection_bias = Presence::Needed;
        let intermediate_size = e.intermediate_size.saturating_mul(n_shared);
        e.shared = (n_shared > 0).then_some(SharedExpert::new(intermediate_size, false));
    });
    Ok(c)
}
