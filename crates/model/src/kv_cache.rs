//! The cache of keys and values, in blocks that sequences own through their block tables.

use crate::Result;
use crate::config::ModelConfig;
use realizar_compute::{Backend, DType, KvLayer};

/// Bytes that a sequence takes on the device between steps, in all layers of a model or of its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// Keys and values, per token.
    pub kv_bytes_per_token: usize,
    /// Recurrent state, per sequence; 0 without recurrent layers.
    pub slot_bytes: usize,
}

impl StateSpec {
    /// What a model needs with a cache of type `kv_type`.
    pub fn new(config: &ModelConfig, kv_type: DType) -> Self {
        // Every layer is one of attention.
        Self { kv_bytes_per_token: config.kv_bytes_per_token(kv_type), slot_bytes: 0 }
    }
}

/// Keys and values of all layers.
pub struct KvCache<B: Backend> {
    layers: Vec<KvLayer<B>>,
    n_blocks: usize,
    block_size: usize,
}

impl<B: Backend> KvCache<B> {
    /// Room for `n_blocks` blocks of `block_size` tokens.
    pub fn new(
        backend: &B,
        config: &ModelConfig,
        dtype: DType,
        n_blocks: usize,
        block_size: usize,
    ) -> Result<Self> {
        let layers = config.attentions().map(|a| backend.kv_layer(dtype, n_blocks, block_size, a.heads));
        Ok(Self { layers: layers.collect::<std::result::Result<_, _>>()?, n_blocks, block_size })
    }

    /// Blocks.
    pub fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// Tokens in a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// One layer's part.
    pub fn layer_mut(&mut self, layer: usize) -> &mut KvLayer<B> {
        &mut self.layers[layer]
    }

    /// Copies a block over another in all layers.
    pub fn copy_block(&mut self, backend: &B, to: usize, from: usize) -> realizar_compute::Result<()> {
        self.layers.iter_mut().try_for_each(|kv| backend.copy_block(kv, to, from))
    }
}
