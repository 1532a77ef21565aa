//! OLMo 3 (OLMo team 2025): OLMo 2 with a window in three of four layers; only the rotation of the others is stretched.

use super::{ArchSpec, INV_FREQ, local_theta, olmo2};
use crate::Result;
use crate::config::ModelConfig;
use crate::hyper::Hyper;
use crate::rope::{RopeConfig, RopeScaling};

/// GGUF files have OLMo 2's name, and a sliding window.
pub(super) const SPEC: ArchSpec =
    ArchSpec { name: "olmo3", gguf: &[], hf: &["Olmo3ForCausalLM"], configure, ignored: &[INV_FREQ] };

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = olmo2::base(h, "olmo3")?;
    if !h.is_gguf() && h.f32("rope_theta")?.is_none() {
        c.ropes[0].theta = 500_000.0;
    }
    let theta = local_theta(h)?.unwrap_or(c.ropes[0].theta);
    c.ropes.push(RopeConfig { theta, scaling: RopeScaling::None, ..c.ropes[0].clone() });
    let window = h.usize("sliding_window")?.unwrap_or(4096);
    c.slide(h, Some(window), |i| !(i + 1).is_multiple_of(4))?;
    c.each_attention(|a| a.rope = Some(usize::from(a.window.is_some())));
    Ok(c)
}
