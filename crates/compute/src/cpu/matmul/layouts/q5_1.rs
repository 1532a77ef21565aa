//! Q5_1: 5 bits, a scale and a minimum; a panel of [`blocks32`](crate::cpu::matmul::blocks32).

use crate::DType;
use crate::cpu::matmul::blocks32::{Block, BlockType, Blocks32, Min};
use crate::quant::q5_1;

pub(super) static LAYOUT: Blocks32<Q5_1> = Blocks32::NEW;

pub(super) struct Q5_1;

impl BlockType for Q5_1 {
    const DTYPE: DType = DType::Q5_1;
    const FIVE_BITS: bool = true;
    const TABLE: Option<[i8; 16]> = None;
    const MIN: Min = Min::Stored;

    fn read(bytes: &[u8]) -> Block {
        let b: q5_1::Block = bytemuck::pod_read_unaligned(bytes);
        Block { scale: b.d, min: b.m, codes: b.quants() }
    }
}
