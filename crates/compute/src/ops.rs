//! The primitive operations of a transformer, with their shapes.
//!
//! Outputs come first, then inputs, then scalars. Operations never allocate: model code owns all buffers. Activations are `F32`. The
//! meaning of each operation is its loop in `reference.rs`; what a layer makes of them stands in `blocks.rs`.

use crate::math::softplus;
use crate::sampling::Samplers;
use crate::{Device, KvLayer, Result, Tensor};
use std::ops::Range;

/// Normalization over the last dimension.
#[derive(Debug)]
pub struct Norm<B: Device> {
    /// Which mean is taken out.
    pub kind: NormKind,
    /// Factor, `[n]`.
    pub weight: Tensor<B>,
    /// Summand, `[n]`.
    pub bias: Option<Tensor<B>>,
    /// Added to the variance or mean square.
    pub eps: f32,
}

/// Kind of normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps)` (Zhang and Sennrich 2019).
    Rms,
    /// `(x - mean(x)) / sqrt(var(x) + eps)` (Ba et al. 2016).
    Layer,
}

/// How rotary embedding pairs the elements of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// `(0, 1), (2, 3), …`
    Interleaved,
    /// `(0, dim/2), (1, dim/2 + 1), …`
    Half,
}

/// Function between the matrices of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`
    Silu,
    /// Tanh approximation of GELU.
    GeluTanh,
    /// Exact GELU, by the error function.
    GeluErf,
    /// `max(x, 0)²`
    ReluSquared,
    /// `max(x, 0)`
    Relu,
    /// Of gate and up together, as in gpt-oss: `g · sigmoid(1.702 · g) · (u + 1)` with `g = min(gate, 7)` and `u` up within -7 and 7.
    /// Only a gated block can have it.
    ClampedSwiglu,
}

/// Sizes of an attention block's heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; a divisor of `n_heads`.
    pub n_kv_heads: usize,
    /// Elements in a head.
    pub head_dim: usize,
}

impl Heads {
    /// Elements of a row that holds `[q, k, v]` of one token.
    pub fn qkv_len(&self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }
}

/// Sizes of latent attention (DeepSeek-AI 2024, "DeepSeek-V2"): the keys and values of all heads are products of one vector of `kv_rank`
/// elements, which alone is kept of a token, with a key of `rope_dim` elements that turns and that all heads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentShape {
    /// Query heads.
    pub n_heads: usize,
    /// Elements of the vector that keys and values are made of.
    pub kv_rank: usize,
    /// Elements of a query that do not turn.
    pub nope_dim: usize,
    /// Elements of a query or key that turn, behind the others.
    pub rope_dim: usize,
    /// Elements of a head's value.
    pub v_dim: usize,
}

impl LatentShape {
    /// Elements of a query as its projection makes it.
    pub fn q_dim(&self) -> usize {
        self.nope_dim + self.rope_dim
    }

    /// Elements that are kept of a token: the vector, then the key that turns.
    pub fn key_dim(&self) -> usize {
        self.kv_rank + self.rope_dim
    }

    /// Heads as attention sees them: all queries share one key.
    pub fn heads(&self) -> Heads {
        Heads { n_heads: self.n_heads, n_kv_heads: 1, head_dim: self.key_dim() }
    }
}

/// Preparation of the rows of latent attention.
#[derive(Clone, Copy)]
pub struct LatentPrep<'a, B: Device> {
    /// Sizes.
    pub shape: LatentShape,
    /// Norm of the vector that is kept, over `kv_rank`.
    pub norm: &'a Norm<B>,
    /// `[n_tokens, rope_dim]`, of [`Ops::rope_angles`].
    pub angles: (&'a Tensor<B>, RopeStyle),
}

/// How attention weighs keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionParams {
    /// Head sizes.
    pub heads: Heads,
    /// Factor on query · key.
    pub scale: f32,
    /// `cap · tanh(score / cap)` on scaled scores.
    pub softcap: Option<f32>,
    /// A token sees itself and the `window - 1` tokens before it, without [`AttentionParams::causal`] also as many after it; all where
    /// `None`.
    pub window: Option<usize>,
    /// Whether a token sees no later ones. Otherwise it sees those of its sequence up to the end of the step.
    pub causal: bool,
    /// Whether [`AttentionParams::slope`] times the distance of query and key is taken off scaled scores, before their cap.
    pub alibi: bool,
}

impl AttentionParams {
    /// Positions that a token at position `at` sees in a sequence of `len` tokens, those of the step among them.
    pub fn seen(&self, at: usize, len: usize) -> Range<usize> {
        let start = self.window.map_or(0, |w| (at + 1).saturating_sub(w));
        let end = match self.causal {
            true => at + 1,
            false => self.window.map_or(len, |w| len.min(at.saturating_add(w))),
        };
        start..end
    }

    /// How fast the scores of a head fall with distance: the heads' slopes are a geometric series that ends at 2⁻⁸. Where their number is no
    /// power of two, those of the largest one within it come first, then every other one of the next larger series.
    ///
    /// Source: ALiBi (Press, Smith and Lewis 2022), section 3, and its reference implementation.
    pub fn slope(&self, head: usize) -> f32 {
        let n = 1 << self.heads.n_heads.ilog2();
        let exponent = match head < n {
            true => 8.0 * (head + 1) as f32 / n as f32,
            false => 4.0 * (2 * (head - n) + 1) as f32 / n as f32,
        };
        (-exponent).exp2()
    }
}

/// What becomes of the rows of a sequence's tokens where one row is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first, of a token that stands for the whole (`[CLS]`).
    First,
    /// The last.
    Last,
}

/// A factor on queries that grows with their position, so that attention stays sharp in long contexts (Llama 4, Ministral 3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionTemperature {
    /// How fast it grows.
    pub beta: f32,
    /// The factor changes every so many positions, and is 1 before; not 0.
    pub period: usize,
}

impl AttentionTemperature {
    /// `1 + beta · ln(1 + floor(position / period))`
    pub fn factor(self, position: u32) -> f32 {
        1.0 + self.beta * (1.0 + (position as usize / self.period) as f32).ln()
    }
}

/// Rotation of queries and keys, and their per-head norms before it.
#[derive(Clone, Copy)]
pub struct QkvPrep<'a, B: Device> {
    /// Head sizes.
    pub heads: Heads,
    /// Norms of each query and key head, over `head_dim`.
    pub qk_norm: Option<(&'a Norm<B>, &'a Norm<B>)>,
    /// `[n_tokens, rope_dim]`, of [`Ops::rope_angles`]; no rotation where `None`.
    pub angles: Option<(&'a Tensor<B>, RopeStyle)>,
}

/// Longest convolution that a [`ShortConv`] may be, in tokens.
pub const MAX_CONV_WIDTH: usize = 8;

/// A causal convolution over the tokens of a sequence, each channel by itself.
#[derive(Clone, Copy)]
pub struct ShortConv<'a, B: Device> {
    /// `[width, n_channels]`; the last row is multiplied with the token itself. `width` lies in `2..=MAX_CONV_WIDTH`.
    pub weight: &'a Tensor<B>,
    /// Added to the sum, `[n_channels]`.
    pub bias: Option<&'a Tensor<B>>,
    /// What stands around the sum.
    pub kind: ConvKind,
}

/// What stands around the sum of a [`ShortConv`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvKind {
    /// `silu(conv(x))`. The first `n_channels` elements of a row are `x`.
    Silu,
    /// `c · conv(b · x)`. A row is `[b, c, x]`.
    Gated,
}

/// Which key head a value head of the delta rule goes with, where there are several value heads for each key head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// The value heads of one key head lie side by side.
    Grouped,
    /// Value head `i` goes with key head `i mod n_k_heads`.
    Tiled,
}

/// Sizes of the gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of queries and keys.
    pub n_k_heads: usize,
    /// Heads of values, a multiple of `n_k_heads`.
    pub n_v_heads: usize,
    /// Elements in a head of queries or keys.
    pub k_dim: usize,
    /// Elements in a head of values.
    pub v_dim: usize,
    /// Which heads go together.
    pub order: HeadOrder,
}

impl DeltaShape {
    /// Elements of a row of queries, keys and values.
    pub fn qkv_len(&self) -> usize {
        2 * self.n_k_heads * self.k_dim + self.v_len()
    }

    /// Elements of a row of values.
    pub fn v_len(&self) -> usize {
        self.n_v_heads * self.v_dim
    }

    /// The key head that goes with a value head.
    pub fn k_head(&self, v_head: usize) -> usize {
        match self.order {
            HeadOrder::Grouped => v_head / (self.n_v_heads / self.n_k_heads),
            HeadOrder::Tiled => v_head % self.n_k_heads,
        }
    }
}

/// What [`Ops::delta_rule`] reads.
pub struct DeltaInput<'a, B: Device> {
    /// Queries, keys and values, `[n_tokens, qkv_len]`. Unspecified afterwards.
    pub qkv: &'a mut Tensor<B>,
    /// Has in its columns from `rates_start` on, for each value head, first `b` and then `a`. These are unspecified afterwards.
    pub rates: &'a mut Tensor<B>,
    /// Where `b` begins.
    pub rates_start: usize,
    /// `-exp(A_log)`, `[n_v_heads]`.
    pub decay: &'a Tensor<B>,
    /// Added to `a`, `[n_v_heads]`.
    pub dt_bias: &'a Tensor<B>,
}

/// Sizes of a state-space scan (Mamba-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SsmShape {
    /// Heads.
    pub n_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Groups of adjacent heads, each with one `B` and one `C`; divides `n_heads`.
    pub n_groups: usize,
    /// Elements of `B` and of `C`.
    pub state_dim: usize,
}

impl SsmShape {
    /// Elements of a row of `x`.
    pub fn inner_len(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Elements of a row of `x`, `B` and `C`.
    pub fn xbc_len(&self) -> usize {
        self.inner_len() + 2 * self.n_groups * self.state_dim
    }

    /// The group of a head.
    pub fn group(&self, head: usize) -> usize {
        head / (self.n_heads / self.n_groups)
    }
}

/// What [`Ops::ssm_scan`] reads.
#[derive(Clone, Copy)]
pub struct SsmInput<'a, B: Device> {
    /// `x` of all heads, then `B` and then `C` of all groups, `[n_tokens, xbc_len]`.
    pub xbc: &'a Tensor<B>,
    /// Has `dt` of each head in its columns from `dt_start` on.
    pub dt: &'a Tensor<B>,
    /// Where `dt` begins.
    pub dt_start: usize,
    /// `-exp(A_log)`, `[n_heads]`.
    pub decay: &'a Tensor<B>,
    /// Added to `dt`, `[n_heads]`.
    pub dt_bias: &'a Tensor<B>,
    /// `D`, the factor on what passes by the state, `[n_heads]`.
    pub skip: &'a Tensor<B>,
    /// Bounds of time steps.
    pub dt_limits: DtLimits,
}

/// Bounds of the time steps of a state-space scan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DtLimits {
    /// The least.
    pub min: f32,
    /// The largest, which may be infinite.
    pub max: f32,
}

impl DtLimits {
    /// No bounds: time steps are positive.
    pub const NONE: Self = Self { min: 0.0, max: f32::INFINITY };

    /// `softplus(dt)` within the bounds.
    pub(crate) fn time_step(self, dt: f32) -> f32 {
        softplus(dt).clamp(self.min, self.max)
    }
}

/// A norm of each group of a row's elements, with a gate on each element.
#[derive(Clone, Copy)]
pub struct GatedNorm<'a, B: Device> {
    /// Has weights for one group, which serve all, or for all.
    pub norm: &'a Norm<B>,
    /// Elements of a group.
    pub group_len: usize,
    /// Whether the gate multiplies what is normalized, rather than the result.
    pub gate_first: bool,
}

/// What a mixture of experts computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeParams {
    /// How tokens choose experts.
    pub router: Router,
    /// Of gate and up, or of up alone.
    pub activation: Activation,
    /// Whether an expert is `down(activation(gate) · up)`, and not `down(activation(up))`.
    pub gated: bool,
}

impl MoeParams {
    /// Outputs of an expert's first matrix for each hidden activation.
    pub const fn up_rows(&self) -> usize {
        if self.gated { 2 } else { 1 }
    }
}

/// How tokens choose experts by the router's logits.
///
/// Logits become scores, and a selection bias may be added to them. Each token uses the `n_used` experts that then have the largest
/// values, the lowest of equal ones. Their weights are their scores without the bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// Experts per token.
    pub n_used: usize,
    /// How logits become scores.
    pub scores: RouterScores,
    /// Divide the chosen experts' scores by their sum. With [`RouterScores::Softmax`] this is the softmax over the chosen experts only.
    pub norm_topk: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// Choose only among the experts of some groups.
    pub groups: Option<ExpertGroups>,
}

impl Router {
    /// The softmax over all experts.
    pub const fn softmax(n_used: usize, norm_topk: bool) -> Self {
        Self { n_used, scores: RouterScores::Softmax, norm_topk, scale: 1.0, groups: None }
    }
}

/// How the router's logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScores {
    /// Softmax over all experts of the layer.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
}

/// Experts in groups of consecutive ones, of which a token uses some only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups; a divisor of the number of experts.
    pub count: usize,
    /// Groups per token; the lowest of equal ones.
    pub n_used: usize,
    /// What groups are compared by.
    pub score: GroupScore,
}

/// What groups of experts are compared by, the selection bias included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// The largest value of a group (DeepSeek-V2).
    Largest,
    /// The sum of the two largest values of a group (DeepSeek-V3); groups have at least two experts.
    TopTwo,
}

/// The weights of a mixture of experts, and how tokens choose among them.
pub struct Experts<'a, B: Device> {
    /// `[n_experts, 2 · intermediate_size, hidden_size]`, gate first; without gates, `[n_experts, intermediate_size, hidden_size]`.
    pub gate_up: &'a B::Matrix,
    /// A number for each row of `gate_up`.
    pub gate_up_bias: Option<&'a Tensor<B>>,
    /// `[n_experts, hidden_size, intermediate_size]`
    pub down: &'a B::Matrix,
    /// `[n_experts, hidden_size]`
    pub down_bias: Option<&'a Tensor<B>>,
    /// Added to the scores for the choice only, `[n_experts]`.
    pub selection_bias: Option<&'a Tensor<B>>,
    /// Factors on the weights of chosen experts, after these were divided by their sum, `[n_experts]`.
    pub output_scale: Option<&'a Tensor<B>>,
    /// How tokens choose, and what experts compute.
    pub params: MoeParams,
}

/// What a mixture of experts has; see [`Device::check_experts`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsKind {
    /// Experts in the layer.
    pub n_experts: usize,
    /// How tokens choose, and what experts compute.
    pub params: MoeParams,
    /// Whether the choice has a bias.
    pub selection_bias: bool,
    /// Whether experts have biases.
    pub bias: bool,
    /// Whether a shared expert is weighed by a gate of its own.
    pub shared_gate: bool,
}

/// Buffers of [`Ops::moe`], each with room for `n_tokens · n_used` rows.
#[derive(Debug)]
pub struct MoeScratch<B: Device> {
    /// Inputs in the order of their experts, `[rows, hidden_size]`; the CPU reads them where they are.
    pub x: Tensor<B>,
    /// `[rows, 2 · intermediate_size]`.
    pub gate_up: Tensor<B>,
    /// `[rows, intermediate_size]`.
    pub hidden: Tensor<B>,
    /// `[rows, hidden_size]`.
    pub y: Tensor<B>,
}

/// What was chosen from a row of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// A token.
    Token(u32),
    /// A logit that is not a number, the first, or else one that is infinite.
    NotFinite {
        /// Of which token.
        token: u32,
        /// Not a number, as opposed to infinite.
        nan: bool,
    },
    /// All logits are minus infinity, which means never, or no token is allowed.
    Nothing,
}

impl Chosen {
    /// The token; 0 where none could be chosen.
    pub fn token_or_zero(self) -> u32 {
        match self {
            Self::Token(token) => token,
            _ => 0,
        }
    }
}

/// The operations that a device implements.
///
/// Errors: [`Error::Unsupported`](crate::Error::Unsupported) for an element type the device lacks,
/// [`Error::Device`](crate::Error::Device) when it fails.
pub trait Ops: Device {
    /// `y[n_tokens, hidden_size] = scale · table[token]`.
    fn embed(
        &self,
        y: &mut Tensor<Self>,
        table: &Self::Matrix,
        batch: &Self::Batch,
        scale: f32,
    ) -> Result<()>;

    /// `x[n_tokens, hidden_size] += table[position]`, with `table` `[n_positions, hidden_size]`.
    fn add_positions(&self, x: &mut Tensor<Self>, table: &Tensor<Self>, batch: &Self::Batch) -> Result<()>;

    /// `x[n_tokens, hidden_size] += table[token type]`, with `table` `[n_token_types, hidden_size]`, of a batch with token types.
    fn add_token_types(&self, x: &mut Tensor<Self>, table: &Tensor<Self>, batch: &Self::Batch) -> Result<()>;

    /// `y[n_tokens, 2 · n] = [cos(p · f) · scale; sin(p · f) · scale]`, with `f` `[n]` the frequencies and `p` each token's position.
    ///
    /// Source: RoFormer (Su et al. 2021), eq. 15.
    fn rope_angles(
        &self,
        y: &mut Tensor<Self>,
        f: &Tensor<Self>,
        batch: &Self::Batch,
        scale: f32,
    ) -> Result<()>;

    /// `y = norm(x)`, rows of the same length.
    fn norm(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, norm: &Norm<Self>) -> Result<()>;

    /// `x = norm(x)`.
    fn norm_in_place(&self, x: &mut Tensor<Self>, norm: &Norm<Self>) -> Result<()> {
        assert_eq!(x.row_len(), norm.weight.len());
        self.norm_columns(x, 0, norm)
    }

    /// `x[.., start..start + n] = norm(x[.., start..start + n])`, with `n` the elements of the norm; other columns stay as they are.
    fn norm_columns(&self, x: &mut Tensor<Self>, start: usize, norm: &Norm<Self>) -> Result<()>;

    /// `y += x`.
    fn add(&self, y: &mut Tensor<Self>, x: &Tensor<Self>) -> Result<()>;

    /// `y[n_tokens, n_out] = x[n_tokens, n_in] · wᵀ + bias[n_out]`.
    fn matmul(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        w: &Self::Matrix,
        bias: Option<&Tensor<Self>>,
    ) -> Result<()>;

    /// `x[n_tokens, ..n] *= temperature.factor(position)`; other columns stay as they are.
    fn scale_by_position(
        &self,
        x: &mut Tensor<Self>,
        n: usize,
        batch: &Self::Batch,
        temperature: AttentionTemperature,
    ) -> Result<()>;

    /// Prepares `qkv` `[n_tokens, qkv_len]` for attention: norms and rotates the query and key heads in place, and writes keys and
    /// values to their positions in the cache. Only the first `rope_dim` elements of a head turn. Rows of queries only, of heads with
    /// `n_kv_heads` 0, write nothing.
    fn store_kv(
        &self,
        qkv: &mut Tensor<Self>,
        kv: &mut KvLayer<Self>,
        batch: &Self::Batch,
        prep: QkvPrep<'_, Self>,
    ) -> Result<()>;

    /// Prepares the rows of latent attention. Of each row of `latent` `[n_tokens, key_dim]` it norms the first `kv_rank` elements, rotates the
    /// others, and writes all to the token's position in the cache. The last `rope_dim` elements of each head of `q`
    /// `[n_tokens, n_heads · q_dim]` go, rotated, to the end of the same head of `queries` `[n_tokens, n_heads · key_dim]`, whose other
    /// elements stay as they are.
    fn store_latent(
        &self,
        queries: &mut Tensor<Self>,
        q: &Tensor<Self>,
        latent: &Tensor<Self>,
        kv: &mut KvLayer<Self>,
        batch: &Self::Batch,
        prep: LatentPrep<'_, Self>,
    ) -> Result<()>;

    /// A product for each head: with `w` `[n_heads, n_out, n_in]`, the first `n_out` elements of head `h` in each row of `y` become
    /// `w[h]` times the first `n_in` elements of head `h` in the row of `x`. Heads are equal parts of a row; other elements stay as they are.
    fn head_matmul(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, w: &Self::Matrix) -> Result<()>;

    /// Attention of each token's queries over its sequence's cache, causal or in both directions: `y[n_tokens, n_heads · head_dim]`. The rows of `qkv` are those
    /// that [`Ops::store_kv`] prepared; queries come first in them. Over a [`Device::latent_layer`], `y` is `[n_tokens, n_heads · n]`
    /// where values are the first `n` elements of keys.
    ///
    /// `sinks`: `[n_heads]`, a score for each head that joins the softmax's sum and has no value ("attention sink").
    fn attention(
        &self,
        y: &mut Tensor<Self>,
        qkv: &Tensor<Self>,
        kv: &KvLayer<Self>,
        batch: &Self::Batch,
        params: &AttentionParams,
        sinks: Option<&Tensor<Self>>,
    ) -> Result<()>;

    /// A causal convolution: `y[n_tokens, n_channels]` of the rows of `x`. The inputs before a step's tokens are those in the slot that the
    /// batch names, zeros at the start of a sequence, and the slots that it says are written.
    ///
    /// `state`: [`StateLayer::conv`](crate::StateLayer::conv).
    fn short_conv(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        conv: ShortConv<'_, Self>,
        state: &mut Tensor<Self>,
        batch: &Self::Batch,
    ) -> Result<()>;

    /// The gated delta rule: `y[n_tokens, n_v_heads · v_dim]`. For each token and value head, with `S` the head's state, a matrix
    /// `[k_dim, v_dim]`, and `q̂`, `k̂` the query and key divided by their length:
    ///
    /// `S ← e^(decay · softplus(a + dt_bias)) · S`, `S ← S + k̂ ⊗ sigmoid(b) · (v - k̂ᵀS)`, `y = q̂ᵀS / √k_dim`
    ///
    /// States come from and go to the slots that the batch says. `state`: [`StateLayer::matrix`](crate::StateLayer::matrix). Source: Gated
    /// Delta Networks (Yang, Kautz and Hatamizadeh 2024), eq. 10.
    fn delta_rule(
        &self,
        y: &mut Tensor<Self>,
        input: DeltaInput<'_, Self>,
        state: &mut Tensor<Self>,
        batch: &Self::Batch,
        shape: &DeltaShape,
    ) -> Result<()>;

    /// The state-space scan of Mamba-2: `y[n_tokens, n_heads · head_dim]`. For each token and head, with `S` the head's state, a matrix
    /// `[state_dim, head_dim]`, and `B` and `C` those of the head's group:
    ///
    /// `Δ = clamp(softplus(dt + dt_bias))`, `S ← e^(decay · Δ) · S + B ⊗ Δ · x`, `y = CᵀS + skip · x`
    ///
    /// States come from and go to the slots that the batch says. `state`: [`StateLayer::matrix`](crate::StateLayer::matrix). Source:
    /// Transformers are SSMs (Dao and Gu 2024), section 7.
    fn ssm_scan(
        &self,
        y: &mut Tensor<Self>,
        input: SsmInput<'_, Self>,
        state: &mut Tensor<Self>,
        batch: &Self::Batch,
        shape: &SsmShape,
    ) -> Result<()>;

    /// `x = norm(x) · silu(g)` or, with the gate first, `x = norm(x · silu(g))`, where `g` is `gate[.., start..start + x.row_len()]`.
    fn gated_norm(
        &self,
        x: &mut Tensor<Self>,
        gate: &Tensor<Self>,
        start: usize,
        norm: GatedNorm<'_, Self>,
    ) -> Result<()>;

    /// `x *= sigmoid(gate)`, of one shape.
    fn sigmoid_gate(&self, x: &mut Tensor<Self>, gate: &Tensor<Self>) -> Result<()>;

    /// `y[n, len] = activation(x[n, ..len]) · x[n, len..]`, gate first; of both at once where [`Activation`] says so.
    fn gated(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, activation: Activation) -> Result<()>;

    /// `y = activation(y) · x[.., start..start + y.row_len()]`, of a function of one number; rows go together.
    fn gate_columns(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        start: usize,
        activation: Activation,
    ) -> Result<()>;

    /// `x = activation(x)`, of a function of one number.
    fn activate(&self, x: &mut Tensor<Self>, activation: Activation) -> Result<()>;

    /// Mixture of experts: each token goes to the experts that [`Router`] chooses by the logits `router` `[n_tokens, n_experts]`, and
    /// gets the weighted sum of their gated feed-forward blocks.
    fn moe(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        router: &Tensor<Self>,
        experts: &Experts<'_, Self>,
        scratch: &mut MoeScratch<Self>,
    ) -> Result<()>;

    /// `x = cap · tanh(x / cap)`.
    fn softcap(&self, x: &mut Tensor<Self>, cap: f32) -> Result<()>;

    /// `x[n, len] *= factors[len]`.
    fn scale_columns(&self, x: &mut Tensor<Self>, factors: &Tensor<Self>) -> Result<()>;

    /// `x[n, len] += summands[len]`.
    fn add_columns(&self, x: &mut Tensor<Self>, summands: &Tensor<Self>) -> Result<()>;

    /// `x[n, len] *= sigmoid(gate[n])`, with `gate` `[n, 1]`.
    fn gate_rows(&self, x: &mut Tensor<Self>, gate: &Tensor<Self>) -> Result<()>;

    /// `x *= factor`.
    fn scale(&self, x: &mut Tensor<Self>, factor: f32) -> Result<()>;

    /// The rows of `x` that yield logits: `y[n_logits, n]`.
    fn select_rows(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, batch: &Self::Batch) -> Result<()>;

    /// The row of the token before each: `y[n_tokens, n]`, from `before[n_before, n]` of the previous step or from `here[n_tokens, n]`, as
    /// [`HostBatch::previous`](crate::HostBatch::previous) says; zeros where it is unknown. The batch is of a model that drafts.
    fn select_previous(
        &self,
        y: &mut Tensor<Self>,
        before: &Tensor<Self>,
        here: &Tensor<Self>,
        batch: &Self::Batch,
    ) -> Result<()>;

    /// One row of those of each sequence's tokens: `y[n_seqs, n]` of `x[n_tokens, n]`.
    fn pool(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        batch: &Self::Batch,
        pooling: Pooling,
    ) -> Result<()>;

    /// Chooses the token with the largest logit, the lowest of equal ones, from each row of `logits` `[n_logits, vocab_size]`.
    /// Deferred tokens of the batch that is staged next are of these.
    fn argmax(&self, batch: &mut Self::Batch, logits: &Tensor<Self>) -> Result<()>;

    /// Hands the device what [`Ops::sample`] shall do with each row of logits of the step that is staged.
    ///
    /// Errors: `OutOfMemory` if what the rows know, such as the tokens that penalties look at, has become larger than what is free.
    fn stage_samplers(&self, batch: &mut Self::Batch, samplers: &Samplers) -> Result<()>;

    /// Chooses a token from each row of `logits` `[n_logits, vocab_size]` as [`crate::sampling`] defines it, in the ways staged last.
    /// Deferred tokens of the batch that is staged next are of these. The contents of `logits` are unspecified afterwards.
    fn sample(&self, batch: &mut Self::Batch, logits: &mut Tensor<Self>) -> Result<()>;

    /// Sends the host what was chosen for the batch that is staged, once.
    fn fetch_choices(&self, batch: &mut Self::Batch) -> Result<Self::Choices>;

    /// Waits for choices, and appends one for each row.
    fn wait_for_choices(&self, choices: Self::Choices, out: &mut Vec<Chosen>) -> Result<()>;
}
