//! Per-layer embeddings: what each token has for each layer besides its embedding (Gemma 3n and 4).
//!
//! The inputs of all layers are computed once per step: `(norm(proj(embedding)) + table[token] · √len) / √2`, where the norm takes each
//! layer's `len` elements by themselves and the product has a factor of `1 / √hidden_size` before it. Constant factors are part of the
//! norm's weights and epsilon and of the lookup.

use crate::Result;
use crate::config::PerLayerInput;
use crate::weights::Loader;
use realizar_compute::{Backend, Linear, Norm, Tensor};

/// The weights behind the inputs of all layers.
pub(crate) struct PerLayerWeights<B: Backend> {
    /// `[vocab_size, n_layers · len]`
    pub(crate) table: B::Matrix,
    /// `[n_layers · len, hidden_size]`
    pub(crate) proj: Linear<B>,
    /// Of one layer's elements.
    norm: Norm<B>,
    /// Factor on rows of the table.
    scale: f32,
}

/// Buffers of one step.
pub(crate) struct PerLayerRoom<B: Backend> {
    /// The inputs of all layers, `[n_tokens, n_layers · len]`.
    pub(crate) inputs: Tensor<B>,
    /// The part of them that comes from embeddings.
    pub(crate) projected: Tensor<B>,
    /// One layer's gate, `[n_tokens, len]`.
    pub(crate) gate: Tensor<B>,
}

impl<B: Backend> PerLayerWeights<B> {
    pub(crate) fn load(l: &Loader<'_, B>, input: PerLayerInput) -> Result<Self> {
        let half = std::f32::consts::FRAC_1_SQRT_2;
        let c = l.config;
        Ok(Self {
            table: l.lookup_table("per_layer_embed")?,
            proj: l.linear(None, &["per_layer_proj"])?,
            // Instead of the factor on its input.
            norm: l.scaled_norm(None, "per_layer_proj_norm", half, c.norm_eps * c.hidden_size as f32)?,
            scale: (input.len as f32).sqrt() * half,
        })
    }

    /// The inputs of all layers for tokens of these embeddings: `room.inputs`.
    pub(crate) fn compute(
        &self,
        backend: &B,
        room: &mut PerLayerRoom<B>,
        embeddings: &Tensor<B>,
        batch: &B::Batch,
    ) -> realizar_compute::Result<()> {
        let PerLayerRoom { inputs, projected, .. } = room;
        backend.embed(inputs, &self.table, batch, self.scale)?;
        self.proj.apply(backend, projected, embeddings)?;
        let row_len = projected.row_len();
        projected.regroup(self.norm.weight.len());
        backend.norm_in_place(projected, &self.norm)?;
        projected.regroup(row_len);
        backend.add(inputs, projected)
    }
}
