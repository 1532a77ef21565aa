//! Q4_1: nibbles, a scale and a minimum; a panel of [`blocks32`](crate::cpu::matmul::blocks32).

use crate::DType;
use crate::cpu::matmul::blocks32::{Block, BlockType, Blocks32, Min};
use crate::quant::bits::nibbles;
use crate::quant::q4_1;

pub(super) static LAYOUT: Blocks32<Q4_1> = Blocks32::NEW;

pub(super) struct Q4_1;

impl BlockType for Q4_1 {
    const DTYPE: DType = DType::Q4_1;
    const FIVE_BITS: bool = false;
    const TABLE: Option<[i8; 16]> = None;
    const MIN: Min = Min::Stored;

    fn read(bytes: &[u8]) -> Block {
        let b: q4_1::Block = bytemuck::pod_read_unaligned(bytes);
        Block { scale: b.d, min: b.m, codes: nibbles(&b.qs) }
    }
}
