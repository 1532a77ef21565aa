//! MXFP4: FP4 codes and a scale that is a power of two; a panel of [`blocks32`](crate::cpu::matmul::blocks32) with BF16 scales.

use crate::DType;
use crate::cpu::matmul::blocks32::{Block, BlockType, Blocks32, Min};
use crate::quant::bits::nibbles;
use crate::quant::fp4::DOUBLED_VALUES;
use crate::quant::mxfp4;
use half::bf16;

pub(super) static LAYOUT: Blocks32<Mxfp4> = Blocks32::NEW;

pub(super) struct Mxfp4;

impl BlockType for Mxfp4 {
    const DTYPE: DType = DType::MXFP4;
    const FIVE_BITS: bool = false;
    const TABLE: Option<[i8; 16]> = Some(DOUBLED_VALUES);
    const BF16_SCALES: bool = true;
    const MIN: Min = Min::None;

    fn read(bytes: &[u8]) -> Block {
        let b: mxfp4::Block = bytemuck::pod_read_unaligned(bytes);
        // Powers of two from 2^-128 on are BF16 numbers.
        let scale = bf16::from_f32(mxfp4::half_scale(b.e)).to_le_bytes();
        Block { scale, min: [0; 2], codes: nibbles(&b.qs) }
    }
}
