//! EmbeddingGemma (Gemma team 2025): Gemma 3 with attention in both directions and, after pooling, two matrices.

use super::encoder::{self, Classifier};
use super::{ArchSpec, INV_FREQ, gemma3};
use crate::Result;
use crate::config::ModelConfig;
use crate::hyper::Hyper;

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "gemma-embedding",
    gguf: &["gemma-embedding"],
    hf: &["Gemma3TextModel"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = gemma3::base(h, "gemma-embedding")?;
    if !h.is_gguf() && !h.hf_bool("use_bidirectional_attention")?.unwrap_or(false) {
        return Err(h.unsupported("Gemma3TextModel with causal attention is not supported"));
    }
    c.each_attention(|a| {
        a.causal = false;
        // Half of it on either side.
        a.window = a.window.map(|w| w / 2 + 1);
    });
    encoder::make(&mut c, h, Classifier::BERT)?;
    Ok(c)
}
