//! GLM-4 of April 2025 (GLM-4-0414, GLM-Z1): norms before and after each block, gate and up in one matrix, half of each head turns.

use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::{LayerNorms, ModelConfig, Presence};
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec =
    ArchSpec { name: "glm4", gguf: &["glm4"], hf: &["Glm4ForCausalLM"], configure, ignored: &[INV_FREQ] };

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    if h.is_gguf() && h.source().metadata().get("glm4.rope.dimension_sections").is_some() {
        return Err(h.unsupported(
            "GLM-4V, whose GGUF files have GLM-4's name and positions in sections, is not supported",
        ));
    }
    let mut c = ModelConfig::base(h, "glm4", RopeStyle::Interleaved)?;
    if !h.is_gguf() && h.f32("partial_rotary_factor")?.is_none() {
        c.ropes[0].dim /= 2;
    }
    c.read_activation(h, Activation::Silu)?;
    c.layers.iter_mut().for_each(|l| l.norms = LayerNorms::PRE_AND_POST);
    // The output matrix of attention has none, whatever attention_bias says.
    c.each_attention(|a| a.o_bias = Presence::Absent);
    Ok(c)
}
