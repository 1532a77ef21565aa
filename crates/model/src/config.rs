//! A decoder-only transformer, described as data.
//!
//! Every architecture of `arch/` is a function from a file's hyper-parameters to a [`ModelConfig`]; the loader and the one forward
//! pass in `decoder.rs` know nothing else about it.

use crate::hyper::Hyper;
use crate::names;
use crate::rope::{RopeConfig, read_scaling};
use crate::{Error, Result};
use realizar_compute::{Activation, Heads, NormKind, RopeStyle};

/// Everything about a model but its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Name of the architecture, as in [`ARCHS`](crate::arch::ARCHS).
    pub arch: &'static str,
    /// Rows of the embedding: at least the tokenizer's tokens.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Longest context the model was made for, in tokens.
    pub context_length: usize,
    /// Factor on embeddings.
    pub embed_scale: f32,
    /// Whether a learned vector per position is added to the embeddings.
    pub learned_positions: bool,
    /// Kind of all norms.
    pub norm_kind: NormKind,
    /// Epsilon of all norms.
    pub norm_eps: f32,
    /// Added to every norm weight at load: 1 where the file stores the weight's difference from 1.
    pub norm_offset: f32,
    /// Attention heads of every layer.
    pub heads: Heads,
    /// Factor on query · key.
    pub attn_scale: f32,
    /// Soft cap on attention scores.
    pub attn_softcap: Option<f32>,
    /// Whether query and key heads are normalized before they turn.
    pub qk_norm: bool,
    /// The rotations that layers refer to.
    pub ropes: Vec<RopeConfig>,
    /// Attention and feed-forward read the same norm and add to the residual side by side.
    pub parallel: bool,
    /// Attention's and feed-forward's outputs are normalized before they are added.
    pub post_norms: bool,
    /// The inputs of `o_proj` and `down_proj` are normalized.
    pub sub_norms: bool,
    /// Between the matrices of the feed-forward block.
    pub activation: Activation,
    /// Whether the feed-forward block is `down(act(gate) · up)` and not `down(act(up))`.
    pub gated: bool,
    /// Width of a dense feed-forward block.
    pub intermediate_size: usize,
    /// Experts, where layers have them.
    pub moe: Option<MoeConfig>,
    /// Soft cap on logits.
    pub logit_softcap: Option<f32>,
    /// Whether the file must not have an output matrix of its own, whatever else stands in it.
    pub always_tied: bool,
    /// Whether matrices stand transposed in the file, `[n_in, n_out]`.
    pub transposed: bool,
    /// The layers, from the first to the last.
    pub layers: Vec<LayerConfig>,
}

/// What differs between layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerConfig {
    /// Sliding window, in tokens.
    pub window: Option<usize>,
    /// Index into [`ModelConfig::ropes`].
    pub rope: Option<usize>,
    /// Whether the feed-forward block is a mixture of experts.
    pub moe: bool,
}

/// Sizes and routing of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeConfig {
    /// Experts in a layer.
    pub n_experts: usize,
    /// Experts per token.
    pub n_used: usize,
    /// Width of one expert.
    pub intermediate_size: usize,
    /// Whether the chosen probabilities are divided by their sum.
    pub norm_topk: bool,
}

/// More layers, heads or experts than this are a damaged file, not a model.
const MAX_COUNT: usize = 1 << 14;
/// No width or vocabulary is larger.
const MAX_SIZE: usize = 1 << 28;

impl ModelConfig {
    /// A plain Llama-like model from the hyper-parameters that all architectures share; `arch/` changes what differs.
    pub fn base(h: &Hyper<'_>, arch: &'static str, rope_style: RopeStyle) -> Result<Self> {
        let size = |ours: &str, max: usize| {
            let n = h.need_usize(ours)?;
            if n == 0 || n > max { Err(h.invalid(format!("{ours} is {n}"))) } else { Ok(n) }
        };
        let hidden_size = size("hidden_size", MAX_SIZE)?;
        let n_layers = size("n_layers", MAX_COUNT)?;
        let n_heads = size("n_heads", MAX_COUNT)?;
        let n_kv_heads = h.usize("n_kv_heads")?.unwrap_or(n_heads);
        let head_dim = match h.usize("head_dim")? {
            Some(n) => n,
            None if hidden_size.is_multiple_of(n_heads) => hidden_size / n_heads,
            None => {
                return Err(
                    h.invalid(format!("hidden_size {hidden_size} is not a multiple of {n_heads} heads"))
                );
            }
        };
        if n_kv_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) {
            return Err(h.invalid(format!("{n_heads} query heads cannot share {n_kv_heads} key-value heads")));
        }
        if head_dim == 0 || head_dim > MAX_COUNT {
            return Err(h.invalid(format!("head_dim is {head_dim}")));
        }
        let context_length = size("context_length", MAX_SIZE)?;
        let embed = names::file_name(h.source(), "embed", None, None, "weight").ok_or_else(|| {
            Error::MissingTensor {
                path: h.source().path().to_owned(),
                tensor: names::candidates("embed", h.source().format())[0].to_owned() + ".weight",
            }
        })?;
        let embed_shape = &h.source().find(&embed).expect("it was just found").shape;
        let &[vocab_size, width] = &embed_shape[..] else {
            return Err(h.invalid(format!(
                "tensor {embed:?} has shape {embed_shape:?} and not [vocab_size, hidden_size]"
            )));
        };
        if width != hidden_size || vocab_size == 0 || vocab_size > MAX_SIZE {
            return Err(h.invalid(format!(
                "tensor {embed:?} has shape {embed_shape:?} but hidden_size is {hidden_size}"
            )));
        }
        let rope_dim = match (h.usize("rope_dim")?, h.f32("partial_rotary_factor")?) {
            (Some(n), _) => n,
            (None, Some(f)) => (head_dim as f32 * f) as usize,
            (None, None) => head_dim,
        };
        if rope_dim > head_dim || !rope_dim.is_multiple_of(2) || rope_dim == 0 {
            return Err(h.invalid(format!("RoPE turns {rope_dim} elements of a head of {head_dim}")));
        }
        let theta = h.f32("rope_theta")?.unwrap_or(10_000.0);
        let scaling = read_scaling(h, rope_dim, context_length)?;
        let eps = match h.f32("rms_norm_eps")? {
            Some(e) => Some(e),
            None => h.f32("layer_norm_eps")?,
        };
        let layer = LayerConfig { window: None, rope: Some(0), moe: false };
        Ok(Self {
            arch,
            vocab_size,
            hidden_size,
            context_length,
            embed_scale: 1.0,
            learned_positions: false,
            norm_kind: NormKind::Rms,
            norm_eps: eps.filter(|e| e.is_finite() && *e >= 0.0).unwrap_or(1e-5),
            norm_offset: 0.0,
            heads: Heads { n_heads, n_kv_heads, head_dim },
            attn_scale: 1.0 / (head_dim as f32).sqrt(),
            attn_softcap: None,
            qk_norm: false,
            ropes: vec![RopeConfig { dim: rope_dim, style: rope_style, theta, scaling }],
            parallel: false,
            post_norms: false,
            sub_norms: false,
            activation: Activation::Silu,
            gated: true,
            intermediate_size: h.usize("intermediate_size")?.unwrap_or(4 * hidden_size),
            moe: None,
            logit_softcap: None,
            always_tied: false,
            transposed: false,
            layers: vec![layer; n_layers],
        })
    }

    /// Takes the activation that `config.json` names; GGUF states none and leaves the architecture's own.
    pub fn read_activation(&mut self, h: &Hyper<'_>) -> Result<()> {
        if h.is_gguf() {
            return Ok(());
        }
        let mut name = None;
        for key in ["hidden_activation", "hidden_act", "activation_function"] {
            name = name.or(h.hf_str(key)?);
        }
        self.activation = match name {
            None => return Ok(()),
            Some("silu" | "swish") => Activation::Silu,
            Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Activation::GeluTanh,
            Some("gelu") => Activation::GeluErf,
            Some("relu2") => Activation::ReluSquared,
            Some("relu") => Activation::Relu,
            Some(other) => return Err(h.unsupported(format!("activation {other:?} is not known"))),
        };
        Ok(())
    }

    /// Gives a sliding window to the layers that `slides` says, or to those that `layer_types` of `config.json` lists.
    pub fn slide(
        &mut self,
        h: &Hyper<'_>,
        window: Option<usize>,
        slides: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let Some(window) = window.filter(|&w| w > 0) else { return Ok(()) };
        let types = if h.is_gguf() { None } else { h.hf_strings("layer_types")? };
        if let Some(types) = &types {
            if types.len() != self.layers.len() {
                return Err(h.invalid(format!(
                    "layer_types has {} entries for {} layers",
                    types.len(),
                    self.layers.len()
                )));
            }
            if let Some(other) =
                types.iter().find(|t| !["sliding_attention", "full_attention"].contains(&t.as_str()))
            {
                return Err(h.unsupported(format!("layer type {other:?} is not known")));
            }
        }
        for (i, layer) in self.layers.iter_mut().enumerate() {
            let this = types.as_ref().map_or_else(|| slides(i), |t| t[i] == "sliding_attention");
            layer.window = this.then_some(window);
        }
        Ok(())
    }

    /// Makes the layers that `has_experts` says mixtures of experts.
    pub fn add_experts(
        &mut self,
        h: &Hyper<'_>,
        norm_topk: bool,
        has_experts: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let n_experts = h.need_usize("n_experts")?;
        let n_used = h.need_usize("n_experts_used")?;
        if n_experts == 0 || n_experts > MAX_COUNT || n_used == 0 || n_used > n_experts {
            return Err(h.invalid(format!("a token cannot use {n_used} of {n_experts} experts")));
        }
        let intermediate_size = h.usize("expert_intermediate_size")?.unwrap_or(self.intermediate_size);
        self.moe = Some(MoeConfig { n_experts, n_used, intermediate_size, norm_topk });
        for (i, layer) in self.layers.iter_mut().enumerate() {
            layer.moe = has_experts(i);
        }
        Ok(())
    }

    /// Bytes of keys and values that one token takes in a cache of type `dtype`.
    pub fn kv_bytes_per_token(&self, dtype: realizar_compute::DType) -> usize {
        let head = dtype.bytes_for(self.heads.head_dim).unwrap_or(self.heads.head_dim * 4);
        2 * self.layers.len() * self.heads.n_kv_heads * head
    }
}
