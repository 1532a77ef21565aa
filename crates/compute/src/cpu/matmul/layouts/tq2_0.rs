//! TQ2_0: ternary weights; a panel of [`codes`](crate::cpu::matmul::codes).

use crate::DType;
use crate::cpu::matmul::codebook::counted;
use crate::cpu::matmul::codes::{Codes, Plain2x32, SuperBlock};
use crate::quant::bits::pairs_256;
use crate::quant::tq2_0;

pub(super) static LAYOUT: Codes<Plain2x32> = Codes::new(DType::TQ2_0, counted(-1), 1.0, read);

fn read(bytes: &[u8]) -> SuperBlock {
    let b: tq2_0::Block = bytemuck::pod_read_unaligned(bytes);
    SuperBlock { factors: [b.d, [0; 2]], scales: [0; 16], codes: pairs_256(&b.qs) }
}
