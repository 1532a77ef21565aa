//! Latent attention (DeepSeek-AI 2024, "DeepSeek-V2"): one vector of a token stands for its keys and values in all heads.
//!
//! A head's key is `k_up · c` and its value `v_up · c`, with `c` the token's vector. So `q · (k_up · c) = (k_upᵀ · q) · c`, and the sum of
//! values is `v_up` times the sum of vectors: attention needs only vectors, once for all heads, in prompts as well as in single steps.

use super::{BlockInput, BlockOutput, Blocks, Linear, Stream, add_output, project};
use crate::{
    AttentionParams, AttentionTemperature, Device, KvLayer, LatentPrep, LatentShape, Norm, Result, RopeStyle,
    Tensor,
};

/// Latent attention of a layer: `residual += post_norm(o(v_up · attention(k_up · q(input), kv(input))))`.
pub struct LatentBlock<'a, B: Device> {
    /// What it reads.
    pub input: BlockInput<'a, B>,
    /// Sizes.
    pub shape: LatentShape,
    /// Where queries come from.
    pub queries: LatentQueries<'a, B>,
    /// To the vector that is kept and the key that turns, `[key_dim, hidden_size]`.
    pub kv: &'a Linear<B>,
    /// Of the vector.
    pub kv_norm: &'a Norm<B>,
    /// Factor on queries.
    pub temperature: Option<AttentionTemperature>,
    /// `[n_tokens, rope_dim]`, and how elements pair.
    pub angles: (&'a Tensor<B>, RopeStyle),
    /// From a query's elements that do not turn to the vector's, `[n_heads, kv_rank, nope_dim]`.
    pub k_up: &'a B::Matrix,
    /// From the vector to a head's value, `[n_heads, v_dim, kv_rank]`.
    pub v_up: &'a B::Matrix,
    /// Factor on query · key.
    pub scale: f32,
    /// The layer's cache, a [`Device::latent_layer`].
    pub cache: &'a mut KvLayer<B>,
    /// Back to the residual.
    pub out: BlockOutput<'a, B>,
    /// Room for queries, `[n_tokens, n_heads · q_dim]`.
    pub q_rows: &'a mut Tensor<B>,
    /// Room for values, `[n_tokens, n_heads · v_dim]`.
    pub values: &'a mut Tensor<B>,
    /// Room for all else.
    pub room: &'a mut LatentRoom<B>,
}

/// Where the queries of latent attention come from.
pub enum LatentQueries<'a, B: Device> {
    /// One matrix, `[n_heads · q_dim, hidden_size]`.
    Full(&'a Linear<B>),
    /// Two with a norm between them: `up(norm(down(input)))`.
    LowRank {
        /// `[q_rank, hidden_size]`
        down: &'a Linear<B>,
        /// Of `q_rank` elements.
        norm: &'a Norm<B>,
        /// `[n_heads · q_dim, q_rank]`
        up: &'a Linear<B>,
    },
}

/// Buffers of a [`LatentBlock`].
pub struct LatentRoom<B: Device> {
    /// Of [`LatentQueries::LowRank`], `[n_tokens, q_rank]`.
    pub q_low: Tensor<B>,
    /// What is kept of a token, `[n_tokens, key_dim]`.
    pub latent: Tensor<B>,
    /// Queries as attention takes them, `[n_tokens, n_heads · key_dim]`.
    pub queries: Tensor<B>,
    /// Sums of vectors, `[n_tokens, n_heads · kv_rank]`.
    pub attended: Tensor<B>,
}

/// What [`Blocks::latent_block`] means.
pub fn latent<B: Blocks>(
    b: &B,
    mut stream: Stream<'_, B>,
    batch: &B::Batch,
    block: LatentBlock<'_, B>,
) -> Result<()> {
    let LatentBlock { input, shape, queries, kv, kv_norm, temperature, angles, k_up, v_up, .. } = block;
    let LatentBlock { scale, cache, out, q_rows, values, room, .. } = block;
    b.timed("kv_proj", || project(b, kv, &mut room.latent, input, &mut stream))?;
    let x = if let BlockInput::Residual = input { &*stream.residual } else { &*stream.normed };
    b.timed("q_proj", || match queries {
        LatentQueries::Full(proj) => proj.apply(b, q_rows, x),
        LatentQueries::LowRank { down, norm, up } => {
            down.apply(b, &mut room.q_low, x)?;
            b.norm_in_place(&mut room.q_low, norm)?;
            up.apply(b, q_rows, &room.q_low)
        }
    })?;
    if let Some(temperature) = temperature {
        let n = q_rows.row_len();
        b.timed("scale_queries", || b.scale_by_position(q_rows, n, batch, temperature))?;
    }
    let prep = LatentPrep { shape, norm: kv_norm, angles };
    b.timed("store_latent", || b.store_latent(&mut room.queries, q_rows, &room.latent, cache, batch, prep))?;
    b.timed("k_up", || b.head_matmul(&mut room.queries, q_rows, k_up))?;
    let params = AttentionParams {
        heads: shape.heads(),
        scale,
        softcap: None,
        window: None,
        causal: true,
        alibi: false,
    };
    b.timed("attention", || b.attention(&mut room.attended, &room.queries, cache, batch, &params, None))?;
    b.timed("v_up", || b.head_matmul(values, &room.attended, v_up))?;
    add_output(b, "o_proj", values, stream, out)
}
