//! IQ2_XS: three magnitudes and a sign; a panel of [`codes`](crate::cpu::matmul::codes).

use crate::DType;
use crate::cpu::matmul::codebook::{IQ2_VALUES, in_eights, in_order, iq2_codes, odd};
use crate::cpu::matmul::codes::{Codes, Signed3x16, SuperBlock};
use crate::quant::codebook::EVEN_SIGNS;
use crate::quant::iq2_xs;

pub(super) static LAYOUT: Codes<Signed3x16> = Codes::new(DType::IQ2_XS, IQ2_VALUES, 0.125, read);

fn read(bytes: &[u8]) -> SuperBlock {
    let b: iq2_xs::Block = bytemuck::pod_read_unaligned(bytes);
    let codes = in_eights(|g| {
        let q = usize::from(u16::from_le_bytes(b.qs[g]));
        iq2_codes(iq2_xs::GRID[q & 511], EVEN_SIGNS[q >> 9])
    });
    SuperBlock { factors: [b.d, [0; 2]], scales: odd(in_order(b.scales)), codes }
}
