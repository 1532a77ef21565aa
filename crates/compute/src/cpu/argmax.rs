//! The token of the largest logit in each row of logits.

use super::isa::Isa;
use super::simd::{Kernel, LANES, Simd, dispatch};
use super::threads::Pool;
use crate::Chosen;
use crate::math;
use std::sync::Mutex;

/// Logits that one thread looks through at a time.
const PIECE: usize = 16 * 1024;

/// The choice that [`math::argmax`] makes, for each row of `n` logits.
pub(super) fn argmax(pool: &Pool, isa: Isa, logits: &[f32], n: usize) -> Vec<Chosen> {
    if n == 0 {
        return Vec::new();
    }
    let pieces_per_row = n.div_ceil(PIECE);
    let found = Mutex::new(vec![Piece::default(); logits.len() / n * pieces_per_row]);
    let n_pieces = logits.len() / n * pieces_per_row;
    pool.for_each_chunk(n_pieces, 1, |range| {
        for i in range {
            let row = &logits[i / pieces_per_row * n..][..n];
            let start = i % pieces_per_row * PIECE;
            let mut piece = Piece::default();
            let x = &row[start..n.min(start + PIECE)];
            // SAFETY: `Cpu::new` checked that the processor has `isa`; the kernel has no pointers of its own.
            unsafe { dispatch(isa, ScanPiece { x, out: &mut piece }) }
            piece.at += start;
            found.lock().unwrap_or_else(|e| e.into_inner())[i] = piece;
        }
    });
    let found = found.into_inner().unwrap_or_else(|e| e.into_inner());
    let choose = |(row, pieces): (&[f32], &[Piece])| {
        if pieces.iter().any(|p| p.nan) {
            return math::argmax(row);
        }
        // Of equals the first.
        let best = pieces.iter().fold(pieces[0], |best, &p| if p.max > best.max { p } else { best });
        match best.max {
            f32::NEG_INFINITY => Chosen::Nothing,
            f32::INFINITY => Chosen::NotFinite { token: best.at as u32, nan: false },
            _ => Chosen::Token(best.at as u32),
        }
    };
    logits.chunks_exact(n).zip(found.chunks_exact(pieces_per_row)).map(choose).collect()
}

/// What a part of a row holds.
#[derive(Clone, Copy, Default)]
struct Piece {
    max: f32,
    /// Where the first of the largest stands.
    at: usize,
    nan: bool,
}

struct ScanPiece<'a> {
    x: &'a [f32],
    out: &'a mut Piece,
}

impl Kernel for ScanPiece<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut max = [f32::NEG_INFINITY; LANES];
        let mut nan = [0_u32; LANES];
        let (chunks, rest) = self.x.as_chunks::<LANES>();
        for chunk in chunks {
            for i in 0..LANES {
                max[i] = if chunk[i] > max[i] { chunk[i] } else { max[i] };
                nan[i] |= u32::from(chunk[i].is_nan());
            }
        }
        let all = max.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
        let has = |chunk: &[f32; LANES]| chunk.iter().fold(false, |found, &x| found | (x == all));
        let skip = chunks.iter().position(has).unwrap_or(chunks.len()) * LANES;
        let at = skip + self.x[skip..].iter().position(|&x| x == all).unwrap_or(0);
        let nan = nan.iter().any(|&n| n != 0) || rest.iter().any(|x| x.is_nan());
        *self.out = Piece { max: all, at, nan };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_equal_the_references() {
        let pool = Pool::new(2);
        for n in [1, 5, 16, 1000, 2 * PIECE + 7] {
            let base: Vec<f32> = (0..n).map(|i| ((i * 7919) % 1009) as f32 - 500.0).collect();
            let mut rows = vec![base.clone(); 8];
            rows[1].fill(f32::NEG_INFINITY);
            rows[2][n / 2] = f32::NAN;
            rows[3][n - 1] = 1e9;
            rows[4][n / 3] = f32::INFINITY;
            rows[5].fill(0.25);
            rows[6][n - 1] = f32::NAN;
            rows[7].fill(-0.0);
            let logits = rows.concat();
            let expected: Vec<Chosen> = rows.iter().map(|row| math::argmax(row)).collect();
            for &isa in Isa::available() {
                assert_eq!(argmax(&pool, isa, &logits, n), expected, "{isa} {n}");
            }
        }
    }
}
