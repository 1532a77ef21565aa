//! GPT-2 (Radford et al. 2019): learned positions, LayerNorm, one matrix for q, k and v.

use super::{ArchSpec, Ignored};
use crate::Result;
use crate::config::{ModelConfig, Presence};
use crate::hyper::Hyper;
use realizar_compute::{Activation, NormKind, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "gpt2",
    gguf: &["gpt2"],
    hf: &["GPT2LMHeadModel"],
    configure,
    ignored: &[
        Ignored { pattern: "*.attn.bias", reason: "a causal mask" },
        Ignored { pattern: "*.attn.masked_bias", reason: "a causal mask" },
    ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "gpt2", RopeStyle::Half)?;
    if !h.is_gguf() {
        if h.hf_bool("scale_attn_by_inverse_layer_idx")?.unwrap_or(false) {
            return Err(h.unsupported("gpt2 with scale_attn_by_inverse_layer_idx is not supported"));
        }
        if !h.hf_bool("scale_attn_weights")?.unwrap_or(true) {
            c.each_attention(|a| a.scale = 1.0);
        }
    }
    c.learned_positions = true;
    c.ropes.clear();
    (c.norm_kind, c.norm_bias) = (NormKind::Layer, true);
    c.without_gates();
    c.read_activation(h, Activation::GeluTanh)?;
    c.each_attention(|a| (a.rope, a.qkv_bias, a.o_bias) = (None, Presence::Needed, Presence::Needed));
    c.each_dense(|d| d.bias = Presence::Needed);
    // Hugging Face stores this architecture's matrices as [n_in, n_out].
    c.transposed = !h.is_gguf();
    Ok(c)
}
