//! Preparing queries, keys and values: norms per head, rotation, and the way into the cache.

use super::attention::{CodeOffset, CodeOffsets, KeyLayout};
use super::isa::Isa;
use super::parallel::Shared;
use super::simd::{LANES, LINE};
use super::threads::Pool;
use super::{Cpu, norm, parallel};
use crate::math::rotate;
use crate::quant::Quantize;
use crate::{DType, Error, HostBatch, KvLayer, QkvPrep, Result, Tensor};
use half::slice::HalfFloatSliceExt;

pub(super) fn angles(pool: &Pool, y: &mut Tensor<Cpu>, f: &[f32], positions: &[u32], scale: f32) {
    assert_eq!((y.row_len(), y.rows()), (2 * f.len(), positions.len()));
    let n = y.row_len();
    parallel::rows(pool, y.floats_mut(), n, |t, row| {
        let (cos, sin) = row.split_at_mut(f.len());
        for ((cos, sin), f) in cos.iter_mut().zip(sin).zip(f) {
            let (s, c) = (positions[t] as f32 * f).sin_cos();
            (*cos, *sin) = (c * scale, s * scale);
        }
    });
}

pub(super) fn store_kv(
    pool: &Pool,
    isa: Isa,
    qkv: &mut Tensor<Cpu>,
    kv: &mut KvLayer<Cpu>,
    batch: &HostBatch,
    prep: QkvPrep<'_, Cpu>,
) -> Result<()> {
    let h = prep.heads;
    let (n_rotated, dim) = (h.n_heads + h.n_kv_heads, h.head_dim);
    let qkv_len = h.qkv_len();
    assert_eq!((qkv.row_len(), qkv.rows()), (qkv_len, batch.tokens().len()));
    let cache = Cache::of(kv, h.n_kv_heads)?;
    parallel::rows(pool, qkv.floats_mut(), qkv_len, |t, row| {
        let (rotated, values) = row.split_at_mut(n_rotated * dim);
        prepare_heads(isa, rotated, dim, t, &prep);
        let seq = &batch.seqs()[batch.seq_of_token()[t] as usize];
        let position = batch.positions()[t] as usize;
        let block = batch.block_table(seq)[position / cache.block_size] as usize;
        // SAFETY: every token of a step has its own position in its own sequence, and the scheduler gives a block that is written to
        // only one sequence, so no two rows have the same position of the same block.
        unsafe { cache.store(block, position % cache.block_size, &rotated[h.n_heads * dim..], values) }
    });
    Ok(())
}

/// Normalizes and rotates the query and key heads of token `t`. `heads`: [n_heads + n_kv_heads, dim].
fn prepare_heads(isa: Isa, heads: &mut [f32], dim: usize, t: usize, prep: &QkvPrep<'_, Cpu>) {
    if let Some((q_norm, k_norm)) = prep.qk_norm {
        for (i, head) in heads.chunks_exact_mut(dim).enumerate() {
            let n = if i < prep.heads.n_heads { q_norm } else { k_norm };
            norm::norm_row(isa, head, n.kind, n.weight.floats(), n.bias.as_ref().map(|b| b.floats()), n.eps);
        }
    }
    if let Some((angles, style)) = prep.angles {
        let angles = &angles.floats()[t * angles.row_len()..][..angles.row_len()];
        heads.chunks_exact_mut(dim).for_each(|head| rotate(head, angles, style));
    }
}

/// A layer's cache, to be written by several threads.
pub(super) struct Cache<'a> {
    k: Shared<'a, u8>,
    /// `None`: values are a part of keys.
    v: Option<Shared<'a, u8>>,
    layout: KeyLayout,
    encode: Quantize,
    n_kv_heads: usize,
    /// Positions of a block.
    pub(super) block_size: usize,
    /// Elements of a head.
    dim: usize,
    /// Bytes of a head.
    head_bytes: usize,
}

impl<'a> Cache<'a> {
    pub(super) fn of(kv: &'a mut KvLayer<Cpu>, n_kv_heads: usize) -> Result<Self> {
        let [.., block_size, dim] = *kv.k.shape() else { panic!("a cache of shape {:?}", kv.k.shape()) };
        let dtype = kv.k.dtype();
        Ok(Self {
            layout: KeyLayout::of(kv),
            encode: encoder(dtype)?,
            n_kv_heads,
            block_size,
            dim,
            head_bytes: dtype.bytes_for(dim).expect("a cache was made of whole blocks"),
            k: Shared::new(kv.k.buffer_mut().bytes_mut()),
            v: kv.v.as_mut().map(|v| Shared::new(v.buffer_mut().bytes_mut())),
        })
    }

    /// Writes the keys and values of one token, [n_kv_heads, dim] each, to position `pos` of a block; no values where they are a part of keys.
    ///
    /// Panics if the cache has no such block.
    ///
    /// # Safety
    /// *Position*: nobody else uses this position of this block meanwhile.
    pub(super) unsafe fn store(&self, block: usize, pos: usize, keys: &[f32], values: &[f32]) {
        let start = |i: usize| (block * self.n_kv_heads + i) * self.block_size * self.head_bytes;
        for (i, key) in keys.chunks_exact(self.dim).enumerate() {
            // SAFETY: the contract of each is this one's.
            unsafe {
                match self.layout {
                    KeyLayout::ByPosition => self.store_at_position(&self.k, start(i), pos, key),
                    KeyLayout::ByElement => self.store_by_element(start(i), pos, key),
                    KeyLayout::Codes => self.store_codes(&self.k, start(i), pos, key, CodeOffsets::key),
                }
            }
        }
        let Some(v) = &self.v else { return };
        for (i, value) in values.chunks_exact(self.dim).enumerate() {
            // SAFETY: the contract of each is this one's.
            unsafe {
                match self.layout {
                    KeyLayout::ByPosition | KeyLayout::ByElement => {
                        self.store_at_position(v, start(i), pos, value);
                    }
                    KeyLayout::Codes => self.store_codes(v, start(i), pos, value, CodeOffsets::value),
                }
            }
        }
    }

    /// Writes a head's vector as one run of bytes. `head`: where the head's part of the block begins.
    ///
    /// # Safety
    /// As [`Cache::store`].
    unsafe fn store_at_position(&self, cache: &Shared<'_, u8>, head: usize, pos: usize, numbers: &[f32]) {
        // SAFETY: these bytes are the position's own (the contract).
        (self.encode)(numbers, unsafe { cache.slice(head + pos * self.head_bytes, self.head_bytes) }, None);
    }

    /// Writes a key element by element, [dim, block_size].
    ///
    /// # Safety
    /// As [`Cache::store`].
    unsafe fn store_by_element(&self, head: usize, pos: usize, key: &[f32]) {
        let bytes = self.head_bytes / self.dim;
        let mut encoded = [0; LINE];
        for (j, key) in key.chunks_exact(LANES).enumerate() {
            (self.encode)(key, &mut encoded[..LANES * bytes], None);
            for (l, number) in encoded.chunks_exact(bytes).take(LANES).enumerate() {
                let at = head + ((j * LANES + l) * self.block_size + pos) * bytes;
                // SAFETY: an element of this position (the contract).
                unsafe { self.k.slice(at, bytes) }.copy_from_slice(number);
            }
        }
    }

    /// Writes a head's vector as codes and scales of Q8_0, at the offsets that `offset_of` gives.
    ///
    /// # Safety
    /// As [`Cache::store`].
    unsafe fn store_codes(
        &self,
        cache: &Shared<'_, u8>,
        head: usize,
        pos: usize,
        numbers: &[f32],
        offset_of: CodeOffset,
    ) {
        let offsets = CodeOffsets { head_dim: self.dim, block_size: self.block_size };
        let mut encoded = [0; Q8_0_BYTES];
        for (b, numbers) in numbers.as_chunks::<32>().0.iter().enumerate() {
            (self.encode)(numbers, &mut encoded, None);
            // SAFETY: a scale of this position (the contract).
            let scale = unsafe { cache.slice(head + offsets.scale(pos, b), 2) };
            scale.copy_from_slice(&encoded[..2]);
            for (j, &code) in encoded[2..].iter().enumerate() {
                let at = head + offset_of(offsets, pos, b * 32 + j);
                // SAFETY: a code of this position (the contract).
                unsafe { cache.slice(at, 1) }.copy_from_slice(&[code]);
            }
        }
    }
}

/// Bytes of a block of Q8_0: a scale and 32 codes.
const Q8_0_BYTES: usize = 34;

/// The function that writes numbers as `dtype`.
fn encoder(dtype: DType) -> Result<Quantize> {
    match dtype {
        // The conversion of whole slices uses the processor's own instructions.
        DType::F16 => {
            Ok(|src, dst, _| bytemuck::cast_slice_mut::<u8, half::f16>(dst).convert_from_f32_slice(src))
        }
        _ => dtype.spec().quantize.ok_or(Error::Unsupported { op: "store_kv", dtype, backend: "cpu" }),
    }
}
