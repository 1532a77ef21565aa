//! IQ3_S: eight magnitudes and a sign; a panel of [`codes`](crate::cpu::matmul::codes).

use crate::DType;
use crate::cpu::matmul::codebook::{in_eights, in_order, iq3_codes, odd, signed_8};
use crate::cpu::matmul::codes::{Codes, Signed4x32, SuperBlock};
use crate::quant::iq3_s;

pub(super) static LAYOUT: Codes<Signed4x32> =
    Codes::new(DType::IQ3_S, signed_8([1, 3, 5, 7, 9, 11, 13, 15]), 1.0, read);

fn read(bytes: &[u8]) -> SuperBlock {
    let b: iq3_s::Block = bytemuck::pod_read_unaligned(bytes);
    let codes = in_eights(|g| {
        let point = |i: usize| {
            let high = b.qh[i / 8] >> (i % 8) & 1;
            iq3_s::GRID[usize::from(b.qs[i]) | usize::from(high) << 8]
        };
        iq3_codes::<1>([point(2 * g), point(2 * g + 1)], b.signs[g])
    });
    SuperBlock { factors: [b.d, [0; 2]], scales: odd(in_order(b.scales)), codes }
}
