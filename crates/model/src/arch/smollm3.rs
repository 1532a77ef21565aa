//! SmolLM3 (Hugging Face 2025): Llama without rotation in every fourth layer.

use super::{ArchSpec, INV_FREQ, llama};
use crate::Result;
use crate::config::ModelConfig;
use crate::hyper::Hyper;

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "smollm3",
    gguf: &["smollm3"],
    hf: &["SmolLM3ForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = llama::base(h, "smollm3")?;
    if !h.is_gguf() && h.f32("rope_theta")?.is_none() {
        c.ropes[0].theta = 2e6;
    }
    let every = if h.is_gguf() { None } else { h.hf_usize("no_rope_layer_interval")? }.unwrap_or(4);
    // 1 where a layer has rotation.
    let listed = if h.is_gguf() { None } else { h.hf_f32s("no_rope_layers")? };
    if let Some(listed) = listed.as_ref().filter(|listed| listed.len() != c.layers.len()) {
        return Err(h.invalid(format!(
            "no_rope_layers has {} entries for {} layers",
            listed.len(),
            c.layers.len()
        )));
    }
    if every == 0 {
        return Err(h.invalid("no_rope_layer_interval is 0"));
    }
    let turns = |i: usize| match &listed {
        Some(listed) => listed[i] != 0.0,
        None => !(i + 1).is_multiple_of(every),
    };
    c.each_attention_by_layer(|i, a| a.rope = turns(i).then_some(0));
    if !h.is_gguf() && h.hf_bool("use_sliding_window")?.unwrap_or(false) {
        c.slide(h, h.usize("sliding_window")?, |i| !turns(i))?;
    }
    Ok(c)
}
