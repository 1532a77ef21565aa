//! The weights of latent attention.

use crate::Result;
use crate::config::{INNER_EPS, Latent};
use crate::weights::Loader;
use realizar_compute::{Backend, LatentQueries, Linear, Norm};

/// What latent attention reads, but for its last matrix.
pub(crate) struct LatentWeights<B: Backend> {
    /// `[q_rank, hidden_size]` and its norm, where two matrices make queries.
    q_down: Option<(Linear<B>, Norm<B>)>,
    /// `[n_heads · q_dim, q_rank or hidden_size]`
    q: Linear<B>,
    /// `[key_dim, hidden_size]`
    pub(crate) kv: Linear<B>,
    pub(crate) kv_norm: Norm<B>,
    /// `[n_heads, kv_rank, nope_dim]`
    pub(crate) k_up: B::Matrix,
    /// `[n_heads, v_dim, kv_rank]`
    pub(crate) v_up: B::Matrix,
}

impl<B: Backend> LatentWeights<B> {
    pub(crate) fn load(l: &Loader<'_, B>, i: usize, latent: &Latent) -> Result<Self> {
        let norm = |name| l.scaled_norm(Some(i), name, 1.0, INNER_EPS);
        let linear = |name| l.linear(Some(i), &[name]);
        let q_down = match latent.q_rank {
            Some(_) => Some((linear("q_a_proj")?, norm("q_a_norm")?)),
            None => None,
        };
        Ok(Self {
            q: linear(if q_down.is_some() { "q_b_proj" } else { "q_proj" })?,
            q_down,
            kv: linear("kv_a_proj")?,
            kv_norm: norm("kv_a_norm")?,
            k_up: l.head_matrices(i, "k_b_proj")?,
            v_up: l.head_matrices(i, "v_b_proj")?,
        })
    }

    /// Where queries come from.
    pub(crate) fn queries(&self) -> LatentQueries<'_, B> {
        match &self.q_down {
            None => LatentQueries::Full(&self.q),
            Some((down, norm)) => LatentQueries::LowRank { down, norm, up: &self.q },
        }
    }

    /// Bytes of the matrices on the device.
    pub(crate) fn bytes(&self, backend: &B) -> usize {
        let size = |linear: &Linear<B>| backend.matrix_bytes(&linear.weight);
        let down = self.q_down.as_ref().map_or(0, |(down, _)| size(down));
        let of_heads = backend.matrix_bytes(&self.k_up) + backend.matrix_bytes(&self.v_up);
        down + size(&self.q) + size(&self.kv) + of_heads
    }
}
