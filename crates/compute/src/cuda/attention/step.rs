//! Inputs of attention in one step and layer.

use crate::cuda::batch::StagedBatch;
use crate::cuda::driver::Cuda;
use crate::{AttentionParams, KvLayer, QkvPrep, Tensor};

/// What attention reads once queries are prepared and keys and values are in the cache.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct AttentionInput<'a> {
    /// `[n_tokens, qkv_len]`, of which attention reads the queries.
    pub(in crate::cuda) qkv: &'a Tensor<Cuda>,
    pub(in crate::cuda) kv: &'a KvLayer<Cuda>,
    pub(in crate::cuda) batch: &'a StagedBatch,
    pub(in crate::cuda) params: &'a AttentionParams,
    /// Scores of the heads' sinks, `[n_heads]`.
    pub(in crate::cuda) sinks: Option<&'a Tensor<Cuda>>,
}

/// A layer's cache, the step's tokens, the preparation of their heads, the parameters of attention, and the scores of
/// the heads' sinks, `[n_heads]`.
pub(in crate::cuda) struct Step<'a> {
    pub(in crate::cuda) kv: &'a mut KvLayer<Cuda>,
    pub(in crate::cuda) batch: &'a StagedBatch,
    pub(in crate::cuda) prep: QkvPrep<'a, Cuda>,
    pub(in crate::cuda) params: &'a AttentionParams,
    pub(in crate::cuda) sinks: Option<&'a Tensor<Cuda>>,
}
