//! Llama 1 to 3.3 (Touvron et al. 2023) and what shares its GGUF name: Mistral and Mixtral.

use super::{ArchSpec, INV_FREQ, Ignored, mistral, mixtral};
use crate::Result;
use crate::config::ModelConfig;
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "llama",
    gguf: &["llama"],
    hf: &["LlamaForCausalLM"],
    configure,
    ignored: &[INV_FREQ, Ignored { pattern: "blk.*.attn_rot_embd*", reason: INV_FREQ.reason }],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    if h.is_gguf() && h.usize("n_experts")?.unwrap_or(0) > 0 {
        return (mixtral::SPEC.configure)(h);
    }
    if h.is_gguf() && h.usize("sliding_window")?.unwrap_or(0) > 0 {
        return (mistral::SPEC.configure)(h);
    }
    base(h, "llama")
}

/// The part that all three share.
pub(super) fn base(h: &Hyper<'_>, arch: &'static str) -> Result<ModelConfig> {
    // GGUF's converters reorder the rows of q and k so that pairs lie side by side.
    let style = if h.is_gguf() { RopeStyle::Interleaved } else { RopeStyle::Half };
    let mut c = ModelConfig::base(h, arch, style)?;
    c.read_activation(h, Activation::Silu)?;
    Ok(c)
}
