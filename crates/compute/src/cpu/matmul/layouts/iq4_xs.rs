//! IQ4_XS: nibbles that number the bytes of a table; a panel of [`codes`](crate::cpu::matmul::codes).

use crate::DType;
use crate::cpu::matmul::codebook::first;
use crate::cpu::matmul::codes::{Codes, SuperBlock, Wide4x32};
use crate::quant::bits::nibbles;
use crate::quant::iq4_nl::VALUES;
use crate::quant::iq4_xs;

pub(super) static LAYOUT: Codes<Wide4x32> = Codes::new(DType::IQ4_XS, VALUES, 1.0, read);

fn read(bytes: &[u8]) -> SuperBlock {
    let b: iq4_xs::Block = bytemuck::pod_read_unaligned(bytes);
    let mut codes = [0; 256];
    for (codes, qs) in codes.as_chunks_mut::<32>().0.iter_mut().zip(b.qs.as_chunks::<16>().0) {
        *codes = nibbles(qs);
    }
    SuperBlock { factors: [b.d, [0; 2]], scales: first(b.sub_scales().map(|s| s as u8)), codes }
}
