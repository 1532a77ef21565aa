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

/// The number that two little-endian bytes of a half-precision float stand for.
#[inline]
pub(crate) fn f16_to_f32(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}
