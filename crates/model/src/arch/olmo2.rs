//! OLMo 2 (OLMo team 2025): norms after the blocks and none before, queries and keys normalized over all heads together.

use super::{ArchSpec, INV_FREQ, olmo3};
use crate::Result;
use crate::config::{LayerNorms, ModelConfig, QkNorm};
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec =
    ArchSpec { name: "olmo2", gguf: &["olmo2"], hf: &["Olmo2ForCausalLM"], configure, ignored: &[INV_FREQ] };

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    if h.is_gguf() && h.usize("sliding_window")?.is_some_and(|window| window > 0) {
        return (olmo3::SPEC.configure)(h);
    }
    base(h, "olmo2")
}

/// What OLMo 2 and 3 share.
pub(super) fn base(h: &Hyper<'_>, arch: &'static str) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, arch, RopeStyle::Half)?;
    c.read_activation(h, Activation::Silu)?;
    c.layers.iter_mut().for_each(|l| l.norms = LayerNorms::POST);
    c.each_attention(|a| a.qk_norm = Some(QkNorm::FullWidth));
    Ok(c)
}
