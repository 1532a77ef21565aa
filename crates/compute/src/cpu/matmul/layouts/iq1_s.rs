//! IQ1_S: three values with one of two shifts; a panel of [`codes`](crate::cpu::matmul::codes).

use crate::DType;
use crate::cpu::matmul::codebook::{IQ1_VALUES, first, in_eights, iq1_codes, odd};
use crate::cpu::matmul::codes::{Codes, Signed3x32, SuperBlock};
use crate::quant::iq1_s;

pub(super) static LAYOUT: Codes<Signed3x32> = Codes::new(DType::IQ1_S, IQ1_VALUES, 0.125, read);

fn read(bytes: &[u8]) -> SuperBlock {
    let b: iq1_s::Block = bytemuck::pod_read_unaligned(bytes);
    let words = b.qh.map(u16::from_le_bytes);
    let codes = in_eights(|g| {
        let word = words[g / 4];
        let high = usize::from(word >> (3 * (g % 4)) & 7);
        iq1_codes(usize::from(b.qs[g]) | high << 8, word >> 15 == 1)
    });
    SuperBlock { factors: [b.d, [0; 2]], scales: odd(first(words.map(|w| (w >> 12 & 7) as u8))), codes }
}
