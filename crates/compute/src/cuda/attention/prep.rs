//! QK norm, RoPE and windows as kernels take them.

use crate::cuda::driver::{Cuda, DevicePtr};
use crate::{AttentionParams, Heads, Norm, NormKind, QkvPrep, RopeStyle, Tensor};

/// A norm of heads; null pointers where heads have none.
#[derive(Clone, Copy)]
pub(super) struct HeadNorm {
    pub(super) weight: DevicePtr,
    pub(super) bias: DevicePtr,
    pub(super) eps: f32,
}

/// What a kernel does with queries and keys before attention.
#[derive(Clone, Copy)]
pub(super) struct PrepArgs {
    pub(super) q: HeadNorm,
    pub(super) k: HeadNorm,
    /// 1 where both norms subtract the mean.
    pub(super) is_layer_norm: u32,
    /// `[n_tokens, rope_dim]`; null where nothing rotates.
    pub(super) angles: DevicePtr,
    pub(super) rope_dim: u32,
    pub(super) interleaved: u32,
}

impl PrepArgs {
    /// # Panics
    /// If a norm does not have an element per element of a head, the two norms are of different kinds, or more elements rotate than a head
    /// has.
    pub(super) fn new(prep: &QkvPrep<'_, Cuda>) -> Self {
        let head_dim = prep.heads.head_dim;
        let (q_norm, k_norm) = prep.qk_norm.unzip();
        for norm in [q_norm, k_norm].into_iter().flatten() {
            assert_eq!(norm.weight.len(), head_dim);
        }
        if let (Some(q), Some(k)) = (q_norm, k_norm) {
            assert_eq!(q.kind, k.kind, "norms of queries and keys");
        }
        let rope_dim = prep.angles.map_or(0, |(t, _)| t.row_len());
        assert!(rope_dim <= head_dim, "{rope_dim} of {head_dim} elements rotate");
        Self {
            q: head_norm(q_norm),
            k: head_norm(k_norm),
            is_layer_norm: u32::from(q_norm.is_some_and(|n| n.kind == NormKind::Layer)),
            angles: ptr(prep.angles.map(|(t, _)| t)),
            rope_dim: rope_dim as u32,
            interleaved: u32::from(prep.angles.is_some_and(|(_, s)| s == RopeStyle::Interleaved)),
        }
    }

    /// Nothing to do: queries are prepared.
    pub(super) const NONE: Self = {
        let norm = HeadNorm { weight: DevicePtr::NULL, bias: DevicePtr::NULL, eps: 0.0 };
        Self { q: norm, k: norm, is_layer_norm: 0, angles: DevicePtr::NULL, rope_dim: 0, interleaved: 0 }
    };
}

fn head_norm(norm: Option<&Norm<Cuda>>) -> HeadNorm {
    HeadNorm {
        weight: ptr(norm.map(|n| &n.weight)),
        bias: ptr(norm.and_then(|n| n.bias.as_ref())),
        eps: norm.map_or(0.0, |n| n.eps),
    }
}

fn ptr(tensor: Option<&Tensor<Cuda>>) -> DevicePtr {
    tensor.map_or(DevicePtr::NULL, Tensor::ptr)
}

/// Scores of the heads' sinks, `[n_heads]`; null without.
///
/// # Panics
/// If there is not one for each head.
pub(super) fn sinks(sinks: Option<&Tensor<Cuda>>, heads: Heads) -> DevicePtr {
    assert!(sinks.is_none_or(|s| s.len() == heads.n_heads), "sinks of {} heads", heads.n_heads);
    ptr(sinks)
}

/// More than any position, so that sums of three such numbers are no overflow.
const ALL: usize = 1 << 29;

/// Positions up to its own that a token sees, itself among them.
pub(super) fn window(params: &AttentionParams) -> u32 {
    params.window.map_or(ALL, |w| w.min(ALL)) as u32
}

/// Positions after its own that a token sees.
pub(super) fn ahead(params: &AttentionParams) -> u32 {
    match (params.causal, params.window) {
        (true, _) => 0,
        (false, None) => ALL as u32,
        (false, Some(_)) => window(params) - 1,
    }
}
