//! Nomic Embed (Nussbaum et al. 2024): BERT with rotation, gated feed-forward blocks and without biases. Its second version (Nussbaum and
//! Duderstadt 2025) has biases, no gates, and experts in every second layer. Jina Embeddings v3: BERT with rotation.

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

pub(super) const MOE: ArchSpec = ArchSpec {
    name: "nomic-bert-moe",
    gguf: &["nomic-bert-moe"],
    // The same name as without experts, whose configuration leads here.
    hf: &[],
    configure: configure_moe,
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
    if !h.is_gguf() && h.hf_usize("moe_every_n_layers")?.is_some_and(|n| n > 0) {
        return configure_moe(h);
    }
    let mut c = base(h, "nomic-bert")?;
    limit_context(&mut c, h)?;
    c.read_activation(h, Activation::Silu)?;
    c.each_attention(|a| (a.qkv_bias, a.o_bias) = (Presence::Absent, Presence::Absent));
    c.each_dense(|d| d.bias = Presence::Absent);
    encoder::make(&mut c, h, Classifier::BERT)?;
    Ok(c)
}

fn configure_moe(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = base(h, "nomic-bert-moe")?;
    limit_context(&mut c, h)?;
    c.read_activation(h, Activation::GeluErf)?;
    let mut norm_topk = false;
    if !h.is_gguf() {
        if h.hf_bool("expert_choice_router")?.unwrap_or(false)
            || h.hf_usize("num_shared_experts")?.unwrap_or(0) > 0
        {
            return Err(h.unsupported("a router by which experts choose tokens, or shared experts"));
        }
        norm_topk = h.hf_bool("moe_normalize_expert_weights")?.unwrap_or(false);
    }
    let every =
        if h.is_gguf() { h.gguf_usize("moe_every_n_layers")? } else { h.hf_usize("moe_every_n_layers")? };
    let every = every.ok_or_else(|| h.missing_key("moe_every_n_layers"))?;
    if every < 2 {
        return Err(h.unsupported(format!("experts in every {every} layers")));
    }
    c.add_experts(h, norm_topk, |i| i % every == 1)?;
    // llama.cpp's converter leaves it out.
    let output_bias = if h.is_gguf() { Presence::Absent } else { Presence::Needed };
    c.each_experts(|e| (e.gated, e.output_bias) = (false, output_bias));
    c.without_gates();
    with_biases(&mut c);
    encoder::make(&mut c, h, Classifier::BERT)?;
    Ok(c)
}

/// It was trained for fewer positions than it says it has.
fn limit_context(c: &mut ModelConfig, h: &Hyper<'_>) -> Result<()> {
    if let Some(trained) = h.hf_usize("max_trained_positions")?.filter(|&n| n > 0 && !h.is_gguf()) {
        c.context_length = c.context_length.min(trained);
    }
    Ok(())
}

fn configure_jina_v3(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = base(h, "jina-bert-v3")?;
    c.without_gates();
    c.read_activation(h, Activation::GeluErf)?;
    with_biases(&mut c);
    encoder::make(&mut c, h, Classifier::BERT)?;
    Ok(c)
}
