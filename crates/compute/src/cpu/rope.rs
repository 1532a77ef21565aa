//! Preparing queries, keys and values: norms per head, rotation, and the way into the cache.

use super::attention::{CodePlace, CodePlaces, KeyLayout};
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
    let (n_turning, n_kv, dim) = (h.n_heads + h.n_kv_heads, h.n_kv_heads, h.head_dim);
    let qkv_len = h.qkv_len();
    assert_eq!((qkv.row_len(), qkv.rows()), (qkv_len, batch.tokens().len()));
    let block_size = kv.k.shape()[2];
    let dtype = kv.k.dtype();
    let encode = encoder(dtype)?;
    let head_bytes = dtype.bytes_for(dim).expect("a cache was made of whole blocks");
    let key_layout = KeyLayout::of(kv);
    let k_cache = Shared::new(kv.k.buffer_mut().bytes_mut());
    let v_cache = Shared::new(kv.v.buffer_mut().bytes_mut());
    parallel::rows(pool, qkv.floats_mut(), qkv_len, |t, row| {
        let (turning, values) = row.split_at_mut(n_turning * dim);
        if let Some((q_norm, k_norm)) = prep.qk_norm {
            for (i, head) in turning.chunks_exact_mut(dim).enumerate() {
                let n = if i < h.n_heads { q_norm } else { k_norm };
                norm::norm_row(
                    isa,
                    head,
                    n.kind,
                    n.weight.floats(),
                    n.bias.as_ref().map(|b| b.floats()),
                    n.eps,
                );
            }
        }
        if let Some((angles, style)) = prep.angles {
            let angles = &angles.floats()[t * angles.row_len()..][..angles.row_len()];
            turning.chunks_exact_mut(dim).for_each(|head| rotate(head, angles, style));
        }
        let seq = &batch.seqs()[batch.seq_of_token()[t] as usize];
        let pos = batch.positions()[t] as usize;
        let block = batch.block_table(seq)[pos / block_size] as usize;
        for i in 0..n_kv {
            let (key, value) = (&turning[(h.n_heads + i) * dim..][..dim], &values[i * dim..][..dim]);
            let head = (block * n_kv + i) * block_size * head_bytes;
            let at = head + pos % block_size * head_bytes;
            // SAFETY: every token of a step has its own position in its own sequence, and the scheduler gives a block that is
            // written to only one sequence, so no two rows write to the same place. This holds for all slices below.
            match key_layout {
                KeyLayout::ByPosition => {
                    // SAFETY: as above.
                    let (k, v) = unsafe { (k_cache.slice(at, head_bytes), v_cache.slice(at, head_bytes)) };
                    encode(key, k);
                    encode(value, v);
                }
                KeyLayout::Codes => {
                    let (places, pos) = (CodePlaces { head_dim: dim, block_size }, pos % block_size);
                    let store = |cache: &Shared<u8>, numbers: &[f32], place: CodePlace| {
                        let mut encoded = [0; Q8_0_BYTES];
                        for (b, numbers) in numbers.as_chunks::<32>().0.iter().enumerate() {
                            encode(numbers, &mut encoded);
                            // SAFETY: as above.
                            let scale = unsafe { cache.slice(head + places.scale(pos, b), 2) };
                            scale.copy_from_slice(&encoded[..2]);
                            for (j, &code) in encoded[2..].iter().enumerate() {
                                let at = head + place(places, pos, b * 32 + j);
                                // SAFETY: as above.
                                unsafe { cache.slice(at, 1) }.copy_from_slice(&[code]);
                            }
                        }
                    };
                    store(&k_cache, key, CodePlaces::key);
                    store(&v_cache, value, CodePlaces::value);
                }
                KeyLayout::ByElement => {
                    // SAFETY: as above.
                    encode(value, unsafe { v_cache.slice(at, head_bytes) });
                    let bytes = head_bytes / dim;
                    let mut encoded = [0; LINE];
                    for (j, key) in key.chunks_exact(LANES).enumerate() {
                        encode(key, &mut encoded[..LANES * bytes]);
                        for (l, number) in encoded.chunks_exact(bytes).take(LANES).enumerate() {
                            let at = head + ((j * LANES + l) * block_size + pos % block_size) * bytes;
                            // SAFETY: as above.
                            unsafe { k_cache.slice(at, bytes) }.copy_from_slice(number);
                        }
                    }
                }
            }
        }
    });
    Ok(())
}

/// Bytes of a block of Q8_0: a scale and 32 codes.
const Q8_0_BYTES: usize = 34;

/// The function that writes numbers as `dtype`.
fn encoder(dtype: DType) -> Result<Quantize> {
    match dtype {
        // The conversion of whole slices uses the processor's own instructions.
        DType::F16 => {
            Ok(|src, dst| bytemuck::cast_slice_mut::<u8, half::f16>(dst).convert_from_f32_slice(src))
        }
        _ => dtype.spec().quantize.ok_or(Error::Unsupported { op: "store_kv", dtype, backend: "cpu" }),
    }
}
