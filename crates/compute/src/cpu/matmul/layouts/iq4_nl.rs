//! IQ4_NL: nibbles that number the bytes of a table, and a scale; a panel of [`blocks32`](crate::cpu::matmul::blocks32).

use crate::DType;
use crate::cpu::matmul::blocks32::{Block, BlockType, Blocks32, Min};
use crate::quant::bits::nibbles;
use crate::quant::iq4_nl::{self, VALUES};

pub(super) static LAYOUT: Blocks32<Iq4Nl> = Blocks32::NEW;

pub(super) struct Iq4Nl;

impl BlockType for Iq4Nl {
    const DTYPE: DType = DType::IQ4_NL;
    const FIVE_BITS: bool = false;
    const TABLE: Option<[i8; 16]> = Some(VALUES);
    const MIN: Min = Min::None;

    fn read(bytes: &[u8]) -> Block {
        let b: iq4_nl::Block = bytemuck::pod_read_unaligned(bytes);
        Block { scale: b.d, min: [0; 2], codes: nibbles(&b.qs) }
    }
}
