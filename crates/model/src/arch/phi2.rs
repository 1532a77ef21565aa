//! Phi 1.5 and 2 (Li et al. 2023): attention and feed-forward side by side, LayerNorm, partial rotation.

use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::{ModelConfig, Presence};
use crate::hyper::Hyper;
use realizar_compute::{Activation, NormKind, RopeStyle};

pub(super) const SPEC: ArchSpec =
    ArchSpec { name: "phi2", gguf: &["phi2"], hf: &["PhiForCausalLM"], configure, ignored: &[INV_FREQ] };

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "phi2", RopeStyle::Half)?;
    if !h.is_gguf() {
        if h.hf_bool("qk_layernorm")?.unwrap_or(false) {
            return Err(h.unsupported("phi with qk_layernorm is not supported"));
        }
        if h.f32("partial_rotary_factor")?.is_none() {
            c.ropes[0].dim /= 2;
        }
    }
    (c.norm_kind, c.norm_bias) = (NormKind::Layer, true);
    for layer in &mut c.layers {
        layer.parallel = true;
        layer.norms.pre_ffn = None;
    }
    c.without_gates();
    c.read_activation(h, Activation::GeluTanh)?;
    c.each_attention(|a| (a.qkv_bias, a.o_bias) = (Presence::Needed, Presence::Needed));
    c.each_dense(|d| d.bias = Presence::Needed);
    c.lm_head_bias = Presence::Needed;
    Ok(c)
}
