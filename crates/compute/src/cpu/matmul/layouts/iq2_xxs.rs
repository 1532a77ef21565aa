//! IQ2_XXS: three magnitudes and a sign; a panel of [`codes`](crate::cpu::matmul::codes).

use crate::DType;
use crate::cpu::matmul::codebook::{IQ2_VALUES, first, in_eights, iq2_codes, odd};
use crate::cpu::matmul::codes::{Codes, Signed3x32, SuperBlock};
use crate::quant::codebook::EVEN_SIGNS;
use crate::quant::iq2_xxs;

pub(super) static LAYOUT: Codes<Signed3x32> = Codes::new(DType::IQ2_XXS, IQ2_VALUES, 0.125, read);

fn read(bytes: &[u8]) -> SuperBlock {
    let b: iq2_xxs::Block = bytemuck::pod_read_unaligned(bytes);
    let words = b.qs.map(|[.., w0, w1, w2, w3]| u32::from_le_bytes([w0, w1, w2, w3]));
    let codes = in_eights(|g| {
        let signs = EVEN_SIGNS[(words[g / 4] >> (7 * (g % 4)) & 127) as usize];
        iq2_codes(iq2_xxs::GRID[usize::from(b.qs[g / 4][g % 4])], signs)
    });
    SuperBlock { factors: [b.d, [0; 2]], scales: odd(first(words.map(|w| (w >> 28) as u8))), codes }
}
