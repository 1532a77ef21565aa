//! What the codebook types share: how a codebook is written down, and signs stored as seven bits for eight numbers.

/// Spells out points of eight bytes from digits of two bits; a digit stands for `levels[digit]`.
pub(crate) const fn expand_8<const N: usize>(codes: &[u16; N], levels: [u8; 4]) -> [u64; N] {
    let mut grid = [0; N];
    let mut i = 0;
    while i < N {
        let mut j = 0;
        while j < 8 {
            grid[i] |= (levels[(codes[i] >> (2 * j) & 3) as usize] as u64) << (8 * j);
            j += 1;
        }
        i += 1;
    }
    grid
}

/// Spells out points of four bytes from digits of three bits; a digit stands for `levels[digit]`.
pub(crate) const fn expand_4<const N: usize>(codes: &[u16; N], levels: [u8; 8]) -> [u32; N] {
    let mut grid = [0; N];
    let mut i = 0;
    while i < N {
        let mut j = 0;
        while j < 4 {
            grid[i] |= (levels[(codes[i] >> (3 * j) & 7) as usize] as u32) << (8 * j);
            j += 1;
        }
        i += 1;
    }
    grid
}

/// Signs of eight numbers for each code of seven bits: bit `j` set makes number `j` negative.
///
/// The eighth bit is not stored: the number of minus signs is even.
pub(crate) static EVEN_SIGNS: [u8; 128] = {
    let mut signs = [0; 128];
    let mut i = 0;
    while i < 128 {
        signs[i] = i as u8 | ((i.count_ones() & 1) as u8) << 7;
        i += 1;
    }
    signs
};

/// Writes `scale * magnitude`, negative where the magnitude's bit in `signs` is set.
#[inline]
pub(crate) fn scale_signed(y: &mut [f32], scale: f32, magnitudes: &[u8], signs: u8) {
    for (j, (y, m)) in y.iter_mut().zip(magnitudes).enumerate() {
        let v = scale * f32::from(*m);
        *y = if signs >> j & 1 == 1 { -v } else { v };
    }
}

/// Magnitudes of weights in groups of eight, and for each group its signs: bit `j` set makes weight `j` negative.
pub(crate) fn split_signs(x: &[f32; 256]) -> ([f32; 256], [u8; 32]) {
    let signs = std::array::from_fn(|g| {
        x[8 * g..8 * g + 8].iter().enumerate().fold(0, |signs, (j, x)| signs | u8::from(*x < 0.0) << j)
    });
    (x.map(f32::abs), signs)
}

/// As [`split_signs`], with an even number of minuses in each group. Where there are more or less, the weight whose wrong sign costs least
/// gets it, and its magnitude is negative.
pub(crate) fn split_even_signs(x: &[f32; 256], w: &[f32; 256]) -> ([f32; 256], [u8; 32]) {
    let (mut magnitudes, mut signs) = split_signs(x);
    for (g, (signs, m)) in signs.iter_mut().zip(magnitudes.as_chunks_mut::<8>().0).enumerate() {
        if signs.count_ones() % 2 == 1 {
            let cost = |j: usize| w[8 * g + j] * m[j] * m[j];
            let cheapest = (1..8).fold(0, |best, j| if cost(j) < cost(best) { j } else { best });
            *signs ^= 1 << cheapest;
            m[cheapest] = -m[cheapest];
        }
    }
    (magnitudes, signs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_signs_have_an_even_number_of_minuses() {
        for (i, s) in EVEN_SIGNS.iter().enumerate() {
            assert_eq!(usize::from(s & 127), i);
            assert!(s.count_ones().is_multiple_of(2), "signs of code {i}: {s:08b}");
        }
    }

    #[test]
    fn codebook_points_are_distinct() {
        use std::collections::HashSet;
        fn distinct<T: std::hash::Hash + Eq>(grid: &[T]) -> bool {
            grid.iter().collect::<HashSet<_>>().len() == grid.len()
        }
        use crate::quant::{iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs};
        assert!(distinct(&iq1_s::GRID) && distinct(&iq2_xxs::GRID) && distinct(&iq2_xs::GRID));
        assert!(distinct(&iq2_s::GRID) && distinct(&iq3_xxs::GRID) && distinct(&iq3_s::GRID));
    }
}
