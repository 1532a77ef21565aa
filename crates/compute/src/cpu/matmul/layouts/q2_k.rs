//! Q2_K: 2 bits with a scale and a minimum for each 16; a panel of [`codes`](crate::cpu::matmul::codes).

use crate::DType;
use crate::cpu::matmul::codebook::counted;
use crate::cpu::matmul::codes::{Codes, SuperBlock, WithMin2x16};
use crate::quant::bits::pairs_256;
use crate::quant::q2_k;

pub(super) static LAYOUT: Codes<WithMin2x16> = Codes::new(DType::Q2_K, counted(0), 1.0, read);

fn read(bytes: &[u8]) -> SuperBlock {
    let b: q2_k::Block = bytemuck::pod_read_unaligned(bytes);
    SuperBlock { factors: [b.d, b.dmin], scales: b.scales, codes: pairs_256(&b.qs) }
}
