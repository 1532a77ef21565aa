//! Jina Embeddings v2 (Günther et al. 2023): BERT with scores that fall with distance in place of positions, and gated feed-forward blocks.

use super::ArchSpec;
use super::bert::{UNUSED, base, with_biases};
use super::encoder::{self, Classifier};
use crate::Result;
use crate::config::{ModelConfig, Presence};
use crate::hyper::Hyper;
use crate::names;
use realizar_compute::Activation;

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "jina-bert-v2",
    gguf: &["jina-bert-v2"],
    hf: &["JinaBertModel", "JinaBertForMaskedLM"],
    configure,
    ignored: UNUSED,
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let normalizes_heads = names::file_name(h.source(), "q_norm", Some(0), None, "weight").is_some();
    if normalizes_heads {
        let what = "Jina Embeddings v2 with norms of queries and keys (jina-embeddings-v2-base-code)";
        return Err(h.unsupported(format!("{what} has a second norm in each layer, which is not supported")));
    }
    let mut c = base(h, "jina-bert-v2")?;
    with_biases(&mut c);
    let activation = match h.is_gguf() {
        true => Activation::GeluErf,
        false => {
            let positions = h.hf_str("position_embedding_type")?;
            if let Some(other) = positions.filter(|&kind| kind != "alibi") {
                return Err(h.unsupported(format!("positions of kind {other:?}")));
            }
            match h.hf_str("feed_forward_type")? {
                Some("geglu") => Activation::GeluErf,
                Some("reglu") => Activation::Relu,
                other => return Err(h.unsupported(format!("feed-forward blocks of type {other:?}"))),
            }
        }
    };
    // The gated matrices have none.
    c.each_dense(|d| (d.activation, d.bias) = (activation, Presence::Optional));
    c.ropes.clear();
    c.each_attention(|a| (a.rope, a.alibi) = (None, true));
    encoder::make(&mut c, h, Classifier::BERT)?;
    Ok(c)
}
