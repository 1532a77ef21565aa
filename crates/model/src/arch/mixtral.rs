//! Mixtral (Jiang et al. 2024): Mistral with a mixture of experts in every layer.

use super::{ArchSpec, INV_FREQ, llama};
use crate::Result;
use crate::config::ModelConfig;
use crate::hyper::Hyper;

pub(super) const SPEC: ArchSpec =
    ArchSpec { name: "mixtral", gguf: &[], hf: &["MixtralForCausalLM"], configure, ignored: &[INV_FREQ] };

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = llama::base(h, "mixtral")?;
    if h.f32("rope_theta")?.is_none() {
        c.ropes[0].theta = 1e6;
    }
    c.slide(h, h.usize("sliding_window")?, |_| true)?;
    c.add_experts(h, true, |_| true)?;
    Ok(c)
}
