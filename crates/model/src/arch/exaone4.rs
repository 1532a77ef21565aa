//! EXAONE 4 (LG AI Research 2025): norms after the blocks and none before, normalized query and key heads. The large model has windows in
//! three of four layers, and no rotation in the others.

use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::{LayerNorms, ModelConfig, QkNorm};
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "exaone4",
    gguf: &["exaone4"],
    hf: &["Exaone4ForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "exaone4", RopeStyle::Half)?;
    c.read_activation(h, Activation::Silu)?;
    c.layers.iter_mut().for_each(|l| l.norms = LayerNorms::POST);
    // The large model, whose first GGUF files do not state its window.
    let large = h.is_gguf() && c.layers.len() == 64;
    let window = h.usize("sliding_window")?.or(large.then_some(4096)).filter(|&window| window > 0);
    c.slide(h, window, |i| !(i + 1).is_multiple_of(4))?;
    c.each_attention(|a| {
        a.qk_norm = Some(QkNorm::PerHead);
        a.rope = (window.is_none() || a.window.is_some()).then_some(0);
    });
    Ok(c)
}
