//! The weights of latent attention.

use crate::Result;
use crate::config::{INNER_EPS, Latent};
use crate::weights::Loader;
use realizar_compute::{Backend, LatentQueries, Linear, Norm};

/// What latent attention reads, but for its last matrix.
pub(crate) struct LatentWeights<B: Backend> {
    queries: Queries<B>,
    /// `[key_dim, hidden_size]`
    pub(crate) kv: Linear<B>,
    pub(crate) kv_norm: Norm<B>,
    /// `[n_heads, kv_rank, nope_dim]`
    pub(crate) k_up: B::Matrix,
    /// `[n_heads, v_dim, kv_rank]`
    pub(crate) v_up: B::Matrix,
}

enum Queries<B: Backend> {
    Full(Linear<B>),
    LowRank { down: Linear<B>, norm: Norm<B>, up: Linear<B> },
}

impl<B: Backend> LatentWeights<B> {
    pub(crate) fn load(l: &Loader<'_, B>, i: usize, latent: &Latent) -> Result<Self> {
        let norm = |name| l.scaled_norm(Some(i), name, 1.0, INNER_EPS);
        let linear = |name| l.linear(Some(i), &[name]);
        Ok(Self {
            queries: match latent.q_rank {
                None => Queries::Full(linear("q_proj")?),
                Some(_) => Queries::LowRank {
                    down: linear("q_a_proj")?,
                    norm: norm("q_a_norm")?,
                    up: linear("q_b_proj")?,
                },
            },
            kv: linear("kv_a_proj")?,
            kv_norm: norm("kv_a_norm")?,
            k_up: l.head_matrices(i, "k_b_proj")?,
            v_up: l.head_matrices(i, "v_b_proj")?,
        })
    }

    /// Where queries come from.
    pub(crate) fn queries(&self) -> LatentQueries<'_, B> {
        match &self.queries {
            Queries::Full(proj) => LatentQueries::Full(proj),
            Queries::LowRank { down, norm, up } => LatentQueries::LowRank { down, norm, up },
        }
    }

    /// Bytes of the matrices on the device.
    pub(crate) fn bytes(&self, backend: &B) -> usize {
        let size = |linear: &Linear<B>| backend.matrix_bytes(&linear.weight);
        let queries = match &self.queries {
            Queries::Full(proj) => size(proj),
            Queries::LowRank { down, up, .. } => size(down) + size(up),
        };
        queries + size(&self.kv) + backend.matrix_bytes(&self.k_up) + backend.matrix_bytes(&self.v_up)
    }
}
