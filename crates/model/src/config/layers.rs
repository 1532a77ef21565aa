//! The kinds of layers, and their sizes.

use super::Latent;
use realizar_compute::{
    Activation, AttentionParams, AttentionTemperature, DeltaShape, DtLimits, ExpertsKind, Heads, MoeParams,
    Router, SsmShape,
};

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
    /// Of the residual, once the mixer's output has joined it.
    pub after_mixer: Option<&'static str>,
    /// Of the residual, once the feed-forward block's output has joined it.
    pub after_ffn: Option<&'static str>,
}

impl LayerNorms {
    /// Before both blocks.
    pub const PRE: Self = Self {
        pre_mixer: Some("attn_norm"),
        post_mixer: None,
        pre_ffn: Some("ffn_norm"),
        post_ffn: None,
        after_mixer: None,
        after_ffn: None,
    };
    /// Before both blocks, where files call the second norm after the attention that it follows.
    pub const PRE_NAMED_POST_ATTENTION: Self = Self { pre_ffn: Some("post_attn_norm"), ..Self::PRE };
    /// After both blocks.
    pub const POST: Self = Self {
        pre_mixer: None,
        post_mixer: Some("post_attn_norm"),
        pre_ffn: None,
        post_ffn: Some("post_ffn_norm"),
        after_mixer: None,
        after_ffn: None,
    };
    /// Of the residual after each block (Vaswani et al. 2017).
    pub const AFTER: Self = Self {
        pre_mixer: None,
        post_mixer: None,
        pre_ffn: None,
        post_ffn: None,
        after_mixer: Some("attn_residual_norm"),
        after_ffn: Some("ffn_residual_norm"),
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
    /// Index into [`ModelConfig::ropes`](super::ModelConfig::ropes); `None`: no rotation.
    pub rope: Option<usize>,
    /// Sliding window, in tokens: those at a distance less than it.
    pub window: Option<usize>,
    /// Whether a token sees no later ones.
    pub causal: bool,
    /// Whether scores fall with distance (ALiBi).
    pub alibi: bool,
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
        let &Self { heads, scale, softcap, window, causal, alibi, .. } = self;
        AttentionParams { heads, scale, softcap, window, causal, alibi }
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
    /// A mixture of blocks.
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
    /// Whether experts and the shared one have gates.
    pub gated: bool,
    /// Length of what experts read and write, where that is not the residual's: matrices lead there and back.
    pub latent_size: Option<usize>,
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
    /// A vector that is added to the weighted sum of the chosen experts; not beside a norm of this sum.
    pub output_bias: Presence,
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
        MoeParams { router: self.router, activation: self.activation, gated: self.gated }
    }
}

/// An expert that all tokens use: a dense block without biases, with a gate where the others have one.
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
