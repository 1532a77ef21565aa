//! A decoder-only transformer, described as data.
//!
//! Every architecture of `arch/` is a function from a file's hyper-parameters to a [`ModelConfig`]; the loader and the one forward
//! pass in `decoder.rs` know nothing else about it.

mod latent;

pub(crate) use latent::INNER_EPS;
pub use latent::Latent;

use crate::hyper::Hyper;
use crate::names;
use crate::rope::{RopeConfig, read_scaling};
use crate::{Error, Result};
use realizar_compute::{
    Activation, AttentionParams, AttentionTemperature, DType, DeltaShape, Device, DtLimits, ExpertGroups,
    ExpertsKind, GroupScore, Heads, MoeParams, NormKind, RopeStyle, Router, RouterScores, SsmShape,
};

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
    /// Factor on what blocks add to the residual. Not 1 only where norms read the residual, nothing else does, and blocks' outputs have
    /// no norms: then the residual divided by it gives the same model, and no block has to multiply.
    pub residual_scale: f32,
    /// What each token has for each layer besides its embedding.
    pub per_layer_input: Option<PerLayerInput>,
    /// Whether a learned vector per position is added to the embeddings.
    pub learned_positions: bool,
    /// Kind of all norms.
    pub norm_kind: NormKind,
    /// Whether all norms have biases.
    pub norm_bias: bool,
    /// Epsilon of all norms.
    pub norm_eps: f32,
    /// The norm before the output matrix, by the name of its weight in [`NAMES`](crate::names::NAMES).
    pub final_norm: &'static str,
    /// Added to every norm weight at load: 1 where the file stores the weight's difference from 1.
    pub norm_offset: f32,
    /// The rotations that layers refer to.
    pub ropes: Vec<RopeConfig>,
    /// Factor on logits, before their soft cap; not 1 only where the output matrix has no bias.
    pub logit_scale: f32,
    /// Soft cap on logits.
    pub logit_softcap: Option<f32>,
    /// Whether the embedding is the output matrix too.
    pub tied: Tied,
    /// Whether the output matrix has a bias.
    pub lm_head_bias: Presence,
    /// Whether matrices stand transposed in the file, `[n_in, n_out]`.
    pub transposed: bool,
    /// The layers, from the first to the last.
    pub layers: Vec<LayerConfig>,
    /// Layers of the file behind these that only draft tokens (multi-token prediction); they are not read.
    pub n_draft_layers: usize,
}

/// Per-layer embeddings (Gemma 3n and 4): at the end of each layer, `post_norm(proj(activation(gate(residual)) · input))` is added to the
/// residual. A token's inputs of all layers come from a table of their own and from its embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerLayerInput {
    /// Elements of one layer's input.
    pub len: usize,
    /// On the gate.
    pub activation: Activation,
}

/// Whether a model's files have a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The model is wrong without it.
    Needed,
    /// It counts where it is there.
    Optional,
    /// The model has none: in a file it is an error.
    Absent,
}

/// Whether the embedding is the output matrix too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tied {
    /// Always; an output matrix in the file is a copy and not read.
    Always,
    /// Never: the file must have an output matrix.
    Never,
    /// Where the file has no output matrix.
    IfAbsent,
}

/// One layer: a block that mixes tokens, then one that treats each token by itself, or one of both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerConfig {
    /// The block that mixes tokens.
    pub mixer: Mixer,
    /// The feed-forward block.
    pub ffn: Ffn,
    /// The norms around both.
    pub norms: LayerNorms,
    /// Whether both blocks read the mixer's pre-norm and add to the residual side by side.
    pub parallel: bool,
    /// Whether the residual is multiplied with a number at the layer's end.
    pub output_scale: Presence,
}

/// Norms around a layer's blocks, by the names of their weights in [`NAMES`](crate::names::NAMES).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerNorms {
    /// Of the mixer's input; `None`: it reads the residual as it is.
    pub pre_mixer: Option<&'static str>,
    /// Of the mixer's output, before it joins the residual.
    pub post_mixer: Option<&'static str>,
    /// Of the feed-forward block's input; `None`: it reads the residual as it is or, in a parallel layer, the mixer's pre-norm.
    pub pre_ffn: Option<&'static str>,
    /// Of the feed-forward block's output, before it joins the residual.
    pub post_ffn: Option<&'static str>,
}

impl LayerNorms {
    /// Before both blocks.
    pub const PRE: Self =
        Self { pre_mixer: Some("attn_norm"), post_mixer: None, pre_ffn: Some("ffn_norm"), post_ffn: None };
    /// Before both blocks, where files call the second norm after the attention that it follows.
    pub const PRE_NAMED_POST_ATTENTION: Self = Self { pre_ffn: Some("post_attn_norm"), ..Self::PRE };
    /// After both blocks.
    pub const POST: Self = Self {
        pre_mixer: None,
        post_mixer: Some("post_attn_norm"),
        pre_ffn: None,
        post_ffn: Some("post_ffn_norm"),
    };
    /// Before and after both blocks.
    pub const PRE_AND_POST: Self =
        Self { post_mixer: Some("post_attn_norm"), post_ffn: Some("post_ffn_norm"), ..Self::PRE };
}

/// How tokens of a sequence act on each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mixer {
    /// Softmax attention over cached keys and values.
    Attention(Attention),
    /// Softmax attention over one cached vector per token (DeepSeek-AI 2024).
    Latent(Latent),
    /// The gated delta rule on a state of fixed size (Yang, Kautz and Hatamizadeh 2024).
    GatedDelta(GatedDelta),
    /// A convolution over the last tokens, between two gates.
    ShortConv(ShortConv),
    /// A state-space scan behind a convolution (Mamba-2, Dao and Gu 2024).
    Mamba2(Mamba2),
    /// Nothing: the layer has a feed-forward block only.
    None,
}

impl Mixer {
    /// Its attention, where it is one.
    pub(crate) fn attention_mut(&mut self) -> Option<&mut Attention> {
        match self {
            Self::Attention(attention) => Some(attention),
            Self::Latent(_) | Self::GatedDelta(_) | Self::ShortConv(_) | Self::Mamba2(_) | Self::None => None,
        }
    }

    /// Its state between steps, `None` for a block whose state is keys and values.
    pub fn recurrent_state(&self) -> Option<RecurrentState> {
        match self {
            Self::Attention(_) | Self::Latent(_) | Self::None => None,
            Self::Mamba2(Mamba2 { shape, conv_width, .. }) => Some(RecurrentState {
                conv_width: *conv_width,
                n_channels: shape.xbc_len(),
                matrix: Some([shape.n_heads, shape.state_dim, shape.head_dim]),
            }),
            Self::GatedDelta(GatedDelta { shape, conv_width }) => Some(RecurrentState {
                conv_width: *conv_width,
                n_channels: shape.qkv_len(),
                matrix: Some([shape.n_v_heads, shape.k_dim, shape.v_dim]),
            }),
            Self::ShortConv(ShortConv { n_channels, conv_width }) => {
                Some(RecurrentState { conv_width: *conv_width, n_channels: *n_channels, matrix: None })
            }
        }
    }
}

/// A block of the gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatedDelta {
    /// Heads and their sizes.
    pub shape: DeltaShape,
    /// Tokens that the convolution of queries, keys and values reads.
    pub conv_width: usize,
}

/// A block of Mamba-2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mamba2 {
    /// Heads, groups and their sizes.
    pub shape: SsmShape,
    /// Tokens that the convolution of `x`, `B` and `C` reads.
    pub conv_width: usize,
    /// Bias of the convolution.
    pub conv_bias: Presence,
    /// Bounds of time steps.
    pub dt_limits: DtLimits,
}

/// A block that is a gated convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortConv {
    /// Width of the convolution's input and output.
    pub n_channels: usize,
    /// Tokens that it reads.
    pub conv_width: usize,
}

/// What a block with recurrent state keeps of a sequence between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentState {
    /// Tokens that its convolution reads.
    pub conv_width: usize,
    /// Channels of the convolution.
    pub n_channels: usize,
    /// `[n_v_heads, k_dim, v_dim]` of the delta rule, `[n_heads, state_dim, head_dim]` of Mamba-2.
    pub matrix: Option<[usize; 3]>,
}

impl RecurrentState {
    /// Size of a slot of it, in `F32`.
    pub fn bytes(&self) -> usize {
        let matrix = self.matrix.map_or(0, |dims| dims.iter().product());
        4 * ((self.conv_width - 1) * self.n_channels + matrix)
    }
}

/// An attention block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Heads of this layer.
    pub heads: Heads,
    /// Where keys and values come from.
    pub kv: KvSource,
    /// How queries and keys are normalized before they turn.
    pub qk_norm: Option<QkNorm>,
    /// Factor on queries that grows with their position; not beside norms of single heads.
    pub temperature: Option<AttentionTemperature>,
    /// Index into [`ModelConfig::ropes`]; `None`: no rotation.
    pub rope: Option<usize>,
    /// Sliding window, in tokens.
    pub window: Option<usize>,
    /// Factor on query · key.
    pub scale: f32,
    /// Soft cap on scaled scores.
    pub softcap: Option<f32>,
    /// Whether each head has a sink: a score in the softmax's sum that belongs to no token.
    pub sinks: bool,
    /// Whether the input of `o_proj` is normalized.
    pub sub_norm: bool,
    /// Whether the input of `o_proj` is multiplied with the sigmoid of a gate, whose rows stand in `q_proj` behind each head's own.
    pub output_gate: bool,
    /// Biases of `q_proj`, `k_proj` and `v_proj`.
    pub qkv_bias: Presence,
    /// Bias of `o_proj`.
    pub o_bias: Presence,
}

impl Attention {
    /// What the operation wants to know.
    pub(crate) fn params(&self) -> AttentionParams {
        let &Self { heads, scale, softcap, window, .. } = self;
        AttentionParams { heads, scale, softcap, window }
    }

    /// The heads that the layer's own weights make: without those of keys and values where these are another layer's.
    pub fn own_heads(&self) -> Heads {
        match self.kv {
            KvSource::OfLayer(_) => Heads { n_kv_heads: 0, ..self.heads },
            KvSource::Own | KvSource::KeysAsValues => self.heads,
        }
    }

    /// The matrices before attention in the order of their rows, by the names of their weights; a matrix may serve twice.
    pub(crate) fn projections(&self) -> &'static [&'static str] {
        match self.kv {
            KvSource::Own => &["q_proj", "k_proj", "v_proj"],
            KvSource::KeysAsValues => &["q_proj", "k_proj", "k_proj"],
            KvSource::OfLayer(_) => &["q_proj"],
        }
    }
}

/// Where an attention block's keys and values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSource {
    /// Each has a matrix.
    Own,
    /// One matrix makes both; norms and rotation are those of each.
    KeysAsValues,
    /// From the cache of this earlier layer, which has heads of the same sizes and keys and values of its own. Queries then have no norm, or
    /// [`QkNorm::PerHeadWithValues`].
    OfLayer(usize),
}

/// What a norm of queries and keys averages over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head by itself; one weight of `head_dim` serves all heads.
    PerHead,
    /// As [`QkNorm::PerHead`], and each head of values by itself, without weights.
    PerHeadWithValues,
    /// As [`QkNorm::PerHead`], but after they have turned; rotation leaves lengths as they are.
    PerHeadAfterRotation,
    /// All heads of a token together; a weight for each element of each head.
    FullWidth,
}

/// What is done to each token by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ffn {
    /// `down(act(gate) · up)`
    Gated(Dense),
    /// `down(act(up))`
    Plain(Dense),
    /// A mixture of gated blocks.
    Experts(Experts),
    /// Nothing: the layer has a mixer only.
    None,
}

impl Ffn {
    /// Hidden activations: of a mixture, those of one expert.
    pub fn intermediate_size(&self) -> usize {
        match self {
            Self::Gated(dense) | Self::Plain(dense) => dense.intermediate_size,
            Self::Experts(experts) => experts.intermediate_size,
            Self::None => 0,
        }
    }
}

/// A dense feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dense {
    /// Hidden activations.
    pub intermediate_size: usize,
    /// Between the matrices.
    pub activation: Activation,
    /// Whether the input of `down_proj` is normalized.
    pub sub_norm: bool,
    /// Biases of all its matrices.
    pub bias: Presence,
}

/// Sizes and routing of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Experts in the layer.
    pub n_experts: usize,
    /// Hidden activations of one expert.
    pub intermediate_size: usize,
    /// How tokens choose.
    pub router: Router,
    /// Bias of the router's matrix.
    pub router_bias: Presence,
    /// Summand of the scores for the choice only.
    pub selection_bias: Presence,
    /// Between an expert's matrices.
    pub activation: Activation,
    /// Biases of the experts' matrices.
    pub bias: Presence,
    /// A factor on each expert's weight.
    pub output_scale: Presence,
    /// The expert that all tokens use beside those chosen.
    pub shared: Option<SharedExpert>,
    /// Whether router, experts and shared expert each have a norm of the residual, which they read, and the outputs of experts and shared
    /// expert have norms before they are added (Gemma 4).
    pub separate_norms: bool,
}

impl Experts {
    /// What a device must be able to run.
    pub fn kind(&self) -> ExpertsKind {
        let has = |presence| presence != Presence::Absent;
        ExpertsKind {
            n_experts: self.n_experts,
            params: self.params(),
            selection_bias: has(self.selection_bias),
            bias: has(self.bias),
            shared_gate: self.shared.is_some_and(|shared| shared.gate),
        }
    }

    /// The numbers of the computation.
    pub fn params(&self) -> MoeParams {
        MoeParams { router: self.router, activation: self.activation }
    }
}

/// An expert that all tokens use: a dense gated block without biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Hidden activations.
    pub intermediate_size: usize,
    /// Whether the sigmoid of a number per token is a factor on its output.
    pub gate: bool,
    /// Its matrices gate, up and down, by the names of their weights.
    pub proj: [&'static str; 3],
}

impl SharedExpert {
    /// An expert as files usually name it.
    pub(crate) fn new(intermediate_size: usize, gate: bool) -> Self {
        let proj = ["shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj"];
        Self { intermediate_size, gate, proj }
    }

    /// An expert that files name like the feed-forward block of a layer without experts.
    pub(crate) fn named_dense(intermediate_size: usize) -> Self {
        let proj = ["dense_expert.gate_proj", "dense_expert.up_proj", "dense_expert.down_proj"];
        Self { intermediate_size, gate: false, proj }
    }
}

/// More layers, heads or experts than this are a damaged file, not a model.
const MAX_COUNT: usize = 1 << 14;
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
    fn with_mixers(
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
            norm_kind: NormKind::Rms,
            norm_bias: false,
            norm_eps: eps.filter(|e| e.is_finite() && *e >= 0.0).unwrap_or(1e-5),
            final_norm: "final_norm",
            norm_offset: 0.0,
            ropes: vec![RopeConfig { dim: rope_dim, style: rope_style, theta, scaling }],
            logit_scale: 1.0,
            logit_softcap: None,
            tied: read_tied(h)?,
            lm_head_bias: Presence::Absent,
            transposed: false,
            layers: mixers.into_iter().zip(widths).map(layer).collect(),
            n_draft_layers: h.usize("n_draft_layers")?.unwrap_or(0),
        })
    }

    /// Changes the attention of all layers that have one.
    pub fn each_attention(&mut self, mut change: impl FnMut(&mut Attention)) {
        for layer in &mut self.layers {
            if let Some(attention) = layer.mixer.attention_mut() {
                change(attention);
            }
        }
    }

    /// Changes all dense feed-forward blocks.
    pub fn each_dense(&mut self, mut change: impl FnMut(&mut Dense)) {
        for layer in &mut self.layers {
            match &mut layer.ffn {
                Ffn::Gated(dense) | Ffn::Plain(dense) => change(dense),
                Ffn::Experts(_) | Ffn::None => {}
            }
        }
    }

    /// The attention blocks of all layers that have one, from the first layer to the last.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => Some(attention),
            _ => None,
        })
    }

    /// The heads of all layers that attend, as attention sees them: those of latent attention share one key.
    pub fn heads(&self) -> impl Iterator<Item = Heads> {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => Some(attention.heads),
            Mixer::Latent(latent) => Some(latent.shape.heads()),
            _ => None,
        })
    }

    /// The recurrent states of all layers that have one, from the first layer to the last.
    pub fn recurrent_states(&self) -> impl Iterator<Item = RecurrentState> {
        self.layers.iter().filter_map(|layer| layer.mixer.recurrent_state())
    }

    /// Whether a device can run layers of these kinds and sizes.
    ///
    /// Errors: `UnsupportedSize`.
    pub fn check_device(&self, device: &impl Device) -> realizar_compute::Result<()> {
        for layer in &self.layers {
            match &layer.mixer {
                Mixer::Attention(attention) => device.check_heads(attention.heads)?,
                Mixer::Latent(latent) => device.check_latent(&latent.shape)?,
                Mixer::GatedDelta(delta) => device.check_delta_rule(&delta.shape)?,
                Mixer::Mamba2(mamba) => device.check_ssm_scan(&mamba.shape)?,
                Mixer::ShortConv(_) | Mixer::None => {}
            }
        }
        self.experts().try_for_each(|e| device.check_experts(&e.kind()))
    }

    /// The mixtures of experts of all layers that have one.
    pub fn experts(&self) -> impl Iterator<Item = &Experts> {
        self.layers.iter().filter_map(|layer| match &layer.ffn {
            Ffn::Experts(experts) => Some(experts),
            _ => None,
        })
    }

    /// Changes all mixtures of experts.
    pub fn each_experts(&mut self, mut change: impl FnMut(&mut Experts)) {
        for layer in &mut self.layers {
            if let Ffn::Experts(experts) = &mut layer.ffn {
                change(experts);
            }
        }
    }

    /// Makes all dense feed-forward blocks `down(act(up))`.
    pub fn without_gates(&mut self) {
        for layer in &mut self.layers {
            if let Ffn::Gated(dense) = layer.ffn {
                layer.ffn = Ffn::Plain(dense);
            }
        }
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
            Some("silu" | "swish") => Activation::Silu,
            Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Activation::GeluTanh,
            Some("gelu") => Activation::GeluErf,
            Some("relu2") => Activation::ReluSquared,
            Some("relu") => Activation::Relu,
            Some(other) => return Err(h.unsupported(format!("activation {other:?} is not known"))),
        };
        self.each_dense(|dense| dense.activation = activation);
        Ok(())
    }

    /// A layer's index, and its attention, of all layers that have one.
    pub fn each_attention_by_layer(&mut self, mut change: impl FnMut(usize, &mut Attention)) {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            if let Some(attention) = layer.mixer.attention_mut() {
                change(i, attention);
            }
        }
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
                    router: Router::softmax(n_used, norm_topk),
                    router_bias: Presence::Absent,
                    selection_bias: Presence::Absent,
                    activation,
                    bias: Presence::Absent,
                    output_scale: Presence::Absent,
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

    /// Whether the factors on residual and logits can become part of embeddings and norms, as their fields say.
    pub(crate) fn factors_fold(&self) -> bool {
        let only_pre_norms = |layer: &LayerConfig| {
            let LayerNorms { pre_mixer, post_mixer, pre_ffn, post_ffn } = layer.norms;
            let reads_norms = (pre_mixer.is_some() || layer.mixer == Mixer::None)
                && (pre_ffn.is_some() || layer.parallel || layer.ffn == Ffn::None);
            reads_norms && post_mixer.is_none() && post_ffn.is_none()
        };
        let no_other_norms = self.latents().next().is_none()
            && self.attentions().all(|a| a.qk_norm.is_none() && !a.sub_norm)
            && self.layers.iter().all(|layer| match layer.ffn {
                Ffn::Gated(dense) | Ffn::Plain(dense) => !dense.sub_norm,
                Ffn::Experts(_) | Ffn::None => true,
            });
        let residual = self.layers.iter().all(only_pre_norms) && no_other_norms && !self.learned_positions;
        (self.residual_scale == 1.0 || residual)
            && (self.logit_scale == 1.0 || self.lm_head_bias == Presence::Absent)
    }

    /// Bytes of keys and values that one token takes in a cache of type `dtype`, in all layers together.
    pub fn kv_bytes_per_token(&self, dtype: DType) -> usize {
        let bytes = |a: &Attention| {
            let head = dtype.bytes_for(a.heads.head_dim).unwrap_or(a.heads.head_dim * 4);
            2 * a.own_heads().n_kv_heads * head
        };
        let latent = |l: &Latent| dtype.bytes_for(l.shape.key_dim()).unwrap_or(l.shape.key_dim() * 4);
        self.attentions().map(bytes).chain(self.latents().map(latent)).sum()
    }

    /// The first size of heads that is not whole blocks of `dtype`, for a cache of that type.
    pub fn head_dim_without_blocks_of(&self, dtype: DType) -> Option<usize> {
        self.heads().map(|heads| heads.head_dim).find(|dim| !dim.is_multiple_of(dtype.block_len()))
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
fn read_bias(h: &Hyper<'_>, key: &str) -> Result<Presence> {
    Ok(match () {
        () if h.is_gguf() => Presence::Optional,
        () if h.hf_bool(key)?.unwrap_or(false) => Presence::Needed,
        () => Presence::Absent,
    })
}

/// A number that the model cannot be without, from 1 to `max`.
fn size(h: &Hyper<'_>, ours: &str, max: usize) -> Result<usize> {
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
