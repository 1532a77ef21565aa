//! What sequences keep on the device: keys and values in blocks, which they own through their block tables, and recurrent state in slots.

use crate::Result;
use crate::config::{KvSource, Mixer, ModelConfig, RecurrentState};
use realizar_compute::{Backend, DType, KvLayer, StateLayer, Tensor};

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
        Self {
            kv_bytes_per_token: config.kv_bytes_per_token(kv_type),
            slot_bytes: config.recurrent_states().map(|state| state.bytes()).sum(),
        }
    }
}

/// How much a [`KvCache`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSizes {
    /// Element type of keys and values.
    pub dtype: DType,
    /// Blocks of keys and values.
    pub n_blocks: usize,
    /// Tokens in a block.
    pub block_size: usize,
    /// Slots of recurrent state; without effect on a model that has none.
    pub n_slots: usize,
}

/// One of the units in which a [`KvCache`] is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheUnit {
    /// A block of keys and values.
    Block(u32),
    /// A slot of recurrent state.
    Slot(u32),
}

impl CacheUnit {
    fn index(self) -> usize {
        let (Self::Block(index) | Self::Slot(index)) = self;
        index as usize
    }
}

/// Keys and values, or the recurrent state, of all layers.
pub struct KvCache<B: Backend> {
    layers: Vec<LayerCache<B>>,
    sizes: CacheSizes,
}

/// What one layer keeps.
pub(crate) enum LayerCache<B: Backend> {
    /// Of an attention block.
    Kv(KvLayer<B>),
    /// Nothing: an attention block reads what this layer keeps.
    OfLayer(usize),
    /// Of a block with recurrent state.
    State(StateLayer<B>),
    /// Nothing: the layer does not mix tokens.
    None,
}

impl<B: Backend> LayerCache<B> {
    fn new(backend: &B, mixer: &Mixer, sizes: &CacheSizes) -> realizar_compute::Result<Self> {
        let state = match mixer {
            Mixer::Attention(a) => {
                if let KvSource::OfLayer(layer) = a.kv {
                    return Ok(Self::OfLayer(layer));
                }
                let kv = backend.kv_layer(sizes.dtype, sizes.n_blocks, sizes.block_size, a.heads)?;
                return Ok(Self::Kv(kv));
            }
            Mixer::Latent(latent) => {
                let CacheSizes { dtype, n_blocks, block_size, .. } = *sizes;
                return Ok(Self::Kv(backend.latent_layer(dtype, n_blocks, block_size, &latent.shape)?));
            }
            Mixer::GatedDelta(_) | Mixer::ShortConv(_) | Mixer::Mamba2(_) => mixer.recurrent_state(),
            Mixer::None => return Ok(Self::None),
        };
        let RecurrentState { conv_width, n_channels, matrix } = state.expect("only attention has none");
        let zeros = |shape: &[usize]| backend.zeros(DType::F32, shape);
        Ok(Self::State(StateLayer {
            conv: zeros(&[sizes.n_slots, conv_width - 1, n_channels])?,
            matrix: matrix.map(|[heads, k, v]| zeros(&[sizes.n_slots, heads, k, v])).transpose()?,
        }))
    }
}

impl<B: Backend> KvCache<B> {
    /// Room for the layers of a model, or of its shard.
    pub fn new(backend: &B, config: &ModelConfig, sizes: CacheSizes) -> Result<Self> {
        let layers = config.layers.iter().map(|layer| LayerCache::new(backend, &layer.mixer, &sizes));
        Ok(Self { layers: layers.collect::<std::result::Result<_, _>>()?, sizes })
    }

    /// Room for one layer of a model whose layers have heads of one size, which all layers use in turn: for steps that nothing is kept of.
    ///
    /// # Panics
    /// If heads differ, or a layer does not attend.
    pub fn of_one_layer(backend: &B, config: &ModelConfig, sizes: CacheSizes) -> Result<Self> {
        let heads: Vec<_> = config.attentions().map(|a| a.own_heads()).collect();
        assert!(heads.len() == config.layers.len() && heads.iter().all(|h| *h == heads[0]), "{heads:?}");
        let first = LayerCache::new(backend, &config.layers[0].mixer, &sizes)?;
        let others = (1..heads.len()).map(|_| LayerCache::OfLayer(0));
        Ok(Self { layers: std::iter::once(first).chain(others).collect(), sizes })
    }

    /// Blocks.
    pub fn n_blocks(&self) -> usize {
        self.sizes.n_blocks
    }

    /// Tokens in a block.
    pub fn block_size(&self) -> usize {
        self.sizes.block_size
    }

    /// What one layer reads and writes.
    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut LayerCache<B> {
        let layer = if let LayerCache::OfLayer(source) = self.layers[layer] { source } else { layer };
        &mut self.layers[layer]
    }

    /// Element type of keys and values.
    pub fn dtype(&self) -> DType {
        self.sizes.dtype
    }

    /// Bytes of a unit in all layers; its number does not matter.
    pub fn unit_bytes(&mut self, backend: &B, unit: CacheUnit) -> usize {
        self.tensors_mut(unit).map(|tensor| backend.row_bytes(tensor)).sum()
    }

    /// Reads a unit of all layers back, layer by layer. `out` has [`KvCache::unit_bytes`].
    pub fn read_unit(
        &mut self,
        backend: &B,
        unit: CacheUnit,
        out: &mut [u8],
    ) -> realizar_compute::Result<()> {
        let mut rest = out;
        for tensor in self.tensors_mut(unit) {
            let (row, after) = rest.split_at_mut(backend.row_bytes(tensor));
            backend.read_row(row, tensor, unit.index())?;
            rest = after;
        }
        Ok(())
    }

    /// Writes a unit of all layers, as [`KvCache::read_unit`] read it.
    pub fn write_unit(&mut self, backend: &B, unit: CacheUnit, bytes: &[u8]) -> realizar_compute::Result<()> {
        let mut rest = bytes;
        for tensor in self.tensors_mut(unit) {
            let (row, after) = rest.split_at(backend.row_bytes(tensor));
            backend.write_row(tensor, unit.index(), row)?;
            rest = after;
        }
        Ok(())
    }

    /// All tensors whose rows are such units.
    fn tensors_mut(&mut self, unit: CacheUnit) -> impl Iterator<Item = &mut Tensor<B>> {
        let is_block = matches!(unit, CacheUnit::Block(_));
        self.layers.iter_mut().flat_map(move |layer| match layer {
            LayerCache::Kv(kv) if is_block => kv.tensors_mut().collect(),
            LayerCache::State(state) if !is_block => {
                std::iter::once(&mut state.conv).chain(&mut state.matrix).collect()
            }
            _ => Vec::new(),
        })
    }

    /// Copies a block over another in all layers.
    pub fn copy_block(&mut self, backend: &B, to: usize, from: usize) -> realizar_compute::Result<()> {
        self.layers.iter_mut().try_for_each(|layer| match layer {
            LayerCache::Kv(kv) => backend.copy_block(kv, to, from),
            LayerCache::State(_) | LayerCache::OfLayer(_) | LayerCache::None => Ok(()),
        })
    }
}
