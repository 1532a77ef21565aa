//! BERT (Devlin et al. 2019), RoBERTa and XLM-RoBERTa: learned positions, norms of the residual after each block, attention in both
//! directions. Rerankers have a classifier of the first token; those with two token types tell the query from the document by them.

use super::encoder::{self, Classifier};
use super::{ArchSpec, Ignored};
use crate::Result;
use crate::config::{LayerNorms, ModelConfig, Presence};
use crate::hyper::Hyper;
use realizar_compute::{Activation, NormKind, RopeStyle};

/// What a masked language model has besides an encoder.
pub(super) const UNUSED: &[Ignored] = &[
    Ignored { pattern: "*pooler.dense.*", reason: "embeddings are pooled as their files say" },
    Ignored { pattern: "*embeddings.position_ids", reason: "positions count from 0" },
    Ignored { pattern: "cls.predictions.*", reason: "it only predicts masked tokens" },
    Ignored { pattern: "cls.seq_relationship.*", reason: "it only predicts the next sentence" },
    Ignored { pattern: "lm_head.*", reason: "it only predicts masked tokens" },
];

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "bert",
    gguf: &["bert"],
    hf: &[
        "BertModel",
        "BertForMaskedLM",
        "BertForSequenceClassification",
        "RobertaModel",
        "RobertaForMaskedLM",
        "RobertaForSequenceClassification",
        "XLMRobertaModel",
        "XLMRobertaForMaskedLM",
        "XLMRobertaForSequenceClassification",
        "CamembertModel",
    ],
    configure,
    ignored: UNUSED,
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = base(h, "bert")?;
    c.without_gates();
    c.read_activation(h, Activation::GeluErf)?;
    with_biases(&mut c);
    c.ropes.clear();
    c.each_attention(|a| a.rope = None);
    c.learned_positions = true;
    if !h.is_gguf() {
        if let Some(kind) = h.hf_str("position_embedding_type")?.filter(|&kind| kind != "absolute") {
            return Err(h.unsupported(format!("positions of kind {kind:?}")));
        }
        // RoBERTa counts positions from the one behind that of padding.
        if h.hf_str("model_type")?.is_some_and(|kind| kind != "bert") {
            let padding = h.hf_usize("pad_token_id")?.unwrap_or(1);
            c.position_offset = padding + 1;
            let positions = c.context_length.checked_sub(c.position_offset).filter(|&n| n > 0);
            c.context_length =
                positions.ok_or_else(|| h.invalid("it has no more positions than those of padding"))?;
        }
    }
    encoder::make(&mut c, h, Classifier::BERT)?;
    Ok(c)
}

/// What the encoders share that normalize the residual after each block.
pub(super) fn base(h: &Hyper<'_>, arch: &'static str) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, arch, RopeStyle::Half)?;
    (c.norm_kind, c.norm_bias) = (NormKind::Layer, true);
    (c.embed_norm, c.final_norm) = (Some("embedding_norm"), None);
    c.layers.iter_mut().for_each(|layer| layer.norms = LayerNorms::AFTER);
    c.each_attention(|a| a.causal = false);
    c.n_token_types = encoder::rows(h, "token_types").unwrap_or(0);
    c.tied = crate::config::Tied::Always;
    Ok(c)
}

/// Biases of all matrices.
pub(super) fn with_biases(c: &mut ModelConfig) {
    c.each_attention(|a| (a.qkv_bias, a.o_bias) = (Presence::Needed, Presence::Needed));
    c.each_dense(|d| d.bias = Presence::Needed);
}
