//! Inputs of attention in one step and layer.

use crate::cuda::batch::StagedBatch;
use crate::cuda::driver::Cuda;
use crate::{AttentionParams, KvLayer, QkvPrep};

/// A layer's cache, the step's tokens, the preparation of their heads, and the parameters of attention.
pub(in crate::cuda) struct Step<'a> {
    pub(in crate::cuda) kv: &'a mut KvLayer<Cuda>,
    pub(in crate::cuda) batch: &'a StagedBatch,
    pub(in crate::cuda) prep: QkvPrep<'a, Cuda>,
    pub(in crate::cuda) params: &'a AttentionParams,
}
