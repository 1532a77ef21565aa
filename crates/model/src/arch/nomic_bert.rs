//! Nomic Embed (Nussbaum et al. 2024): BERT with rotation, gated feed-forward blocks and without biases. Jina Embeddings v3: BERT with rotation.

use super::ArchSpec;
use super::bert::{UNUSED, base, with_biases};
use super::encoder::{self, Classifier};
use crate::Result;
use crate::config::{ModelConfig, Presence};
use crate::hyper::Hyper;
use realizar_compute::Activation;

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "nomic-bert",
    gguf: &["nomic-bert"],
    hf: &["NomicBertModel"],
    configure,
    ignored: UNUSED,
};

pub(super) const JINA_V3: ArchSpec = ArchSpec {
    name: "jina-bert-v3",
    gguf: &["jina-bert-v3"],
    hf: &["JinaEmbeddingsV3Model"],
    configure: configure_jina_v3,
    ignored: UNUSED,
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = base(h, "nomic-bert")?;
    if !h.is_gguf() {
        if h.hf_usize("moe_every_n_layers")?.is_some_and(|n| n > 0) {
            return Err(h.unsupported("nomic-bert with experts, which have no gates, is not supported"));
        }
        // Trained for fewer positions than it says it has.
        if let Some(trained) = h.hf_usize("max_trained_positions")?.filter(|&n| n > 0) {
            c.context_length = c.context_length.min(trained);
        }
    }
    c.read_activation(h, Activation::Silu)?;
    c.each_attention(|a| (a.qkv_bias, a.o_bias) = (Presence::Absent, Presence::Absent));
    c.each_dense(|d| d.bias = Presence::Absent);
    encoder::make(&mut c, h, Classifier::BERT)?;
    Ok(c)
}

fn configure_jina_v3(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = base(h, "jina-bert-v3")?;
    c.without_gates();
    c.read_activation(h, Activation::GeluErf)?;
    with_biases(&mut c);
    encoder::make(&mut c, h, Classifier::BERT)?;
    Ok(c)
}
