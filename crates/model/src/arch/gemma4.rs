//! Gemma 4 (Gemma team 2026), text: heads and rotation of their own in layers with a window, values with a norm, later layers that read the
//! keys and values of earlier ones or make both with one matrix, per-layer embeddings, and experts beside a dense block.

use super::{ArchSpec, IMAGES, Ignored, local_theta};
use crate::config::{
    Attention, Ffn, KvSource, LayerNorms, ModelConfig, PerLayerInput, Presence, QkNorm, SharedExpert,
    check_heads, check_rope_dim,
};
use crate::hyper::Hyper;
use crate::rope::{RopeConfig, RopeScaling, proportional, read_scaling};
use crate::{Result, names};
use realizar_compute::{Activation, Heads, RopeStyle};

/// Why the parts of a multimodal model that hear are left out.
const SOUND: &str = "sound is not read";

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "gemma4",
    gguf: &["gemma4"],
    hf: &[
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForCausalLM",
        "Gemma4UnifiedForConditionalGeneration",
    ],
    configure,
    ignored: &[
        Ignored { pattern: "model.vision_tower.*", reason: IMAGES },
        Ignored { pattern: "model.embed_vision.*", reason: IMAGES },
        Ignored { pattern: "model.audio_tower.*", reason: SOUND },
        Ignored { pattern: "model.embed_audio.*", reason: SOUND },
    ],
};

/// What `config.json` may leave out.
const DEFAULTS: &[(&str, f32)] = &[
    ("n_heads", 8.0),
    ("n_kv_heads", 4.0),
    ("head_dim", 256.0),
    ("local_head_dim", 256.0),
    ("global_head_dim", 512.0),
    ("context_length", 131_072.0),
    ("rms_norm_eps", 1e-6),
    ("sliding_window", 512.0),
];

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let h = &h.with_defaults(DEFAULTS);
    if !h.is_gguf() && h.hf_str("use_bidirectional_attention")? == Some("all") {
        return Err(h.unsupported("attention in both directions is not supported"));
    }
    let mut c = ModelConfig::base(h, "gemma4", RopeStyle::Half)?;
    c.embed_scale = (c.hidden_size as f32).sqrt();
    c.logit_softcap = h.f32("logit_softcap")?;
    c.read_activation(h, Activation::GeluTanh)?;
    let output_scale = if h.is_gguf() { Presence::Optional } else { Presence::Needed };
    for layer in &mut c.layers {
        (layer.norms, layer.output_scale) = (LayerNorms::PRE_AND_POST, output_scale);
    }
    c.slide(h, h.usize("sliding_window")?, |i| !(i + 1).is_multiple_of(6))?;
    let last = c.layers.len() - 1;
    c.each_attention_by_layer(|i, a| {
        (a.scale, a.qk_norm) = (1.0, Some(QkNorm::PerHeadWithValues));
        // The reference library lets the last layer see everything, whatever `config.json` lists.
        a.window = a.window.filter(|_| h.is_gguf() || i < last);
        a.rope = Some(usize::from(a.window.is_some()));
    });
    read_heads(&mut c, h)?;
    read_ropes(&mut c, h)?;
    let first_shared = share_keys_and_values(&mut c, h)?;
    if !h.is_gguf() && h.hf_bool("use_double_wide_mlp")?.unwrap_or(false) {
        for layer in &mut c.layers[first_shared..] {
            if let Ffn::Gated(dense) = &mut layer.ffn {
                dense.intermediate_size = dense.intermediate_size.saturating_mul(2);
            }
        }
    }
    add_experts(&mut c, h)?;
    read_per_layer_input(&mut c, h)?;
    Ok(c)
}

/// Each kind of layer has heads of its own size, and of keys and values also a number of its own.
fn read_heads(c: &mut ModelConfig, h: &Hyper<'_>) -> Result<()> {
    let local = h.usize("local_head_dim")?;
    let global = h.usize("global_head_dim")?;
    let one_matrix = !h.is_gguf() && h.hf_bool("attention_k_eq_v")?.unwrap_or(false);
    let global_kv = if one_matrix { h.hf_usize("num_global_key_value_heads")? } else { None };
    // What transformers 5 writes in place of keys for all global layers: under the layer's number, with zeros before it.
    let own = |i: usize, key: &str| -> Result<Option<usize>> {
        for width in 1..=5 {
            let stated = h.hf_usize(&format!("per_layer_config.{i:0width$}.{key}"))?;
            if stated.is_some() && !h.is_gguf() {
                return Ok(stated);
            }
        }
        Ok(None)
    };
    for (i, a) in attentions(c) {
        let Heads { n_heads, n_kv_heads, head_dim } = a.heads;
        let dim = if a.window.is_some() { local } else { own(i, "head_dim")?.or(global) };
        let kv = match a.window {
            None => own(i, "num_key_value_heads")?.or(global_kv),
            Some(_) => None,
        };
        let heads =
            Heads { n_heads, n_kv_heads: kv.unwrap_or(n_kv_heads), head_dim: dim.unwrap_or(head_dim) };
        a.heads = check_heads(h, heads)?;
    }
    Ok(())
}

/// All layers attend.
fn attentions(c: &mut ModelConfig) -> impl Iterator<Item = (usize, &mut Attention)> {
    c.layers.iter_mut().enumerate().filter_map(|(i, layer)| Some((i, layer.mixer.attention_mut()?)))
}

/// The rotation of global layers, of which only some pairs turn, and that of layers with a window.
fn read_ropes(c: &mut ModelConfig, h: &Hyper<'_>) -> Result<()> {
    let dim_of = |c: &ModelConfig, is_local: bool| -> Result<Option<usize>> {
        let mut dims = c.attentions().filter(|a| a.window.is_some() == is_local).map(|a| a.heads.head_dim);
        let first = dims.next();
        match dims.find(|&dim| Some(dim) != first) {
            Some(_) => Err(h.unsupported("heads of several sizes in layers of one kind are not supported")),
            None => Ok(first),
        }
    };
    if let (Some(dim), false) = (dim_of(c, false)?, h.is_gguf()) {
        let is_stated = h.hf_str("rope_parameters.full_attention.rope_type")?.is_some();
        let scaling = match is_stated {
            true => read_scaling(h, dim, c.context_length)?,
            false => proportional(dim, 0.25, 1.0),
        };
        let theta = h.f32("rope_theta")?.unwrap_or(1e6);
        c.ropes[0] = RopeConfig { dim, theta, scaling, ..c.ropes[0].clone() };
    }
    if let Some(dim) = dim_of(c, true)? {
        let theta = local_theta(h)?.unwrap_or(10_000.0);
        let dim = check_rope_dim(h, h.usize("rope_dim_local")?.unwrap_or(dim), dim)?;
        c.ropes.push(RopeConfig { dim, theta, scaling: RopeScaling::None, ..c.ropes[0].clone() });
    }
    Ok(())
}

/// Says where keys and values come from; returns the first layer that has none of its own.
fn share_keys_and_values(c: &mut ModelConfig, h: &Hyper<'_>) -> Result<usize> {
    let n_layers = c.layers.len();
    let n_shared = h.usize("n_shared_kv_layers")?.unwrap_or(0);
    let first_shared = n_layers.checked_sub(n_shared).filter(|&n| n > 0).ok_or_else(|| {
        h.invalid(format!("{n_shared} of its {n_layers} layers share the keys and values of others"))
    })?;
    let all: Vec<Attention> = c.attentions().copied().collect();
    let one_matrix = !h.is_gguf() && h.hf_bool("attention_k_eq_v")?.unwrap_or(false);
    let has = |name, i| names::file_name(h.source(), name, Some(i), None, "weight").is_some();
    for (i, a) in attentions(c) {
        if i >= first_shared {
            let is_alike = |j: &usize| all[*j].window == a.window && all[*j].heads == a.heads;
            let source = (0..first_shared).rev().find(is_alike).ok_or_else(|| {
                h.invalid(format!(
                    "layer {i} shares keys and values, and no layer before {first_shared} has such"
                ))
            })?;
            a.kv = KvSource::OfLayer(source);
        } else if match h.is_gguf() {
            // GGUF says it by the weights alone.
            true => !has("v_proj", i) && !has("qkv_proj", i),
            false => one_matrix && a.window.is_none(),
        } {
            a.kv = KvSource::KeysAsValues;
        }
    }
    Ok(first_shared)
}

/// In a model with experts the dense block is the expert that all tokens use.
fn add_experts(c: &mut ModelConfig, h: &Hyper<'_>) -> Result<()> {
    let has_experts = match h.is_gguf() {
        true => h.usize("n_experts")?.unwrap_or(0) > 0,
        false => h.hf_bool("enable_moe_block")?.unwrap_or(false),
    };
    if !has_experts {
        return Ok(());
    }
    let widths: Vec<usize> = c.layers.iter().map(|layer| layer.ffn.intermediate_size()).collect();
    c.add_experts(h, true, |_| true)?;
    let output_scale = if h.is_gguf() { Presence::Optional } else { Presence::Needed };
    let mut widths = widths.into_iter();
    c.each_experts(|e| {
        e.shared = widths.next().map(SharedExpert::named_dense);
        (e.separate_norms, e.output_scale) = (true, output_scale);
    });
    Ok(())
}

/// Folders that do not say how long the inputs are, and have them, mean the length of the published models.
fn read_per_layer_input(c: &mut ModelConfig, h: &Hyper<'_>) -> Result<()> {
    let has_table = names::file_name(h.source(), "per_layer_embed", None, None, "weight").is_some();
    let default = if has_table && !h.is_gguf() { 256 } else { 0 };
    let len = h.usize("per_layer_input_len")?.unwrap_or(default);
    if len > c.hidden_size {
        return Err(
            h.invalid(format!("per-layer embeddings have {len} elements and the model {}", c.hidden_size))
        );
    }
    let activation = match c.layers[0].ffn {
        Ffn::Gated(dense) | Ffn::Plain(dense) => dense.activation,
        Ffn::Experts(experts) => experts.activation,
        Ffn::None => unreachable!("all layers have feed-forward blocks"),
    };
    c.per_layer_input = (len > 0).then_some(PerLayerInput { len, activation });
    Ok(())
}
