//! Q3_K: 3 bits, to be lowered by 4; a panel of [`codes`](crate::cpu::matmul::codes).

use crate::DType;
use crate::cpu::matmul::codebook::counted;
use crate::cpu::matmul::codes::{Codes, Signed3x16, SuperBlock};
use crate::quant::q3_k;

pub(super) static LAYOUT: Codes<Signed3x16> = Codes::new(DType::Q3_K, counted(-4), 1.0, read);

fn read(bytes: &[u8]) -> SuperBlock {
    let b: q3_k::Block = bytemuck::pod_read_unaligned(bytes);
    SuperBlock { factors: [b.d, [0; 2]], scales: b.sub_scales().map(|s| s as u8), codes: b.quants() }
}
