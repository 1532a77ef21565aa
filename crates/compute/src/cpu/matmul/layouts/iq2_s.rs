//! IQ2_S: three magnitudes and a sign; a panel of [`codes`](crate::cpu::matmul::codes).

use crate::DType;
use crate::cpu::matmul::codebook::{IQ2_VALUES, in_eights, in_order, iq2_codes, odd};
use crate::cpu::matmul::codes::{Codes, Signed3x16, SuperBlock};
use crate::quant::iq2_s;

pub(super) static LAYOUT: Codes<Signed3x16> = Codes::new(DType::IQ2_S, IQ2_VALUES, 0.125, read);

fn read(bytes: &[u8]) -> SuperBlock {
    let b: iq2_s::Block = bytemuck::pod_read_unaligned(bytes);
    let codes = in_eights(|g| {
        let high = b.qh[g / 4] >> (2 * (g % 4)) & 3;
        iq2_codes(iq2_s::GRID[usize::from(b.qs[g]) | usize::from(high) << 8], b.signs[g])
    });
    SuperBlock { factors: [b.d, [0; 2]], scales: odd(in_order(b.scales)), codes }
}
