//! How keys lie inside a block of the cache.

use crate::DType;
use crate::cpu::Cpu;
use crate::cpu::simd::LANES;
use crate::{KvLayer, Tensor};

/// Order of one head's keys and values in a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cpu) enum KeyLayout {
    /// Keys `[head_dim, block_size]`: 16 positions of one element are one vector, so that the product with a query needs no sum across
    /// lanes. Values position by position. For plain numbers where the sizes are multiples of 16.
    ByElement,
    /// Codes of Q8_0 in pairs, for dot products of two: keys `[head_dim / 2, block_size, 2]`, values `[block_size / 2, head_dim, 2]`. Behind
    /// them are their scales, F16 `[head_dim / 32, block_size]`.
    Codes,
    /// `[block_size, head_dim]`.
    ByPosition,
}

impl KeyLayout {
    pub(in crate::cpu) fn of(kv: &KvLayer<Cpu>) -> Self {
        let [.., block_size, head_dim] = *kv.k.shape() else { panic!("a cache of shape {:?}", kv.k.shape()) };
        let plain = matches!(kv.k.dtype(), DType::F32 | DType::F16 | DType::BF16);
        match kv.k.dtype() {
            // Keys that are values too are read in both directions, and decoded once for all heads, which share them.
            _ if kv.v.is_none() || !block_size.is_multiple_of(LANES) => KeyLayout::ByPosition,
            _ if plain && head_dim.is_multiple_of(LANES) => KeyLayout::ByElement,
            // Whole blocks of 32 make a head.
            DType::Q8_0 => KeyLayout::Codes,
            _ => KeyLayout::ByPosition,
        }
    }
}

/// Bytes of one head's vector.
pub(in crate::cpu) fn head_bytes(cache: &Tensor<Cpu>) -> usize {
    let head_dim = cache.shape()[3];
    cache.dtype().bytes_for(head_dim).expect("a cache was made of whole blocks")
}

/// [`CodeOffsets::key`] or [`CodeOffsets::value`].
pub(in crate::cpu) type CodeOffset = fn(CodeOffsets, usize, usize) -> usize;

/// Places in a head's block of [`KeyLayout::Codes`], in bytes.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct CodeOffsets {
    pub(in crate::cpu) head_dim: usize,
    pub(in crate::cpu) block_size: usize,
}

impl CodeOffsets {
    /// The code of element `d` of the key at position `pos` of the block.
    pub(in crate::cpu) fn key(self, pos: usize, d: usize) -> usize {
        (d / 2 * self.block_size + pos) * 2 + d % 2
    }

    /// The code of element `d` of the value.
    pub(in crate::cpu) fn value(self, pos: usize, d: usize) -> usize {
        (pos / 2 * self.head_dim + d) * 2 + pos % 2
    }

    /// The scale of 32 elements from `32 · b` on, of either.
    pub(in crate::cpu) fn scale(self, pos: usize, b: usize) -> usize {
        self.head_dim * self.block_size + (b * self.block_size + pos) * 2
    }
}
