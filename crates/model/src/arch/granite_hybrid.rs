//! Granite 4 (IBM 2025): Mamba-2, and attention without positions in some layers, with Granite's factors and experts beside a shared one or
//! one dense block.

use super::mamba2::{self, HfKeys};
use super::{ArchSpec, INV_FREQ, granite, granite_moe};
use crate::Result;
use crate::config::{Mixer, ModelConfig, n_layers, per_layer};
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "granitehybrid",
    gguf: &["granitehybrid"],
    hf: &["GraniteMoeHybridForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

const KEYS: HfKeys = HfKeys {
    n_heads: "mamba_n_heads",
    head_dim: "mamba_d_head",
    n_groups: "mamba_n_groups",
    state_dim: "mamba_d_state",
    conv_width: "mamba_d_conv",
    conv_bias: "mamba_conv_bias",
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let n_layers = n_layers(h, 0)?;
    let stated = per_layer(h, "n_kv_heads", n_layers)?;
    // In GGUF, layers without heads of keys and values are recurrent; a 1 keeps the place of what they do not have.
    let is_recurrent = match (&stated, h.is_gguf()) {
        (Some(heads), true) => heads.iter().map(|&n| n == 0).collect(),
        (None, true) => vec![false; n_layers],
        (_, false) => hf_recurrent(h, n_layers)?,
    };
    let kv_heads = stated.map(|heads| heads.into_iter().map(|n| n.max(1)).collect());
    let style = if h.is_gguf() { RopeStyle::Interleaved } else { RopeStyle::Half };
    let mut c = ModelConfig::with_kv_heads(h, "granitehybrid", style, kv_heads)?;
    c.read_activation(h, Activation::Silu)?;
    granite::read_factors(&mut c, h)?;
    if !h.is_gguf() && h.hf_str("position_embedding_type")? != Some("rope") {
        c.each_attention(|a| a.rope = None);
    }
    if c.attentions().all(|a| a.rope.is_none()) {
        c.ropes.clear();
    }
    let shared = h.usize("shared_expert_intermediate_size")?;
    if h.usize("n_experts")?.unwrap_or(0) > 0 {
        c.add_experts(h, true, |_| true)?;
        granite_moe::share_expert(&mut c, shared.unwrap_or(if h.is_gguf() { 0 } else { 1024 }));
    } else if let Some(width) = shared.filter(|&n| n > 0) {
        c.each_dense(|dense| dense.intermediate_size = width);
    }
    if is_recurrent.contains(&true) {
        if !h.is_gguf() && h.hf_bool("mamba_proj_bias")?.unwrap_or(false) {
            return Err(h.unsupported("Mamba-2 layers with biases"));
        }
        let mamba = mamba2::read(h, &KEYS)?;
        for (layer, _) in c.layers.iter_mut().zip(is_recurrent).filter(|(_, is_recurrent)| *is_recurrent) {
            layer.mixer = Mixer::Mamba2(mamba);
        }
    }
    Ok(c)
}

/// Which layers are recurrent, by `layer_types`.
fn hf_recurrent(h: &Hyper<'_>, n_layers: usize) -> Result<Vec<bool>> {
    let Some(types) = h.hf_strings("layer_types")? else { return Ok(vec![true; n_layers]) };
    if types.len() != n_layers {
        return Err(h.invalid(format!("layer_types has {} entries for {n_layers} layers", types.len())));
    }
    let is_recurrent = |kind: &String| match kind.as_str() {
        "mamba" | "linear_attention" => Ok(true),
        "attention" | "full_attention" => Ok(false),
        other => Err(h.unsupported(format!("layer type {other:?} is not known"))),
    };
    types.iter().map(is_recurrent).collect()
}
