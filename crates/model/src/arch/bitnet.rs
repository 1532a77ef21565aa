//! BitNet b1.58 (Ma et al. 2024): ternary weights, a norm before each block's last matrix.

use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::{ModelConfig, Tied};
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "bitnet",
    gguf: &["bitnet", "bitnet-b1.58"],
    hf: &["BitNetForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "bitnet", RopeStyle::Half)?;
    if h.is_gguf() {
        c.tied = Tied::Always;
    } else if h.f32("rope_theta")?.is_none() {
        c.ropes[0].theta = 500_000.0;
    }
    let silu = h.source().metadata().get_str("general.architecture")? == Some("bitnet");
    c.read_activation(h, if silu { Activation::Silu } else { Activation::ReluSquared })?;
    c.each_attention(|a| a.sub_norm = true);
    c.each_dense(|d| d.sub_norm = true);
    Ok(c)
}
