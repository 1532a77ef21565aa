//! Nemotron-H, Nemotron Nano v2 and Nemotron 3 (NVIDIA 2025): layers of one block each, which is Mamba-2, attention without positions, a
//! feed-forward block with a squared ReLU, or a mixture of such blocks.

use super::mamba2::{self, HfKeys};
use super::qwen35::DRAFTS;
use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::{Ffn, LayerNorms, Mixer, ModelConfig, Presence, SharedExpert, n_layers, per_layer};
use crate::hyper::Hyper;
use realizar_compute::{Activation, GroupScore, RopeStyle, RouterScores};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "nemotron_h",
    gguf: &["nemotron_h", "nemotron_h_moe"],
    hf: &["NemotronHForCausalLM"],
    configure,
    ignored: &[INV_FREQ, DRAFTS[0]],
};

const KEYS: HfKeys = HfKeys {
    n_heads: "mamba_num_heads",
    head_dim: "mamba_head_dim",
    n_groups: "n_groups",
    state_dim: "ssm_state_size",
    conv_width: "conv_kernel",
    conv_bias: "use_conv_bias",
};

/// What the one block of a layer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Mamba,
    Attention,
    FeedForward,
    Experts,
}

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let (blocks, kv_heads) = if h.is_gguf() { gguf_blocks(h)? } else { hf_blocks(h)? };
    let mut c = ModelConfig::with_kv_heads(h, "nemotron_h", RopeStyle::Half, Some(kv_heads))?;
    c.read_activation(h, Activation::ReluSquared)?;
    if !h.is_gguf() {
        let has_bias =
            h.hf_bool("use_bias")?.unwrap_or(false) || h.hf_bool("mamba_proj_bias")?.unwrap_or(false);
        let activation = h.hf_str("mamba_hidden_act")?.unwrap_or("silu");
        if has_bias || activation != "silu" {
            return Err(h.unsupported("Mamba-2 layers with biases or another activation than silu"));
        }
        c.each_attention(|a| (a.qkv_bias, a.o_bias) = (Presence::Absent, Presence::Absent));
    }
    c.ropes.clear();
    c.each_attention(|a| a.rope = None);
    if blocks.contains(&Block::Experts) {
        read_experts(&mut c, h, &blocks)?;
    }
    c.without_gates();
    let mamba = mamba2::read(h, &KEYS)?;
    // The one norm of each layer has the same name.
    let (mixes, feeds) = (
        LayerNorms { pre_ffn: None, ..LayerNorms::PRE },
        LayerNorms { pre_mixer: None, pre_ffn: LayerNorms::PRE.pre_mixer, ..LayerNorms::PRE },
    );
    for (layer, block) in c.layers.iter_mut().zip(blocks) {
        match block {
            Block::Mamba => (layer.mixer, layer.ffn, layer.norms) = (Mixer::Mamba2(mamba), Ffn::None, mixes),
            Block::Attention => (layer.ffn, layer.norms) = (Ffn::None, mixes),
            Block::FeedForward | Block::Experts => (layer.mixer, layer.norms) = (Mixer::None, feeds),
        }
    }
    let mut widths = c.layers.iter().filter(|l| l.ffn != Ffn::None).map(|l| l.ffn.intermediate_size());
    if widths.any(|n| n == 0) {
        return Err(h.invalid("a feed-forward block has no hidden activations"));
    }
    Ok(c)
}

/// Makes mixtures of the layers that are.
fn read_experts(c: &mut ModelConfig, h: &Hyper<'_>, blocks: &[Block]) -> Result<()> {
    if !h.is_gguf() && h.hf_bool("mlp_bias")?.unwrap_or(false) {
        return Err(h.unsupported("a mixture of experts with biases in Nemotron 3"));
    }
    c.add_experts(h, h.bool("norm_topk")?.unwrap_or(true), |i| blocks[i] == Block::Experts)?;
    c.read_router(h, RouterScores::Sigmoid, GroupScore::TopTwo)?;
    let shared = h.usize("shared_expert_intermediate_size")?.filter(|&n| n > 0);
    let latent_size = h.usize("expert_latent_size")?.filter(|&n| n > 0);
    c.each_experts(|e| {
        (e.gated, e.latent_size, e.selection_bias) = (false, latent_size, Presence::Needed);
        e.shared = shared.map(|n| SharedExpert::new(n, false));
    });
    Ok(())
}

/// Each layer's block, and its heads of keys and values; a 1 keeps the place of what a layer does not have.
type Blocks = (Vec<Block>, Vec<usize>);

/// In GGUF, a layer has heads of keys and values, hidden activations, or neither.
fn gguf_blocks(h: &Hyper<'_>) -> Result<Blocks> {
    let n_layers = n_layers(h, h.usize("n_draft_layers")?.unwrap_or(0))?;
    let has_experts = h.usize("n_experts")?.is_some_and(|n| n > 0);
    let missing = |key| move || h.missing_key(key);
    let kv_heads = per_layer(h, "n_kv_heads", n_layers)?.ok_or_else(missing("attention.head_count_kv"))?;
    let widths = per_layer(h, "intermediate_size", n_layers)?.ok_or_else(missing("feed_forward_length"))?;
    let block = |(i, (&heads, &width)): (usize, (&usize, &usize))| match (heads, width) {
        (0, 0) => Ok(Block::Mamba),
        (_, 0) => Ok(Block::Attention),
        (0, _) if has_experts => Ok(Block::Experts),
        (0, _) => Ok(Block::FeedForward),
        (_, _) => Err(h.invalid(format!("layer {i} has attention and a feed-forward block"))),
    };
    let blocks: Vec<_> = kv_heads.iter().zip(&widths).enumerate().map(block).collect::<Result<_>>()?;
    Ok((blocks, kv_heads.into_iter().map(|n| n.max(1)).collect()))
}

/// `config.json` has a letter for each layer, or a name.
fn hf_blocks(h: &Hyper<'_>) -> Result<Blocks> {
    let of = |kind: &str| match kind {
        "M" | "mamba" | "linear_attention" => Ok(Block::Mamba),
        "*" | "attention" | "full_attention" => Ok(Block::Attention),
        "-" | "mlp" => Ok(Block::FeedForward),
        "E" | "moe" => Ok(Block::Experts),
        other => Err(h.unsupported(format!("layer type {other:?} is not known"))),
    };
    let kinds: Vec<String> = match (h.hf_strings("layers_block_type")?, h.hf_str("hybrid_override_pattern")?)
    {
        (Some(kinds), _) => kinds,
        (None, Some(pattern)) => pattern.chars().map(String::from).collect(),
        (None, None) => return Err(h.missing_key("hybrid_override_pattern")),
    };
    let stated = h.usize("n_layers")?;
    if kinds.is_empty() || stated.is_some_and(|n| n != kinds.len()) {
        let stated = stated.map_or_else(|| "a model".to_owned(), |n| format!("{n} layers"));
        return Err(h.invalid(format!("kinds of {} layers are stated for {stated}", kinds.len())));
    }
    let blocks: Vec<_> = kinds.iter().map(|kind| of(kind)).collect::<Result<_>>()?;
    let kv_heads = match h.usize("n_kv_heads")? {
        Some(n) => n,
        None => h.need_usize("n_heads")?,
    };
    let kv_heads = vec![kv_heads; blocks.len()];
    Ok((blocks, kv_heads))
}
