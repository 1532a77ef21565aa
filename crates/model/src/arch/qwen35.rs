//! Qwen 3.5 and 3.6, dense: three layers of the gated delta rule for each one of attention, whose output has a gate.

use super::{ArchSpec, IMAGES, INV_FREQ, Ignored};
use crate::Result;
use crate::config::{GatedDelta, LayerNorms, Mixer, ModelConfig, Presence, QkNorm};
use crate::hyper::Hyper;
use realizar_compute::{Activation, DeltaShape, HeadOrder, MAX_CONV_WIDTH, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "qwen35",
    gguf: &["qwen35"],
    hf: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    configure: |h| hybrid(h, "qwen35", HeadOrder::Tiled),
    ignored: IGNORED,
};

/// What files of Qwen 3.5 have beside the text model.
pub(super) const IGNORED: &[Ignored] = &[
    INV_FREQ,
    Ignored { pattern: "model.visual.*", reason: IMAGES },
    Ignored { pattern: "visual.*", reason: IMAGES },
    Ignored { pattern: "v.*", reason: IMAGES },
    Ignored { pattern: "mm.*", reason: IMAGES },
    DRAFTS[0],
    DRAFTS[1],
];

/// Layers that only draft tokens.
pub(super) const DRAFTS: [Ignored; 2] =
    [Ignored { pattern: "mtp.*", reason: DRAFT }, Ignored { pattern: "model.mtp.*", reason: DRAFT }];

const DRAFT: &str = "it serves only to draft tokens";

/// A model of recurrent layers and of attention, with dense blocks in all; `gguf_order` is how GGUF files have value heads.
pub(super) fn hybrid(h: &Hyper<'_>, arch: &'static str, gguf_order: HeadOrder) -> Result<ModelConfig> {
    // Sections of the rotation are for images: in text, all have the same position.
    let mut c = ModelConfig::base(h, arch, RopeStyle::Half)?;
    if !h.is_gguf() {
        c.norm_offset = 1.0;
        if h.hf_bool("attention_bias")? == Some(true) || h.hf_bool("attn_output_gate")? == Some(false) {
            return Err(
                h.unsupported("a Qwen hybrid with attention biases or without a gate on attention's output")
            );
        }
    }
    c.read_activation(h, Activation::Silu)?;
    let mut is_silu = true;
    c.each_dense(|dense| is_silu &= dense.activation == Activation::Silu);
    if !is_silu {
        return Err(h.unsupported("a Qwen hybrid with another activation than silu"));
    }
    if !h.is_gguf() && h.f32("partial_rotary_factor")?.is_none() {
        c.ropes[0].dim /= 4;
    }
    c.each_attention(|a| {
        a.qk_norm = Some(QkNorm::PerHead);
        a.output_gate = true;
        (a.qkv_bias, a.o_bias) = (Presence::Absent, Presence::Absent);
    });
    c.each_dense(|dense| dense.bias = Presence::Absent);
    let delta = read_delta(h, gguf_order)?;
    let recurrent = recurrent_layers(h, c.layers.len())?;
    for (layer, is_recurrent) in c.layers.iter_mut().zip(recurrent) {
        // GGUF names this norm by its place behind attention.
        layer.norms = LayerNorms { pre_ffn: Some("post_attn_norm"), ..LayerNorms::PRE };
        if is_recurrent {
            layer.mixer = Mixer::GatedDelta(delta);
        }
    }
    Ok(c)
}

/// Sizes of the layers of the gated delta rule.
fn read_delta(h: &Hyper<'_>, gguf_order: HeadOrder) -> Result<GatedDelta> {
    /// More heads, or elements in one, are a damaged file.
    const MAX: usize = 1 << 12;
    let (n_k_heads, n_v_heads) = (h.need_usize("n_delta_k_heads")?, h.need_usize("n_delta_v_heads")?);
    let (k_dim, conv_width) = (h.need_usize("delta_k_dim")?, h.need_usize("conv_width")?);
    let (v_dim, order) = if h.is_gguf() {
        let all = h.gguf_usize("ssm.inner_size")?.unwrap_or(n_v_heads.saturating_mul(k_dim));
        let v_dim = all.checked_div(n_v_heads).filter(|dim| dim * n_v_heads == all).unwrap_or(0);
        (v_dim, gguf_order)
    } else {
        (h.hf_usize("linear_value_head_dim")?.unwrap_or(k_dim), HeadOrder::Grouped)
    };
    if [n_k_heads, n_v_heads, k_dim, v_dim].iter().any(|n| !(1..=MAX).contains(n)) {
        return Err(h.invalid(format!(
            "the delta rule has {n_k_heads} key heads of {k_dim} and {n_v_heads} value heads of {v_dim}"
        )));
    }
    if !n_v_heads.is_multiple_of(n_k_heads) {
        return Err(h.invalid(format!("{n_v_heads} value heads cannot share {n_k_heads} key heads")));
    }
    if !(2..=MAX_CONV_WIDTH).contains(&conv_width) {
        return Err(h.unsupported(format!(
            "a convolution over {conv_width} tokens, which is not from 2 to {MAX_CONV_WIDTH}"
        )));
    }
    Ok(GatedDelta { shape: DeltaShape { n_k_heads, n_v_heads, k_dim, v_dim, order }, conv_width })
}

/// Which layers have recurrent state.
fn recurrent_layers(h: &Hyper<'_>, n_layers: usize) -> Result<Vec<bool>> {
    let wrong = |n: usize| h.invalid(format!("kinds of {n} layers are stated for {n_layers} layers"));
    if h.is_gguf() {
        // Layers that only draft are counted.
        match h.gguf_bools("attention.recurrent_layers")? {
            Some(list) if list.len() >= n_layers => return Ok(list[..n_layers].to_vec()),
            Some(list) => return Err(wrong(list.len())),
            None => {}
        }
    } else if let Some(types) = h.hf_strings("layer_types")? {
        if types.len() != n_layers {
            return Err(wrong(types.len()));
        }
        let is_recurrent = |kind: &String| match kind.as_str() {
            "linear_attention" => Ok(true),
            "full_attention" => Ok(false),
            other => Err(h.unsupported(format!("layer type {other:?} is not known"))),
        };
        return types.iter().map(is_recurrent).collect();
    }
    match h.usize("full_attention_interval")?.unwrap_or(4) {
        0 => Err(h.invalid("full_attention_interval is 0")),
        every => Ok((1..=n_layers).map(|i| !i.is_multiple_of(every)).collect()),
    }
}
