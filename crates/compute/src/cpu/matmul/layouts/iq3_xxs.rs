//! IQ3_XXS: eight magnitudes and a sign; a panel of [`codes`](crate::cpu::matmul::codes).

use crate::DType;
use crate::cpu::matmul::codebook::{first, in_eights, iq3_codes, odd, signed_8};
use crate::cpu::matmul::codes::{Codes, Signed4x32, SuperBlock};
use crate::quant::codebook::EVEN_SIGNS;
use crate::quant::iq3_xxs;

pub(super) static LAYOUT: Codes<Signed4x32> =
    Codes::new(DType::IQ3_XXS, signed_8([4, 12, 20, 28, 36, 44, 52, 62]), 0.25, read);

fn read(bytes: &[u8]) -> SuperBlock {
    let b: iq3_xxs::Block = bytemuck::pod_read_unaligned(bytes);
    let words = b.scales_and_signs.map(u32::from_le_bytes);
    let codes = in_eights(|g| {
        let signs = EVEN_SIGNS[(words[g / 4] >> (7 * (g % 4)) & 127) as usize];
        iq3_codes::<3>([2 * g, 2 * g + 1].map(|i| iq3_xxs::GRID[usize::from(b.qs[i])]), signs)
    });
    SuperBlock { factors: [b.d, [0; 2]], scales: odd(first(words.map(|w| (w >> 28) as u8))), codes }
}
