//! LFM2 (Liquid AI 2025), dense: gated short convolutions, with attention in some layers.

use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::{Mixer, ModelConfig, QkNorm, ShortConv, Tied, n_layers, per_layer};
use crate::hyper::Hyper;
use realizar_compute::{Activation, MAX_CONV_WIDTH, RopeStyle};

pub(super) const SPEC: ArchSpec =
    ArchSpec { name: "lfm2", gguf: &["lfm2"], hf: &["Lfm2ForCausalLM"], configure, ignored: &[INV_FREQ] };

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = base(h, "lfm2")?;
    if !h.is_gguf() {
        let width = hf_width(h)?;
        c.each_dense(|dense| dense.intermediate_size = width);
    }
    Ok(c)
}

/// A model of gated convolutions and of attention, with dense blocks of the stated width in all layers.
pub(super) fn base(h: &Hyper<'_>, arch: &'static str) -> Result<ModelConfig> {
    let n_layers = n_layers(h, 0)?;
    let mut n_kv_heads = per_layer(h, "n_kv_heads", n_layers)?;
    // In GGUF, layers without heads of keys and values convolve; a 1 keeps the place of what they do not have.
    let without_heads: Option<Vec<bool>> =
        n_kv_heads.as_ref().filter(|_| h.is_gguf()).map(|list| list.iter().map(|&n| n == 0).collect());
    if let Some(list) = n_kv_heads.as_mut().filter(|_| h.is_gguf()) {
        list.iter_mut().for_each(|n| *n = (*n).max(1));
    }
    let mut c = ModelConfig::with_kv_heads(h, arch, RopeStyle::Half, n_kv_heads)?;
    let conv_width = if h.is_gguf() {
        if h.usize("sliding_window")?.is_some_and(|n| n > 0) {
            return Err(h.unsupported("LFM2 with a sliding window"));
        }
        h.gguf_usize("shortconv.l_cache")?
    } else {
        read_hf(h, &mut c)?;
        h.hf_usize("conv_L_cache")?
    };
    let conv_width = conv_width.unwrap_or(3);
    if !(2..=MAX_CONV_WIDTH).contains(&conv_width) {
        return Err(h.unsupported(format!(
            "a convolution over {conv_width} tokens, which is not from 2 to {MAX_CONV_WIDTH}"
        )));
    }
    c.final_norm = Some("embedding_norm");
    c.each_attention(|a| a.qk_norm = Some(QkNorm::PerHead));
    let convolves = match without_heads {
        Some(list) => list,
        None => hf_convolutions(h, n_layers)?,
    };
    let conv = ShortConv { n_channels: c.hidden_size, conv_width };
    for (layer, convolves) in c.layers.iter_mut().zip(convolves) {
        if convolves {
            layer.mixer = Mixer::ShortConv(conv);
        }
    }
    Ok(c)
}

/// What `config.json` says in its own way.
fn read_hf(h: &Hyper<'_>, c: &mut ModelConfig) -> Result<()> {
    if h.hf_bool("conv_bias")? == Some(true) {
        return Err(h.unsupported("LFM2 with biases of its convolutions"));
    }
    let tied = h.hf_bool("tie_embedding")?.or(h.hf_bool("tie_word_embeddings")?);
    c.tied = if tied.unwrap_or(true) { Tied::Always } else { Tied::Never };
    if h.f32("rope_theta")?.is_none() {
        c.ropes[0].theta = 1e6;
    }
    c.read_activation(h, Activation::Silu)
}

/// Hidden activations of a dense block by the rules of the family.
fn hf_width(h: &Hyper<'_>) -> Result<usize> {
    let mut width = match h.hf_usize("block_ff_dim")? {
        Some(n) => n,
        None => h.need_usize("intermediate_size")?,
    };
    if h.hf_bool("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        let multiplier = h.hf_f32("block_ffn_dim_multiplier")?.unwrap_or(1.0);
        let multiple = h.hf_usize("block_multiple_of")?.unwrap_or(256);
        width = (f64::from(multiplier) * (width.saturating_mul(2) / 3) as f64) as usize;
        width = width.checked_next_multiple_of(multiple).filter(|&n| n > 0).unwrap_or(0);
    }
    if width == 0 {
        return Err(h.invalid("the feed-forward block has no hidden activations"));
    }
    Ok(width)
}

/// Which layers convolve.
fn hf_convolutions(h: &Hyper<'_>, n_layers: usize) -> Result<Vec<bool>> {
    if let Some(types) = h.hf_strings("layer_types")? {
        if types.len() != n_layers {
            return Err(h.invalid(format!("layer_types has {} entries for {n_layers} layers", types.len())));
        }
        let convolves = |kind: &String| match kind.as_str() {
            "conv" => Ok(true),
            "full_attention" => Ok(false),
            other => Err(h.unsupported(format!("layer type {other:?} is not known"))),
        };
        return types.iter().map(convolves).collect();
    }
    let attends = h.hf_f32s("full_attn_idxs")?.unwrap_or_else(|| (0..n_layers).map(|i| i as f32).collect());
    Ok((0..n_layers).map(|i| !attends.contains(&(i as f32))).collect())
}
