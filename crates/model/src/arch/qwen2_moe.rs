//! Qwen 1.5 and 2 with a mixture of experts: a shared expert with a gate beside them.

use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::{ModelConfig, Presence, SharedExpert};
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "qwen2moe",
    gguf: &["qwen2moe"],
    hf: &["Qwen2MoeForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "qwen2moe", RopeStyle::Half)?;
    c.read_activation(h, Activation::Silu)?;
    let has_bias = h.is_gguf() || h.hf_bool("qkv_bias")?.unwrap_or(true);
    c.each_attention(|a| a.qkv_bias = if has_bias { Presence::Needed } else { Presence::Absent });
    if !h.is_gguf() && h.hf_bool("use_sliding_window")?.unwrap_or(false) {
        let n = h.hf_usize("max_window_layers")?.unwrap_or(28);
        c.slide(h, Some(h.usize("sliding_window")?.unwrap_or(4096)), |i| i.is_multiple_of(2) && i < n)?;
    }
    add_experts(&mut c, h, false)?;
    add_shared_expert(&mut c, h, 5632)?;
    Ok(c)
}

/// The expert that all tokens use beside theirs, with a gate; `width` is its own where `config.json` does not state one.
pub(super) fn add_shared_expert(c: &mut ModelConfig, h: &Hyper<'_>, width: usize) -> Result<()> {
    let intermediate_size = match h.usize("shared_expert_intermediate_size")? {
        Some(n) => n,
        // Old GGUF files do not state it.
        None if h.is_gguf() => h.need_usize("intermediate_size")?,
        None => width,
    };
    if intermediate_size > 0 {
        c.each_experts(|e| e.shared = Some(SharedExpert::new(intermediate_size, true)));
    }
    Ok(())
}

/// Qwen states which layers have experts in two ways. GGUF says neither, nor whether weights are normalized: `norm_topk` is what the
/// published models do.
pub(super) fn add_experts(c: &mut ModelConfig, h: &Hyper<'_>, norm_topk: bool) -> Result<()> {
    let norm_topk = h.bool("norm_topk")?.unwrap_or(h.is_gguf() && norm_topk);
    let every = if h.is_gguf() { 1 } else { h.hf_usize("decoder_sparse_step")?.unwrap_or(1) };
    let dense = if h.is_gguf() { None } else { h.hf_f32s("mlp_only_layers")? }.unwrap_or_default();
    if every == 0 {
        return Err(h.invalid("decoder_sparse_step is 0"));
    }
    c.add_experts(h, norm_topk, |i| !dense.contains(&(i as f32)) && (i + 1).is_multiple_of(every))
}
