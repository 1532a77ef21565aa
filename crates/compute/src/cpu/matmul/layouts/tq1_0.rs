//! TQ1_0: ternary weights; a panel of [`codes`](crate::cpu::matmul::codes).

use crate::DType;
use crate::cpu::matmul::codebook::counted;
use crate::cpu::matmul::codes::{Codes, Plain2x32, SuperBlock};
use crate::quant::tq1_0;

pub(super) static LAYOUT: Codes<Plain2x32> = Codes::new(DType::TQ1_0, counted(-1), 1.0, read);

fn read(bytes: &[u8]) -> SuperBlock {
    let b: tq1_0::Block = bytemuck::pod_read_unaligned(bytes);
    SuperBlock { factors: [b.d, [0; 2]], scales: [0; 16], codes: b.trits() }
}
