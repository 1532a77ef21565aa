//! The ways in which blocks pack small unsigned integers into bytes, and back.

/// The 32 nibbles of 16 bytes: first all low ones, then all high ones.
#[inline]
pub(crate) fn nibbles(qs: &[u8; 16]) -> [u8; 32] {
    let mut q = [0; 32];
    for (j, b) in qs.iter().enumerate() {
        q[j] = b & 15;
        q[j + 16] = b >> 4;
    }
    q
}

/// The 256 nibbles of a super-block: each 32 bytes hold 64 of them, first all low ones, then all high ones.
#[inline]
pub(crate) fn nibbles_256(qs: &[u8; 128]) -> [u8; 256] {
    let mut q = [0; 256];
    for (bytes, out) in qs.as_chunks::<32>().0.iter().zip(q.as_chunks_mut::<64>().0) {
        for (j, b) in bytes.iter().enumerate() {
            out[j] = b & 15;
            out[j + 32] = b >> 4;
        }
    }
    q
}

/// The 256 two-bit numbers of a super-block: each 32 bytes hold 128 of them, first all lowest pairs of bits, then the
/// next pairs, and so on.
#[inline]
pub(crate) fn pairs_256(qs: &[u8; 64]) -> [u8; 256] {
    let mut q = [0; 256];
    for (bytes, out) in qs.as_chunks::<32>().0.iter().zip(q.as_chunks_mut::<128>().0) {
        for (k, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (b, o) in bytes.iter().zip(out) {
                *o = b >> (2 * k) & 3;
            }
        }
    }
    q
}

/// The 256 single bits of a super-block: first the lowest bit of all 32 bytes, then the next, and so on.
#[inline]
pub(crate) fn bits_256(qh: &[u8; 32]) -> [u8; 256] {
    let mut q = [0; 256];
    for (k, out) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (b, o) in qh.iter().zip(out) {
            *o = b >> k & 1;
        }
    }
    q
}

/// The inverse of [`nibbles`]; of each number only the low four bits are kept.
#[inline]
pub(crate) fn join_nibbles(q: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| q[j] & 15 | q[j + 16] << 4)
}

/// The highest bits of 32 numbers of five bits: bit `j` of the little-endian u32 is that of number `j`.
#[inline]
pub(crate) fn fifth_bits(q: &[u8; 32]) -> [u8; 4] {
    q.iter().enumerate().fold(0, |bits, (j, q)| bits | u32::from(q >> 4 & 1) << j).to_le_bytes()
}

/// The inverse of [`nibbles_256`].
#[inline]
pub(crate) fn join_nibbles_256(q: &[u8; 256]) -> [u8; 128] {
    let mut qs = [0; 128];
    for (q, bytes) in q.as_chunks::<64>().0.iter().zip(qs.as_chunks_mut::<32>().0) {
        for (j, b) in bytes.iter_mut().enumerate() {
            *b = q[j] | q[j + 32] << 4;
        }
    }
    qs
}

/// The inverse of [`pairs_256`].
#[inline]
pub(crate) fn join_pairs_256(q: &[u8; 256]) -> [u8; 64] {
    let mut qs = [0; 64];
    for (q, bytes) in q.as_chunks::<128>().0.iter().zip(qs.as_chunks_mut::<32>().0) {
        for (j, b) in bytes.iter_mut().enumerate() {
            *b = q[j] | q[j + 32] << 2 | q[j + 64] << 4 | q[j + 96] << 6;
        }
    }
    qs
}

/// The inverse of [`bits_256`].
#[inline]
pub(crate) fn join_bits_256(q: &[u8; 256]) -> [u8; 32] {
    let mut qh = [0; 32];
    for (k, q) in q.as_chunks::<32>().0.iter().enumerate() {
        for (q, b) in q.iter().zip(&mut qh) {
            *b |= q << k;
        }
    }
    qh
}
