//! ModernBERT (Warner et al. 2024): norms before blocks, none before the first, rotation of two bases, windows in both directions in two of
//! three layers, gated feed-forward blocks. Rerankers have a matrix, GELU and a norm before that of the score.

use super::ArchSpec;
use super::bert::UNUSED;
use super::encoder::{self, Classifier};
use crate::Result;
use crate::config::{HeadFunction, ModelConfig, Presence, named_activation};
use crate::hyper::Hyper;
use crate::rope::{RopeConfig, RopeScaling};
use realizar_compute::{Activation, NormKind, Pooling, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "modern-bert",
    gguf: &["modern-bert"],
    hf: &["ModernBertModel", "ModernBertForSequenceClassification"],
    configure,
    ignored: UNUSED,
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "modern-bert", RopeStyle::Half)?;
    c.norm_kind = NormKind::Layer;
    c.norm_bias = !h.is_gguf() && h.hf_bool("norm_bias")?.unwrap_or(false);
    c.embed_norm = Some("embedding_norm");
    c.layers[0].norms.pre_mixer = None;
    match h.is_gguf() {
        true => {
            let named = h.gguf_str("hidden_activation")?;
            let activation = match named {
                None | Some("gelu") => Activation::GeluErf,
                Some("silu") => Activation::Silu,
                Some(other) => return Err(h.unsupported(format!("activation {other:?} is not known"))),
            };
            c.each_dense(|d| d.activation = activation);
        }
        false => c.read_activation(h, Activation::GeluErf)?,
    }
    if h.is_gguf() {
        c.each_attention(|a| (a.qkv_bias, a.o_bias) = (Presence::Optional, Presence::Optional));
    }
    if h.f32("rope_theta")?.is_none() {
        c.ropes[0].theta = 160_000.0;
    }
    let local = h.f32("rope_theta_local")?.unwrap_or(10_000.0);
    c.ropes.push(RopeConfig { theta: local, scaling: RopeScaling::None, ..c.ropes[0].clone() });
    let every = match h.is_gguf() {
        true => h.gguf_usize_unless_array("attention.sliding_window_pattern")?,
        false => h.hf_usize("global_attn_every_n_layers")?,
    };
    let every = every.unwrap_or(3).max(1);
    // Half of it on either side.
    let window = h.usize("sliding_window")?.unwrap_or(128) / 2 + 1;
    c.slide(h, Some(window), |i| !i.is_multiple_of(every))?;
    c.each_attention(|a| {
        a.causal = false;
        a.rope = Some(usize::from(a.window.is_some()));
    });
    encoder::make(&mut c, h, classifier(h)?)?;
    Ok(c)
}

fn classifier(h: &Hyper<'_>) -> Result<Classifier> {
    let (pooling, activation) = match h.is_gguf() {
        true => match h.gguf_usize("classifier.pooling_type")? {
            // Files without the key are older than it, of models that take the mean, such as gte-reranker-modernbert-base.
            None | Some(1) => (Pooling::Mean, Activation::GeluErf),
            Some(2) => (Pooling::First, Activation::GeluErf),
            Some(other) => return Err(h.unsupported(format!("a classifier of pooling {other}"))),
        },
        false => {
            let pooling = match h.hf_str("classifier_pooling")? {
                None | Some("cls") => Pooling::First,
                Some("mean") => Pooling::Mean,
                Some(other) => return Err(h.unsupported(format!("a classifier of pooling {other:?}"))),
            };
            (pooling, named_activation(h, h.hf_str("classifier_activation")?.unwrap_or("gelu"))?)
        }
    };
    Ok(Classifier { pooling, function: HeadFunction::Activation(activation), norm: Some("classifier.norm") })
}
