//! Q5_0: 5 bits, to be lowered by 16, and a scale; a panel of [`blocks32`](crate::cpu::matmul::blocks32).

use crate::DType;
use crate::cpu::matmul::blocks32::{Block, BlockType, Blocks32, Min};
use crate::quant::q5_0;

pub(super) static LAYOUT: Blocks32<Q5_0> = Blocks32::NEW;

pub(super) struct Q5_0;

impl BlockType for Q5_0 {
    const DTYPE: DType = DType::Q5_0;
    const FIVE_BITS: bool = true;
    const TABLE: Option<[i8; 16]> = None;
    const MIN: Min = Min::Sixteen;

    fn read(bytes: &[u8]) -> Block {
        let b: q5_0::Block = bytemuck::pod_read_unaligned(bytes);
        Block { scale: b.d, min: [0; 2], codes: b.quants() }
    }
}
