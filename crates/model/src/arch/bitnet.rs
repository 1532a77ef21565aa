//! BitNet b1.58 (Ma et al. 2024): ternary weights, a norm before each block's last matrix.

use super::ArchSpec;
use crate::Result;
use crate::config::ModelConfig;
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec =
    ArchSpec { name: "bitnet", gguf: &["bitnet", "bitnet-b1.58"], hf: &["BitNetForCausalLM"], configure };

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "bitnet", RopeStyle::Half)?;
    if h.is_gguf() {
        if h.source().metadata().get_str("general.architecture")? == Some("bitnet-b1.58") {
            c.activation = Activation::ReluSquared;
        }
        c.always_tied = true;
    } else {
        c.activation = Activation::ReluSquared;
        if h.f32("rope_theta")?.is_none() {
            c.ropes[0].theta = 500_000.0;
        }
    }
    c.read_activation(h)?;
    c.sub_norms = true;
    Ok(c)
}
