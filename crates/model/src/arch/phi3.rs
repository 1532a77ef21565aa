//! Phi 3, 3.5 and 4-mini (Abdin et al. 2024): Llama with fused matrices and longrope.

use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::ModelConfig;
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec =
    ArchSpec { name: "phi3", gguf: &["phi3"], hf: &["Phi3ForCausalLM"], configure, ignored: &[INV_FREQ] };

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "phi3", RopeStyle::Half)?;
    c.read_activation(h, Activation::Silu)?;
    c.slide(h, h.usize("sliding_window")?, |_| true)?;
    Ok(c)
}
