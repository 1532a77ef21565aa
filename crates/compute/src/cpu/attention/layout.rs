//! How keys lie inside a block of the cache.

use crate::DType;
use crate::cpu::Cpu;
use crate::cpu::simd::LANES;
use crate::{KvLayer, Tensor};

/// Order of one head's keys in a block. Values always lie position by position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cpu) enum KeyLayout {
    /// `[head_dim, block_size]`: 16 positions of one element are one vector, so that a query meets them without a sum across
    /// lanes. For plain numbers where the sizes are multiples of 16.
    ByElement,
    /// Q8_0 in that order: `i8` `[head_dim, block_size]`, then the scales, F16 `[head_dim / 32, block_size]`.
    CodesByElement,
    /// `[block_size, head_dim]`.
    ByPosition,
}

impl KeyLayout {
    pub(in crate::cpu) fn of(kv: &KvLayer<Cpu>) -> Self {
        let [.., block_size, head_dim] = *kv.k.shape() else { panic!("a cache of shape {:?}", kv.k.shape()) };
        let plain = matches!(kv.k.dtype(), DType::F32 | DType::F16 | DType::BF16);
        match kv.k.dtype() {
            _ if !block_size.is_multiple_of(LANES) => KeyLayout::ByPosition,
            _ if plain && head_dim.is_multiple_of(LANES) => KeyLayout::ByElement,
            // Whole blocks of 32 make a head.
            DType::Q8_0 => KeyLayout::CodesByElement,
            _ => KeyLayout::ByPosition,
        }
    }
}

/// Bytes of one head's vector.
pub(in crate::cpu) fn head_bytes(cache: &Tensor<Cpu>) -> usize {
    let head_dim = cache.shape()[3];
    cache.dtype().bytes_for(head_dim).expect("a cache was made of whole blocks")
}
