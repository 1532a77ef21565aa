//! A model's description from a file's hyper-parameters.

use super::{
    Attention, Dense, Experts, Ffn, KvSource, LayerConfig, LayerNorms, Mixer, ModelConfig, Presence, Tied,
};
use crate::hyper::Hyper;
use crate::names;
use crate::rope::{RopeConfig, read_scaling};
use crate::{Error, Result};
use realizar_compute::{
    Activation, ExpertGroups, GroupScore, Heads, NormKind, RopeStyle, Router, RouterScores,
};

/// More layers, heads or experts than this are a damaged file, not a model.
pub(super) const MAX_COUNT: usize = 1 << 14;
/// No width or vocabulary is larger.
const MAX_SIZE: usize = 1 << 28;

impl ModelConfig {
    /// A plain Llama-like model from the hyper-parameters that all architectures share; `arch/` changes what differs.
    pub fn base(h: &Hyper<'_>, arch: &'static str, rope_style: RopeStyle) -> Result<Self> {
        let n_layers = n_layers(h, h.usize("n_draft_layers")?.unwrap_or(0))?;
        let n_kv_heads = per_layer(h, "n_kv_heads", n_layers)?;
        Self::with_kv_heads(h, arch, rope_style, n_kv_heads)
    }

    /// As [`ModelConfig::base`], with these key and value heads of each layer, as many as the list has; `None`: as many as query heads.
    pub(crate) fn with_kv_heads(
        h: &Hyper<'_>,
        arch: &'static str,
        rope_style: RopeStyle,
        n_kv_heads: Option<Vec<usize>>,
    ) -> Result<Self> {
        let hidden_size = size(h, "hidden_size", MAX_SIZE)?;
        let n_layers = match &n_kv_heads {
            Some(heads) => heads.len(),
            None => n_layers(h, h.usize("n_draft_layers")?.unwrap_or(0))?,
        };
        let heads = read_heads(h, hidden_size, n_layers, n_kv_heads)?;
        let rope_dim = read_rope_dim(h, heads[0].head_dim)?;
        let bias = read_bias(h, "attention_bias")?;
        let mixer = |heads: Heads| {
            Mixer::Attention(Attention {
                heads,
                kv: KvSource::Own,
                qk_norm: None,
                temperature: None,
                rope: Some(0),
                window: None,
                causal: true,
                alibi: false,
                scale: 1.0 / (heads.head_dim as f32).sqrt(),
                softcap: None,
                sinks: false,
                sub_norm: false,
                output_gate: false,
                qkv_bias: bias,
                o_bias: bias,
            })
        };
        Self::with_mixers(h, arch, (rope_style, rope_dim), heads.into_iter().map(mixer).collect())
    }

    /// As [`ModelConfig::base`], with these mixers and so many elements of a head that turn.
    pub(super) fn with_mixers(
        h: &Hyper<'_>,
        arch: &'static str,
        (rope_style, rope_dim): (RopeStyle, usize),
        mixers: Vec<Mixer>,
    ) -> Result<Self> {
        let hidden_size = size(h, "hidden_size", MAX_SIZE)?;
        let context_length = size(h, "context_length", MAX_SIZE)?;
        let n_layers = mixers.len();
        let theta = h.f32("rope_theta")?.unwrap_or(10_000.0);
        let scaling = read_scaling(h, rope_dim, context_length)?;
        let eps = match h.f32("rms_norm_eps")? {
            Some(e) => Some(e),
            None => h.f32("layer_norm_eps")?,
        };
        let widths = per_layer(h, "intermediate_size", n_layers)?;
        let widths = widths.unwrap_or_else(|| vec![4 * hidden_size; n_layers]);
        let ffn_bias = read_bias(h, "mlp_bias")?;
        let layer = |(mixer, intermediate_size): (Mixer, usize)| LayerConfig {
            mixer,
            ffn: Ffn::Gated(Dense {
                intermediate_size,
                activation: Activation::Silu,
                sub_norm: false,
                bias: ffn_bias,
            }),
            norms: LayerNorms::PRE,
            parallel: false,
            output_scale: Presence::Absent,
        };
        Ok(Self {
            arch,
            vocab_size: read_vocab_size(h, hidden_size)?,
            hidden_size,
            context_length,
            embed_scale: 1.0,
            residual_scale: 1.0,
            per_layer_input: None,
            learned_positions: false,
            position_offset: 0,
            n_token_types: 0,
            embed_norm: None,
            norm_kind: NormKind::Rms,
            norm_bias: false,
            norm_eps: eps.filter(|e| e.is_finite() && *e >= 0.0).unwrap_or(1e-5),
            final_norm: Some("final_norm"),
            norm_offset: 0.0,
            ropes: vec![RopeConfig { dim: rope_dim, style: rope_style, theta, scaling }],
            logit_scale: 1.0,
            logit_softcap: None,
            tied: read_tied(h)?,
            lm_head_bias: Presence::Absent,
            transposed: false,
            layers: mixers.into_iter().zip(widths).map(layer).collect(),
            encoder: None,
            n_draft_layers: 0,
            n_unread_layers: h.usize("n_draft_layers")?.unwrap_or(0),
        })
    }

    /// Takes the activation that `config.json` names; GGUF states none and means the architecture's own.
    pub fn read_activation(&mut self, h: &Hyper<'_>, own: Activation) -> Result<()> {
        let mut name = None;
        for key in ["hidden_activation", "hidden_act", "activation_function", "mlp_hidden_act"] {
            name = match name {
                None if !h.is_gguf() => h.hf_str(key)?,
                found => found,
            };
        }
        let activation = match name {
            None => own,
            Some(name) => named_activation(h, name)?,
        };
        self.each_dense(|dense| dense.activation = activation);
        Ok(())
    }

    /// Gives a sliding window to the layers that the file lists (`layer_types` of `config.json`, an array of GGUF), or else to those that
    /// `slides` says.
    pub fn slide(
        &mut self,
        h: &Hyper<'_>,
        window: Option<usize>,
        slides: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let Some(window) = window.filter(|&w| w > 0) else { return Ok(()) };
        let listed = listed_windows(h, self.layers.len())?;
        self.each_attention_by_layer(|i, attention| {
            let this = listed.as_ref().map_or_else(|| slides(i), |listed| listed[i]);
            attention.window = this.then_some(window);
        });
        Ok(())
    }

    /// Makes the layers that `has_experts` says mixtures of experts, chosen by softmax.
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
        let width = h.usize("expert_intermediate_size")?;
        for (i, layer) in self.layers.iter_mut().enumerate() {
            if let (true, Ffn::Gated(Dense { intermediate_size, activation, .. })) =
                (has_experts(i), layer.ffn)
            {
                let intermediate_size = width.unwrap_or(intermediate_size);
                layer.ffn = Ffn::Experts(Experts {
                    n_experts,
                    intermediate_size,
                    gated: true,
                    latent_size: None,
                    router: Router::softmax(n_used, norm_topk),
                    router_bias: Presence::Absent,
                    selection_bias: Presence::Absent,
                    activation,
                    bias: Presence::Absent,
                    output_scale: Presence::Absent,
                    output_bias: Presence::Absent,
                    shared: None,
                    separate_norms: false,
                });
            }
        }
        Ok(())
    }

    /// Takes the router's scores, factor and groups that the file states; `scores` is the architecture's own kind.
    pub fn read_router(&mut self, h: &Hyper<'_>, scores: RouterScores, by: GroupScore) -> Result<()> {
        let named = if h.is_gguf() { None } else { h.hf_str("scoring_func")? };
        let numbered = if h.is_gguf() { h.gguf_usize("expert_gating_func")? } else { None };
        let scores = match (named, numbered) {
            (None, None | Some(0)) => scores,
            (Some("softmax"), _) | (_, Some(1)) => RouterScores::Softmax,
            (Some("sigmoid"), _) | (_, Some(2)) => RouterScores::Sigmoid,
            (Some(other), _) => return Err(h.unsupported(format!("router of kind {other:?} is not known"))),
            (_, Some(other)) => return Err(h.unsupported(format!("router of kind {other} is not known"))),
        };
        let scale = h.f32("router_scale")?.unwrap_or(1.0);
        if !scale.is_finite() {
            return Err(h.invalid(format!("the factor on the experts' weights is {scale}")));
        }
        let (count, used) = (h.usize("n_expert_groups")?, h.usize("n_expert_groups_used")?);
        let groups = match (count.unwrap_or(1), used.unwrap_or(1)) {
            (count, used) if count <= 1 || used == count => None,
            (count, used) => Some(ExpertGroups { count, n_used: used, score: by }),
        };
        for experts in self.layers.iter_mut().filter_map(|layer| match &mut layer.ffn {
            Ffn::Experts(experts) => Some(experts),
            _ => None,
        }) {
            let (n, router) = (experts.n_experts, &mut experts.router);
            let fits = |g: ExpertGroups| {
                let enough = by == GroupScore::Largest || n >= 2 * g.count;
                n.is_multiple_of(g.count)
                    && enough
                    && (1..g.count).contains(&g.n_used)
                    && router.n_used <= n / g.count * g.n_used
            };
            if let Some(g) = groups.filter(|&g| !fits(g)) {
                let ExpertGroups { count, n_used, .. } = g;
                let reason = format!(
                    "a token cannot use {} of {n} experts from {n_used} of {count} groups",
                    router.n_used
                );
                return Err(h.invalid(reason));
            }
            (router.scores, router.scale, router.groups) = (scores, scale, groups);
        }
        Ok(())
    }
}

/// Which layers have a sliding window, where the file lists them.
fn listed_windows(h: &Hyper<'_>, n_layers: usize) -> Result<Option<Vec<bool>>> {
    let (key, listed) = match h.is_gguf() {
        true => ("attention.sliding_window_pattern", h.gguf_bools("attention.sliding_window_pattern")?),
        false => ("layer_types", h.hf_strings("layer_types")?.map(|types| slides(h, &types)).transpose()?),
    };
    match listed {
        Some(listed) if listed.len() != n_layers => {
            Err(h.invalid(format!("{key} has {} entries for {n_layers} layers", listed.len())))
        }
        listed => Ok(listed),
    }
}

fn slides(h: &Hyper<'_>, types: &[String]) -> Result<Vec<bool>> {
    let slides = |kind: &String| match kind.as_str() {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => Err(h.unsupported(format!("layer type {other:?} is not known"))),
    };
    types.iter().map(slides).collect()
}

/// Whether weights have biases; GGUF does not say it.
pub(super) fn read_bias(h: &Hyper<'_>, key: &str) -> Result<Presence> {
    Ok(match () {
        () if h.is_gguf() => Presence::Optional,
        () if h.hf_bool(key)?.unwrap_or(false) => Presence::Needed,
        () => Presence::Absent,
    })
}

/// A number that the model cannot be without, from 1 to `max`.
pub(super) fn size(h: &Hyper<'_>, ours: &str, max: usize) -> Result<usize> {
    let n = h.need_usize(ours)?;
    if n == 0 || n > max { Err(h.invalid(format!("{ours} is {n}"))) } else { Ok(n) }
}

/// Layers that a model runs. GGUF counts those that draft among them.
pub(crate) fn n_layers(h: &Hyper<'_>, n_draft_layers: usize) -> Result<usize> {
    let n = size(h, "n_layers", MAX_COUNT)?;
    let n_draft_layers = if h.is_gguf() { n_draft_layers } else { 0 };
    n.checked_sub(n_draft_layers)
        .filter(|&n| n > 0)
        .ok_or_else(|| h.invalid(format!("{n_draft_layers} of its {n} layers draft tokens")))
}

/// A number for each layer, where the file states one for all or one for each.
pub(crate) fn per_layer(h: &Hyper<'_>, ours: &str, n_layers: usize) -> Result<Option<Vec<usize>>> {
    let Some(numbers) = h.usizes(ours)? else { return Ok(None) };
    match numbers[..] {
        [all] => Ok(Some(vec![all; n_layers])),
        _ if numbers.len() == n_layers => Ok(Some(numbers)),
        // GGUF has numbers for the layers that draft, too.
        _ if h.usize("n_draft_layers")?.is_some_and(|n| numbers.len().checked_sub(n) == Some(n_layers)) => {
            Ok(Some(numbers[..n_layers].to_vec()))
        }
        _ => Err(h.invalid(format!("{ours} has {} numbers for {n_layers} layers", numbers.len()))),
    }
}

/// The heads of each layer.
fn read_heads(
    h: &Hyper<'_>,
    hidden_size: usize,
    n_layers: usize,
    n_kv_heads: Option<Vec<usize>>,
) -> Result<Vec<Heads>> {
    let n_heads = per_layer(h, "n_heads", n_layers)?;
    // Where it is missing, this says under which name.
    let n_heads = n_heads.map_or_else(|| h.need_usize("n_heads").map(|n| vec![n; n_layers]), Ok)?;
    let n_kv_heads = n_kv_heads.unwrap_or_else(|| n_heads.clone());
    let head_dim = h.usize("head_dim")?;
    let heads = |(n_heads, n_kv_heads): (usize, usize)| {
        if n_heads == 0 || n_heads > MAX_COUNT {
            return Err(h.invalid(format!("n_heads is {n_heads}")));
        }
        let head_dim = match head_dim {
            Some(n) => n,
            None if hidden_size.is_multiple_of(n_heads) => hidden_size / n_heads,
            None => {
                return Err(
                    h.invalid(format!("hidden_size {hidden_size} is not a multiple of {n_heads} heads"))
                );
            }
        };
        check_heads(h, Heads { n_heads, n_kv_heads, head_dim })
    };
    n_heads.into_iter().zip(n_kv_heads).map(heads).collect()
}

/// Errors: heads that no layer can have.
pub(crate) fn check_heads(h: &Hyper<'_>, heads: Heads) -> Result<Heads> {
    let Heads { n_heads, n_kv_heads, head_dim } = heads;
    if n_kv_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) {
        return Err(h.invalid(format!("{n_heads} query heads cannot share {n_kv_heads} key-value heads")));
    }
    if head_dim == 0 || head_dim > MAX_COUNT {
        return Err(h.invalid(format!("head_dim is {head_dim}")));
    }
    Ok(heads)
}

fn read_rope_dim(h: &Hyper<'_>, head_dim: usize) -> Result<usize> {
    let dim = match (h.usize("rope_dim")?, h.f32("partial_rotary_factor")?) {
        (Some(n), _) => n,
        (None, Some(f)) => (head_dim as f32 * f) as usize,
        (None, None) => head_dim,
    };
    check_rope_dim(h, dim, head_dim)
}

/// Errors: a rotation that heads of `head_dim` elements cannot have.
pub(crate) fn check_rope_dim(h: &Hyper<'_>, dim: usize, head_dim: usize) -> Result<usize> {
    if dim > head_dim || !dim.is_multiple_of(2) || dim == 0 {
        return Err(h.invalid(format!("RoPE turns {dim} elements of a head of {head_dim}")));
    }
    Ok(dim)
}

/// The activation that `config.json` calls so.
pub(crate) fn named_activation(h: &Hyper<'_>, name: &str) -> Result<Activation> {
    Ok(match name {
        "silu" | "swish" | "swiglu" => Activation::Silu,
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Activation::GeluTanh,
        "gelu" => Activation::GeluErf,
        "relu2" => Activation::ReluSquared,
        "relu" => Activation::Relu,
        other => return Err(h.unsupported(format!("activation {other:?} is not known"))),
    })
}

/// Rows of the embedding, which may be more than the tokenizer's tokens.
fn read_vocab_size(h: &Hyper<'_>, hidden_size: usize) -> Result<usize> {
    let embed =
        names::file_name(h.source(), "embed", None, None, "weight").ok_or_else(|| Error::MissingTensor {
            path: h.source().path().to_owned(),
            tensor: names::candidates("embed", h.source().format())[0].to_owned() + ".weight",
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
    Ok(vocab_size)
}

/// Only `config.json` can say that an output matrix in the file does not count, or that one must be there.
fn read_tied(h: &Hyper<'_>) -> Result<Tied> {
    let stated = if h.is_gguf() { None } else { h.hf_bool("tie_word_embeddings")? };
    Ok(match stated {
        None => Tied::IfAbsent,
        Some(true) => Tied::Always,
        Some(false) => Tied::Never,
    })
}
