//! IQ1_M: three values with one of two shifts; a panel of [`codes`](crate::cpu::matmul::codes).

use crate::DType;
use crate::cpu::matmul::codebook::{IQ1_VALUES, in_eights, iq1_codes, odd};
use crate::cpu::matmul::codes::{Codes, Signed3x16, SuperBlock};
use crate::quant::iq1_m;

pub(super) static LAYOUT: Codes<Signed3x16> = Codes::new(DType::IQ1_M, IQ1_VALUES, 0.125, read);

fn read(bytes: &[u8]) -> SuperBlock {
    let b: iq1_m::Block = bytemuck::pod_read_unaligned(bytes);
    let codes = in_eights(|g| {
        let high = b.qh[g / 2] >> (4 * (g % 2)) & 15;
        iq1_codes(usize::from(b.qs[g]) | usize::from(high & 7) << 8, high & 8 == 8)
    });
    let scales = std::array::from_fn(|j| (u16::from_le_bytes(b.scales[j / 4]) >> (3 * (j % 4)) & 7) as u8);
    SuperBlock { factors: [b.d(), [0; 2]], scales: odd(scales), codes }
}
