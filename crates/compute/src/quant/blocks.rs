//! Walks over rows of blocks: bytes on one side, `N` numbers per block on the other.

use bytemuck::Pod;
use half::f16;

/// Decodes each block of `src` into the next `N` elements of `dst`.
///
/// `B` must have alignment 1, as every block struct here has.
#[inline]
pub(crate) fn decode<B: Pod, const N: usize>(src: &[u8], dst: &mut [f32], f: impl Fn(&B, &mut [f32; N])) {
    let blocks: &[B] = bytemuck::cast_slice(src);
    let (rows, rest) = dst.as_chunks_mut::<N>();
    debug_assert!(rest.is_empty(), "{} elements past the last whole block", rest.len());
    debug_assert_eq!(blocks.len(), rows.len(), "blocks given and blocks wanted");
    for (block, y) in blocks.iter().zip(rows) {
        f(block, y);
    }
}

/// Encodes each `N` elements of `src` into the next block of `dst`.
#[inline]
pub(crate) fn encode<B: Pod, const N: usize>(src: &[f32], dst: &mut [u8], f: impl Fn(&[f32; N]) -> B) {
    let blocks: &mut [B] = bytemuck::cast_slice_mut(dst);
    let (rows, rest) = src.as_chunks::<N>();
    debug_assert!(rest.is_empty(), "{} elements past the last whole block", rest.len());
    debug_assert_eq!(blocks.len(), rows.len(), "blocks wanted and blocks given");
    for (x, block) in rows.iter().zip(blocks) {
        *block = f(x);
    }
}

/// As [`encode`], with the importance of each weight, where it is given. That of a block without any is left out, since it says nothing about
/// which of its weights matter.
#[inline]
pub(crate) fn encode_weighted<B: Pod, const N: usize>(
    src: &[f32],
    dst: &mut [u8],
    importance: Option<&[f32]>,
    f: impl Fn(&[f32; N], Option<&[f32; N]>) -> B,
) {
    let Some(importance) = importance else { return encode(src, dst, |x| f(x, None)) };
    debug_assert_eq!(src.len(), importance.len(), "weights and their importance");
    let blocks: &mut [B] = bytemuck::cast_slice_mut(dst);
    let (rows, importance) = (src.as_chunks::<N>().0, importance.as_chunks::<N>().0);
    for ((x, importance), block) in rows.iter().zip(importance).zip(blocks) {
        *block = f(x, Some(importance).filter(|i| i.iter().any(|v| *v > 0.0)));
    }
}

/// The number that two little-endian bytes of a half-precision float stand for.
#[inline]
pub(crate) fn f16_to_f32(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}
