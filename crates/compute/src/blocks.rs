//! The blocks of a layer: attention, feed-forward, experts, and the output head, each one struct and one call.
//!
//! A block reads the residual stream and adds its result to it. The default bodies are what the blocks mean, made of [`Ops`]; a backend
//! replaces a whole block where it has it in fewer kernels. A decoder calls blocks and does not know what is fused.

mod latent;

pub use latent::{LatentBlock, LatentQueries, LatentRoom, latent};

use crate::{
    Activation, AttentionParams, AttentionTemperature, Collectives, DeltaInput, DeltaShape, Device, DtLimits,
    Experts, GatedNorm, KvLayer, MoeParams, MoeScratch, Norm, Ops, Profile, QkvPrep, Result, ShortConv,
    SsmInput, SsmShape, StateLayer, Tensor,
};

/// A matrix with what follows its product.
pub struct Linear<B: Device> {
    /// `[n_out, n_in]`
    pub weight: B::Matrix,
    /// Factors on the outputs, `[n_out]`; never beside a bias.
    pub scale: Option<Tensor<B>>,
    /// `[n_out]`
    pub bias: Option<Tensor<B>>,
}

impl<B: Device> Linear<B> {
    /// A matrix that nothing follows.
    pub fn bare(weight: B::Matrix) -> Self {
        Self { weight, scale: None, bias: None }
    }
}

impl<B: Ops> Linear<B> {
    /// `y[n_tokens, n_out] = x[n_tokens, n_in] · weightᵀ · scale + bias`
    pub fn apply(&self, backend: &B, y: &mut Tensor<B>, x: &Tensor<B>) -> Result<()> {
        backend.matmul(y, x, &self.weight, self.bias.as_ref())?;
        self.apply_scale(backend, y)
    }

    /// `y = y · scale`, where there is one.
    pub fn apply_scale(&self, backend: &B, y: &mut Tensor<B>) -> Result<()> {
        match &self.scale {
            Some(scale) => backend.scale_columns(y, scale),
            None => Ok(()),
        }
    }
}

/// The residual stream, and room for what every block makes of it. All are `[n_tokens, hidden_size]`.
pub struct Stream<'a, B: Device> {
    /// What blocks add to.
    pub residual: &'a mut Tensor<B>,
    /// Room for the norm of the residual. Its contents are unspecified after a block that does not read [`BlockInput::Shared`].
    pub normed: &'a mut Tensor<B>,
    /// Room for a block's output before it joins the residual.
    pub output: &'a mut Tensor<B>,
    /// The residual as matrices read it, if the block before left it so. `residual` is what [`Blocks::read_operand`] makes of it then.
    pub operand: Option<B::Operand>,
}

impl<B: Blocks> Stream<'_, B> {
    /// Makes `residual` what it stands for, for what does not read the operand.
    pub fn make_floats(&mut self, b: &B) -> Result<()> {
        self.operand.take().map_or(Ok(()), |operand| b.read_operand(self.residual, operand))
    }
}

/// What follows the embedding of tokens: `residual = norm(residual + positions[position] + token_types[type])`.
pub struct EmbedBlock<'a, B: Device> {
    /// `[n_positions, hidden_size]`
    pub positions: Option<&'a Tensor<B>>,
    /// `[n_token_types, hidden_size]`
    pub token_types: Option<&'a Tensor<B>>,
    /// Of the sum.
    pub norm: Option<&'a Norm<B>>,
}

/// What a block reads.
pub enum BlockInput<'a, B: Device> {
    /// The residual as it is.
    Residual,
    /// The residual's norm.
    Norm(&'a Norm<B>),
    /// What [`Stream::normed`] holds: blocks side by side share one norm. It is left as it is.
    Shared,
}

impl<B: Device> Clone for BlockInput<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Device> Copy for BlockInput<'_, B> {}

/// The matrix that leads from a block back to the residual, and the norms around it.
pub struct BlockOutput<'a, B: Device> {
    /// Of the matrix's input.
    pub sub_norm: Option<&'a Norm<B>>,
    /// The matrix.
    pub proj: &'a Linear<B>,
    /// Of its output, before that is added to the residual.
    pub post_norm: Option<&'a Norm<B>>,
    /// Of the residual, after the output was added to it.
    pub sum_norm: Option<&'a Norm<B>>,
    /// How ranks join their parts.
    pub join: Join<'a, B>,
}

/// How the last matrix of a block joins what ranks have.
pub enum Join<'a, B: Device> {
    /// There is one rank.
    Alone,
    /// Each rank has some columns of the matrix, and the ranks' outputs are added.
    Sum,
    /// Each rank has some rows of the matrix. Ranks exchange its input, and then its output, so that every number is computed by the same
    /// operations in the same order as by one rank.
    Gather {
        /// The input of all ranks.
        input: Gather<'a, B>,
        /// This rank's columns of the output; all ranks' go to [`Stream::output`].
        output: Gather<'a, B>,
    },
}

/// Columns that ranks exchange.
pub struct Gather<'a, B: Device> {
    /// `[n_tokens, columns]`
    pub columns: &'a mut Tensor<B>,
    /// Where each rank's columns begin, and after the last their number.
    pub starts: &'a [usize],
}

/// Attention of a layer: `residual = sum_norm(residual + post_norm(o(attention(qkv(input)))))`.
pub struct AttentionBlock<'a, B: Device> {
    /// What it reads.
    pub input: BlockInput<'a, B>,
    /// Queries, keys and values, stacked.
    pub qkv: &'a Linear<B>,
    /// Norms of the queries and of the keys of a token, each over all heads together, before [`AttentionBlock::prep`].
    pub full_qk_norm: Option<(&'a Norm<B>, &'a Norm<B>)>,
    /// Norms of all heads of `qkv`, those of values too, before [`AttentionBlock::prep`].
    pub head_norms: Option<HeadNorms<'a, B>>,
    /// Factor on the queries, before [`AttentionBlock::prep`], whose norms would undo it.
    pub temperature: Option<AttentionTemperature>,
    /// Norms of single heads, and rotation, of queries and keys.
    pub prep: QkvPrep<'a, B>,
    /// Factors on rows of `[q, k, v]` after [`AttentionBlock::prep`], `[qkv_len]`. Only those of queries count, since keys and values are in
    /// the cache by then.
    pub query_factors: Option<&'a Tensor<B>>,
    /// How keys are weighed.
    pub params: &'a AttentionParams,
    /// Scores of the heads' sinks, `[n_heads]`.
    pub sinks: Option<&'a Tensor<B>>,
    /// The layer's cache.
    pub kv: &'a mut KvLayer<B>,
    /// What is attended is multiplied with the sigmoid of this.
    pub gate: Option<OutputGate<'a, B>>,
    /// Back to the residual.
    pub out: BlockOutput<'a, B>,
    /// Room for queries, keys and values, `[n_tokens, qkv_len]`.
    pub qkv_rows: &'a mut Tensor<B>,
    /// Room for what was attended, `[n_tokens, n_heads · head_dim]`.
    pub attended: &'a mut Tensor<B>,
}

/// Norms of single heads, of queries, keys and values alike.
#[derive(Clone, Copy)]
pub struct HeadNorms<'a, B: Device> {
    /// Over a head's elements, without weights.
    pub norm: &'a Norm<B>,
    /// The weights of all heads, `[row_len]` of `qkv`.
    pub weights: &'a Tensor<B>,
}

/// A gate on what was attended.
pub struct OutputGate<'a, B: Device> {
    /// From the block's input, `[n_heads · head_dim, hidden_size]`.
    pub proj: &'a Linear<B>,
    /// Room for its product, `[n_tokens, n_heads · head_dim]`.
    pub rows: &'a mut Tensor<B>,
}

/// A block with recurrent state: `residual += post_norm(o(mixed))`, where `mixed` is a convolution of the projected input or what
/// [`RecurrentBlock::recurrence`] makes of it.
pub struct RecurrentBlock<'a, B: Device> {
    /// What it reads.
    pub input: BlockInput<'a, B>,
    /// What the convolution reads, stacked on the gate and the rates of the recurrence, where there is one: `b` and `a` of the delta rule,
    /// `dt` of a state-space scan.
    pub in_proj: &'a Linear<B>,
    /// The convolution.
    pub conv: ShortConv<'a, B>,
    /// What follows it.
    pub recurrence: Recurrence<'a, B>,
    /// The layer's state.
    pub state: &'a mut StateLayer<B>,
    /// Back to the residual.
    pub out: BlockOutput<'a, B>,
    /// Room for the product of `in_proj`.
    pub rows: &'a mut Tensor<B>,
    /// Room for what the last matrix reads.
    pub mixed: &'a mut Tensor<B>,
}

/// What follows the convolution of a [`RecurrentBlock`].
pub enum Recurrence<'a, B: Device> {
    /// Nothing.
    None,
    /// The gated delta rule.
    Delta(DeltaPart<'a, B>),
    /// A state-space scan (Mamba-2).
    Ssm(SsmPart<'a, B>),
}

/// The state-space scan of a [`RecurrentBlock`], on `x`, `B` and `C` from its convolution.
pub struct SsmPart<'a, B: Device> {
    /// Sizes.
    pub shape: &'a SsmShape,
    /// `-exp(A_log)`, `[n_heads]`.
    pub decay: &'a Tensor<B>,
    /// Added to `dt`, `[n_heads]`.
    pub dt_bias: &'a Tensor<B>,
    /// `D`, `[n_heads]`.
    pub skip: &'a Tensor<B>,
    /// Bounds of time steps.
    pub dt_limits: DtLimits,
    /// Of each group's gated result: `[inner_len]`.
    pub norm: &'a Norm<B>,
    /// Room for `x`, `B` and `C`, `[n_tokens, xbc_len]`.
    pub convolved: &'a mut Tensor<B>,
}

/// The gated delta rule of a [`RecurrentBlock`], on queries, keys and values from its convolution.
pub struct DeltaPart<'a, B: Device> {
    /// Sizes.
    pub shape: &'a DeltaShape,
    /// `-exp(A_log)`, `[n_v_heads]`.
    pub decay: &'a Tensor<B>,
    /// Added to `a`, `[n_v_heads]`.
    pub dt_bias: &'a Tensor<B>,
    /// Of each head's result, before the gate: `[v_dim]`.
    pub norm: &'a Norm<B>,
    /// Room for queries, keys and values, `[n_tokens, qkv_len]`.
    pub convolved: &'a mut Tensor<B>,
}

/// The matrices before a feed-forward block's last one.
pub enum FfnUp<'a, B: Device> {
    /// `activation(gate) · up`, both from one stacked matrix, gate first.
    Gated {
        /// `[2 · intermediate_size, hidden_size]`
        gate_up: &'a Linear<B>,
        /// Room for gate and up, `[n_tokens, 2 · intermediate_size]`.
        rows: &'a mut Tensor<B>,
    },
    /// `activation(up)`.
    Plain {
        /// `[intermediate_size, hidden_size]`
        up: &'a Linear<B>,
    },
}

/// A dense feed-forward block: `residual = sum_norm(residual + post_norm(down(activation(up(input)))))`.
pub struct FfnBlock<'a, B: Device> {
    /// What it reads.
    pub input: BlockInput<'a, B>,
    /// To the hidden activations.
    pub up: FfnUp<'a, B>,
    /// Between the matrices.
    pub activation: Activation,
    /// Back to the residual.
    pub out: BlockOutput<'a, B>,
    /// Room for the hidden activations, `[n_tokens, intermediate_size]`.
    pub hidden: &'a mut Tensor<B>,
}

/// A feed-forward block that every token goes through beside its chosen experts. It has a gate where they do.
pub struct SharedExpert<'a, B: Device> {
    /// `[2 · intermediate_size, hidden_size]`, gate first; without a gate, `[intermediate_size, hidden_size]`.
    pub gate_up: &'a Linear<B>,
    /// `[hidden_size, intermediate_size]`
    pub down: &'a Linear<B>,
    /// `[1, hidden_size]`: the sigmoid of its product is the factor on the output, which is 1 without it.
    pub gate: Option<&'a Linear<B>>,
    /// Room for gate and up, `[n_tokens, 2 · intermediate_size]`.
    pub rows: &'a mut Tensor<B>,
    /// Room for the hidden activations, `[n_tokens, intermediate_size]`.
    pub hidden: &'a mut Tensor<B>,
}

/// Norms within a mixture whose router, experts and shared expert each read the residual by a norm of their own (Gemma 4). The block's
/// [`input`](MoeBlock::input) is the shared expert's.
pub struct MoeNorms<'a, B: Device> {
    /// Of the router's input.
    pub router: &'a Norm<B>,
    /// Of the experts' input.
    pub experts: &'a Norm<B>,
    /// Of the sum over chosen experts.
    pub post_experts: &'a Norm<B>,
    /// Of the shared expert's output.
    pub post_shared: &'a Norm<B>,
}

/// Matrices around experts that read and write vectors of another length than the residual's (Nemotron 3).
pub struct LatentExperts<'a, B: Device> {
    /// To the experts' input, `[latent_size, hidden_size]`.
    pub down: &'a Linear<B>,
    /// From the sum over chosen experts, `[hidden_size, latent_size]`.
    pub up: &'a Linear<B>,
    /// Room for the experts' input, `[n_tokens, latent_size]`.
    pub x: &'a mut Tensor<B>,
    /// Room for their sum, `[n_tokens, latent_size]`.
    pub y: &'a mut Tensor<B>,
    /// Room for the shared expert's output, `[n_tokens, hidden_size]`.
    pub shared: &'a mut Tensor<B>,
}

/// A mixture of experts: `residual += post_norm(sum over chosen experts + shared expert)`.
pub struct MoeBlock<'a, B: Device> {
    /// What it reads.
    pub input: BlockInput<'a, B>,
    /// Scores of experts, `[n_experts, hidden_size]`.
    pub router: &'a Linear<B>,
    /// The experts.
    pub experts: Experts<'a, B>,
    /// The one that all tokens use.
    pub shared: Option<SharedExpert<'a, B>>,
    /// Where experts do not read the block's input as it is; not beside [`MoeBlock::norms`].
    pub latent: Option<LatentExperts<'a, B>>,
    /// Where the parts do not share the block's input; experts have gates then.
    pub norms: Option<MoeNorms<'a, B>>,
    /// Of the sum, before that is added to the residual.
    pub post_norm: Option<&'a Norm<B>>,
    /// Whether each rank has a part of every expert, and ranks add their sums.
    pub is_part: bool,
    /// Room for the router's scores, `[n_tokens, n_experts]`.
    pub scores: &'a mut Tensor<B>,
    /// Room for the experts.
    pub scratch: &'a mut MoeScratch<B>,
}

/// A block that adds what a token has for this layer: `residual += post_norm(o(activation(gate(residual)) · inputs))`.
pub struct PerLayerInputBlock<'a, B: Device> {
    /// `[len, hidden_size]`
    pub gate: &'a Linear<B>,
    /// On the gate.
    pub activation: Activation,
    /// Has the layer's `len` columns from `start` on.
    pub inputs: &'a Tensor<B>,
    /// Where they begin.
    pub start: usize,
    /// Back to the residual.
    pub out: BlockOutput<'a, B>,
    /// Room for the gate, `[n_tokens, len]`.
    pub rows: &'a mut Tensor<B>,
}

/// The output head: `logits = softcap(linear(norm(x)))`.
pub struct HeadBlock<'a, B: Device> {
    /// Rows of the residual that yield logits, `[n_logits, hidden_size]`.
    pub x: &'a Tensor<B>,
    /// The final norm.
    pub norm: &'a Norm<B>,
    /// `[vocab_size, hidden_size]`, or this rank's rows of it.
    pub linear: &'a Linear<B>,
    /// `cap · tanh(logit / cap)`
    pub softcap: Option<f32>,
    /// Room for the norm, as `x`.
    pub normed: &'a mut Tensor<B>,
    /// This rank's logits, where several ranks have parts.
    pub gather: Option<Gather<'a, B>>,
}

/// The blocks of a layer. After a block, the contents of all tensors but the residual, the cache and a shared norm are unspecified. A block
/// that returns a [`Stream::operand`], in the memory of one of these, may have left the sum there and not in the residual.
pub trait Blocks: Ops + Collectives + Profile {
    /// `residual = operand`, where the block that returned it has left the sum there alone.
    fn read_operand(&self, residual: &mut Tensor<Self>, operand: Self::Operand) -> Result<()>;

    /// What follows the embedding of tokens.
    fn embed_block(
        &self,
        residual: &mut Tensor<Self>,
        batch: &Self::Batch,
        block: EmbedBlock<'_, Self>,
    ) -> Result<()> {
        embed(self, residual, batch, block)
    }

    /// Attention, with its way into the cache.
    fn attention_block(
        &self,
        stream: Stream<'_, Self>,
        batch: &Self::Batch,
        block: AttentionBlock<'_, Self>,
    ) -> Result<Option<Self::Operand>> {
        attention(self, stream, batch, block).map(|()| None)
    }

    /// Latent attention, with its way into the cache.
    fn latent_block(
        &self,
        stream: Stream<'_, Self>,
        batch: &Self::Batch,
        block: LatentBlock<'_, Self>,
    ) -> Result<()> {
        latent(self, stream, batch, block)
    }

    /// A block with recurrent state.
    fn recurrent_block(
        &self,
        stream: Stream<'_, Self>,
        batch: &Self::Batch,
        block: RecurrentBlock<'_, Self>,
    ) -> Result<()> {
        recurrent(self, stream, batch, block)
    }

    /// A dense feed-forward block.
    fn feed_forward(
        &self,
        stream: Stream<'_, Self>,
        block: FfnBlock<'_, Self>,
    ) -> Result<Option<Self::Operand>> {
        feed_forward(self, stream, block).map(|()| None)
    }

    /// A mixture of experts.
    fn experts(&self, stream: Stream<'_, Self>, block: MoeBlock<'_, Self>) -> Result<()> {
        experts(self, stream, block)
    }

    /// What a token has for this layer.
    fn per_layer_input(&self, stream: Stream<'_, Self>, block: PerLayerInputBlock<'_, Self>) -> Result<()> {
        per_layer_input(self, stream, block)
    }

    /// The output head: `logits` `[n_logits, vocab_size]` of all ranks.
    fn head(&self, logits: &mut Tensor<Self>, block: HeadBlock<'_, Self>) -> Result<()> {
        head(self, logits, block)
    }
}

/// What [`Blocks::embed_block`] means.
pub fn embed<B: Blocks>(
    b: &B,
    residual: &mut Tensor<B>,
    batch: &B::Batch,
    block: EmbedBlock<'_, B>,
) -> Result<()> {
    let EmbedBlock { positions, token_types, norm } = block;
    b.timed("embed", || {
        positions.map_or(Ok(()), |table| b.add_positions(residual, table, batch))?;
        token_types.map_or(Ok(()), |table| b.add_token_types(residual, table, batch))
    })?;
    norm_sum(b, residual, norm)
}

/// What [`Blocks::attention_block`] means.
pub fn attention<B: Blocks>(
    b: &B,
    mut stream: Stream<'_, B>,
    batch: &B::Batch,
    block: AttentionBlock<'_, B>,
) -> Result<()> {
    let AttentionBlock {
        input,
        qkv,
        full_qk_norm,
        head_norms,
        temperature,
        prep,
        gate,
        kv,
        params,
        query_factors,
        sinks,
        out,
        qkv_rows,
        attended,
    } = block;
    b.timed("qkv_proj", || project(b, qkv, qkv_rows, input, &mut stream))?;
    norm_queries_and_keys(b, qkv_rows, full_qk_norm)?;
    norm_heads(b, qkv_rows, head_norms)?;
    scale_queries(b, qkv_rows, batch, &prep, temperature)?;
    b.timed("store_kv", || b.store_kv(qkv_rows, kv, batch, prep))?;
    if let Some(factors) = query_factors {
        b.timed("scale_queries", || b.scale_columns(qkv_rows, factors))?;
    }
    b.timed("attention", || b.attention(attended, qkv_rows, kv, batch, params, sinks))?;
    if let Some(OutputGate { proj, rows }) = gate {
        let x = if let BlockInput::Residual = input { &*stream.residual } else { &*stream.normed };
        b.timed("output_gate", || {
            proj.apply(b, rows, x)?;
            b.sigmoid_gate(attended, rows)
        })?;
    }
    add_output(b, "o_proj", attended, stream, out)
}

/// What [`Blocks::recurrent_block`] means.
pub fn recurrent<B: Blocks>(
    b: &B,
    mut stream: Stream<'_, B>,
    batch: &B::Batch,
    block: RecurrentBlock<'_, B>,
) -> Result<()> {
    let RecurrentBlock { input, in_proj, conv, recurrence, state, out, rows, mixed } = block;
    b.timed("in_proj", || project(b, in_proj, rows, input, &mut stream))?;
    match recurrence {
        Recurrence::None => {
            b.timed("short_conv", || b.short_conv(mixed, rows, conv, &mut state.conv, batch))?
        }
        Recurrence::Ssm(part) => ssm(b, mixed, rows, conv, state, batch, part)?,
        Recurrence::Delta(DeltaPart { shape, decay, dt_bias, norm, convolved }) => {
            b.timed("short_conv", || b.short_conv(convolved, rows, conv, &mut state.conv, batch))?;
            let (gate_start, rates_start) = (shape.qkv_len(), shape.qkv_len() + shape.v_len());
            let matrix = state.matrix.as_mut().expect("a layer with the delta rule keeps its matrix");
            b.timed("delta_rule", || {
                let input = DeltaInput { qkv: convolved, rates: rows, rates_start, decay, dt_bias };
                b.delta_rule(mixed, input, matrix, batch, shape)
            })?;
            let norm = GatedNorm { norm, group_len: shape.v_dim, gate_first: false };
            b.timed("gated_norm", || b.gated_norm(mixed, rows, gate_start, norm))?;
        }
    }
    add_output(b, "out_proj", mixed, stream, out)
}

/// The convolution of `rows`, the state-space scan of it, the gate and the norm after it: `mixed` `[n_tokens, inner_len]`.
pub(crate) fn ssm<B: Blocks>(
    b: &B,
    mixed: &mut Tensor<B>,
    rows: &Tensor<B>,
    conv: ShortConv<'_, B>,
    state: &mut StateLayer<B>,
    batch: &B::Batch,
    part: SsmPart<'_, B>,
) -> Result<()> {
    let SsmPart { shape, decay, dt_bias, skip, dt_limits, norm, convolved } = part;
    let (gate_start, inner_len) = (shape.xbc_len(), shape.inner_len());
    b.timed("short_conv", || b.short_conv(convolved, rows, conv, &mut state.conv, batch))?;
    let matrix = state.matrix.as_mut().expect("a layer with a state-space scan keeps its matrix");
    b.timed("ssm_scan", || {
        let dt_start = gate_start + inner_len;
        let input = SsmInput { xbc: convolved, dt: rows, dt_start, decay, dt_bias, skip, dt_limits };
        b.ssm_scan(mixed, input, matrix, batch, shape)
    })?;
    let norm = GatedNorm { norm, group_len: inner_len / shape.n_groups, gate_first: true };
    b.timed("gated_norm", || b.gated_norm(mixed, rows, gate_start, norm))
}

/// What [`Blocks::feed_forward`] means.
pub fn feed_forward<B: Blocks>(b: &B, mut stream: Stream<'_, B>, block: FfnBlock<'_, B>) -> Result<()> {
    let FfnBlock { input, up, activation, out, hidden } = block;
    match up {
        FfnUp::Gated { gate_up, rows } => b.timed("gate_up_proj", || {
            project(b, gate_up, rows, input, &mut stream)?;
            b.gated(hidden, rows, activation)
        })?,
        FfnUp::Plain { up } => b.timed("up_proj", || {
            project(b, up, hidden, input, &mut stream)?;
            b.activate(hidden, activation)
        })?,
    }
    add_output(b, "down_proj", hidden, stream, out)
}

/// What [`Blocks::experts`] means.
pub fn experts<B: Blocks>(b: &B, mut stream: Stream<'_, B>, block: MoeBlock<'_, B>) -> Result<()> {
    if block.norms.is_some() {
        return experts_apart(b, stream, block);
    }
    let MoeBlock {
        input,
        router,
        experts,
        shared,
        mut latent,
        norms: _,
        post_norm,
        is_part,
        scores,
        scratch,
    } = block;
    b.timed("router", || project(b, router, scores, input, &mut stream))?;
    let Stream { residual, normed, output, .. } = stream;
    let x = if let BlockInput::Residual = input { &*residual } else { &*normed };
    b.timed("experts", || match &mut latent {
        None => b.moe(output, x, scores, &experts, scratch),
        Some(LatentExperts { down, up, x: low, y, .. }) => {
            down.apply(b, low, x)?;
            b.moe(y, low, scores, &experts, scratch)?;
            up.apply(b, output, y)
        }
    })?;
    if let Some(shared) = shared {
        // The experts' outputs have been added up: their memory is free, and so is that of the scores.
        let room = match latent {
            Some(latent) => latent.shared,
            None => &mut scratch.y,
        };
        room.set_rows(output.rows());
        b.timed("shared_expert", || {
            add_shared_expert(b, output, x, shared, &experts.params, (room, scores))
        })?;
    }
    add_to_residual(b, residual, output, post_norm, is_part)
}

/// As [`experts`], with [`MoeBlock::norms`].
fn experts_apart<B: Blocks>(b: &B, mut stream: Stream<'_, B>, block: MoeBlock<'_, B>) -> Result<()> {
    let MoeBlock { input, router, experts, shared, latent: _, norms, post_norm, is_part, scores, scratch } =
        block;
    let norms = norms.expect("the caller has looked");
    b.timed("router", || project(b, router, scores, BlockInput::Norm(norms.router), &mut stream))?;
    b.timed("experts", || {
        b.norm(stream.normed, stream.residual, norms.experts)?;
        b.moe(stream.output, stream.normed, scores, &experts, scratch)
    })?;
    // The norms need the sums of all ranks.
    let normalize = |y: &mut Tensor<B>, norm: &Norm<B>| {
        if is_part {
            b.timed("all_reduce", || b.all_reduce(y))?;
        }
        b.timed("norm", || b.norm_in_place(y, norm))
    };
    normalize(stream.output, norms.post_experts)?;
    if let Some(shared) = shared {
        let activation = experts.params.activation;
        let y = &mut scratch.y;
        y.set_rows(stream.output.rows());
        b.timed("shared_expert", || {
            project(b, shared.gate_up, shared.rows, input, &mut stream)?;
            b.gated(shared.hidden, shared.rows, activation)?;
            shared.down.apply(b, y, shared.hidden)
        })?;
        normalize(y, norms.post_shared)?;
        b.timed("add", || b.add(stream.output, y))?;
    }
    add_to_residual(b, stream.residual, stream.output, post_norm, false)
}

/// What [`Blocks::per_layer_input`] means.
pub fn per_layer_input<B: Blocks>(
    b: &B,
    mut stream: Stream<'_, B>,
    block: PerLayerInputBlock<'_, B>,
) -> Result<()> {
    let PerLayerInputBlock { gate, activation, inputs, start, out, rows } = block;
    b.timed("per_layer_gate", || {
        project(b, gate, rows, BlockInput::Residual, &mut stream)?;
        b.gate_columns(rows, inputs, start, activation)
    })?;
    add_output(b, "per_layer_proj", rows, stream, out)
}

/// `y += shared(x)`. `room`: for its output, as `y`, and for the values of its gate, `[n_tokens, at least 1]`.
fn add_shared_expert<B: Blocks>(
    b: &B,
    y: &mut Tensor<B>,
    x: &Tensor<B>,
    shared: SharedExpert<'_, B>,
    params: &MoeParams,
    room: (&mut Tensor<B>, &mut Tensor<B>),
) -> Result<()> {
    let (output, gates) = room;
    if params.gated {
        shared.gate_up.apply(b, shared.rows, x)?;
        b.gated(shared.hidden, shared.rows, params.activation)?;
    } else {
        shared.gate_up.apply(b, shared.hidden, x)?;
        b.activate(shared.hidden, params.activation)?;
    }
    shared.down.apply(b, output, shared.hidden)?;
    if let Some(gate) = shared.gate {
        let row_len = gates.row_len();
        gates.set_row_len(1);
        gate.apply(b, gates, x)?;
        b.gate_rows(output, gates)?;
        gates.set_row_len(row_len);
    }
    b.add(y, output)
}

/// What [`Blocks::head`] means.
pub fn head<B: Blocks>(b: &B, logits: &mut Tensor<B>, block: HeadBlock<'_, B>) -> Result<()> {
    let HeadBlock { x, norm, linear, softcap, normed, gather } = block;
    b.norm(normed, x, norm)?;
    finish_head(b, logits, softcap, gather, |y| linear.apply(b, y, normed))
}

/// Writes logits with `write`, or this rank's part of them, and then does what follows them.
pub(crate) fn finish_head<B: Blocks>(
    b: &B,
    logits: &mut Tensor<B>,
    softcap: Option<f32>,
    gather: Option<Gather<'_, B>>,
    write: impl FnOnce(&mut Tensor<B>) -> Result<()>,
) -> Result<()> {
    let cap = |y: &mut Tensor<B>| softcap.map_or(Ok(()), |cap| b.softcap(y, cap));
    match gather {
        None => {
            write(logits)?;
            cap(logits)
        }
        Some(Gather { columns, starts }) => {
            write(columns)?;
            cap(columns)?;
            b.all_gather(logits, columns, starts)
        }
    }
}

/// `y = linear(input)`, with the input's norm in `stream.normed` where it has one.
pub(crate) fn project<B: Blocks>(
    b: &B,
    linear: &Linear<B>,
    y: &mut Tensor<B>,
    input: BlockInput<'_, B>,
    stream: &mut Stream<'_, B>,
) -> Result<()> {
    stream.make_floats(b)?;
    match input {
        BlockInput::Residual => linear.apply(b, y, stream.residual),
        BlockInput::Shared => linear.apply(b, y, stream.normed),
        BlockInput::Norm(norm) => {
            b.norm(stream.normed, stream.residual, norm)?;
            linear.apply(b, y, stream.normed)
        }
    }
}

/// Normalizes all queries of a token together, and all keys.
pub(crate) fn norm_queries_and_keys<B: Blocks>(
    b: &B,
    qkv_rows: &mut Tensor<B>,
    norms: Option<(&Norm<B>, &Norm<B>)>,
) -> Result<()> {
    let Some((q, k)) = norms else { return Ok(()) };
    b.timed("norm", || {
        b.norm_columns(qkv_rows, 0, q)?;
        b.norm_columns(qkv_rows, q.weight.len(), k)
    })
}

/// Normalizes all heads.
pub(crate) fn norm_heads<B: Blocks>(
    b: &B,
    qkv_rows: &mut Tensor<B>,
    norms: Option<HeadNorms<'_, B>>,
) -> Result<()> {
    let Some(HeadNorms { norm, weights }) = norms else { return Ok(()) };
    let row_len = qkv_rows.row_len();
    b.timed("norm", || {
        qkv_rows.regroup(norm.weight.len());
        b.norm_in_place(qkv_rows, norm)?;
        qkv_rows.regroup(row_len);
        b.scale_columns(qkv_rows, weights)
    })
}

/// Multiplies the queries by the factor of their position.
pub(crate) fn scale_queries<B: Blocks>(
    b: &B,
    qkv_rows: &mut Tensor<B>,
    batch: &B::Batch,
    prep: &QkvPrep<'_, B>,
    temperature: Option<AttentionTemperature>,
) -> Result<()> {
    let Some(temperature) = temperature else { return Ok(()) };
    assert!(prep.qk_norm.is_none(), "norms of heads undo a factor on queries");
    let n = prep.heads.n_heads * prep.heads.head_dim;
    b.timed("scale_queries", || b.scale_by_position(qkv_rows, n, batch, temperature))
}

/// Adds a block's output to the residual; `x` is the input of its last matrix, and `name` that matrix's for the profiler.
fn add_output<B: Blocks>(
    b: &B,
    name: &'static str,
    x: &mut Tensor<B>,
    mut stream: Stream<'_, B>,
    out: BlockOutput<'_, B>,
) -> Result<()> {
    stream.make_floats(b)?;
    let Stream { residual, output, .. } = stream;
    let BlockOutput { post_norm, sum_norm, .. } = out;
    let is_part = multiply_output(b, name, x, output, out)?;
    add_to_residual(b, residual, output, post_norm, is_part)?;
    norm_sum(b, residual, sum_norm)
}

/// `residual = sum_norm(residual)`
pub(crate) fn norm_sum<B: Blocks>(b: &B, residual: &mut Tensor<B>, sum_norm: Option<&Norm<B>>) -> Result<()> {
    sum_norm.map_or(Ok(()), |norm| b.timed("norm", || b.norm_in_place(residual, norm)))
}

/// A block's last matrix: `output = proj(sub_norm(x))`, and whether that is a part which ranks add up.
pub(crate) fn multiply_output<B: Blocks>(
    b: &B,
    name: &'static str,
    x: &mut Tensor<B>,
    output: &mut Tensor<B>,
    out: BlockOutput<'_, B>,
) -> Result<bool> {
    let BlockOutput { sub_norm, proj, join, .. } = out;
    let normalize = |x: &mut Tensor<B>| match sub_norm {
        Some(norm) => b.timed("norm", || b.norm_in_place(x, norm)),
        None => Ok(()),
    };
    let is_part = matches!(join, Join::Sum);
    match join {
        Join::Alone | Join::Sum => {
            normalize(x)?;
            b.timed(name, || proj.apply(b, output, x))?;
        }
        Join::Gather { input, output: part } => {
            b.timed("all_gather", || b.all_gather(input.columns, x, input.starts))?;
            normalize(input.columns)?;
            b.timed(name, || proj.apply(b, part.columns, input.columns))?;
            b.timed("all_gather", || b.all_gather(output, part.columns, part.starts))?;
        }
    }
    Ok(is_part)
}

/// `residual += post_norm(output)`, of the sum of every rank's output where each has a part.
pub(crate) fn add_to_residual<B: Blocks>(
    b: &B,
    residual: &mut Tensor<B>,
    output: &mut Tensor<B>,
    post_norm: Option<&Norm<B>>,
    is_part: bool,
) -> Result<()> {
    match (post_norm, is_part) {
        (None, false) => b.timed("add", || b.add(residual, output)),
        (None, true) => b.timed("all_reduce", || b.all_reduce_add(residual, output)),
        (Some(norm), _) => {
            if is_part {
                b.timed("all_reduce", || b.all_reduce(output))?;
            }
            b.timed("add", || {
                b.norm_in_place(output, norm)?;
                b.add(residual, output)
            })
        }
    }
}
