//! Seed-OSS (ByteDance Seed 2025): Llama with biases on q, k and v.

use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::{LayerNorms, ModelConfig, Presence};
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "seed_oss",
    gguf: &["seed_oss"],
    hf: &["SeedOssForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "seed_oss", RopeStyle::Half)?;
    c.read_activation(h, Activation::Silu)?;
    // GGUF calls the norm before the feed-forward block by the name of one after attention.
    let norms = LayerNorms { pre_ffn: Some("post_attn_norm"), ..LayerNorms::PRE };
    c.layers.iter_mut().for_each(|l| l.norms = norms);
    if !h.is_gguf() {
        let needed = |stated: bool| if stated { Presence::Needed } else { Presence::Absent };
        let qkv_bias = needed(h.hf_bool("attention_bias")?.unwrap_or(true));
        let o_bias = needed(h.hf_bool("attention_out_bias")?.unwrap_or(false));
        c.each_attention(|a| (a.qkv_bias, a.o_bias) = (qkv_bias, o_bias));
    }
    Ok(c)
}
