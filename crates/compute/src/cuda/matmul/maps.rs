//! TMA maps of weights, for `mixed_gemm` and `stream_k`.

use super::shape::{Layout, PartShape};
use crate::cuda::driver::{BoxMap, Boxes, Cuda, DevicePtr};
use crate::{DType, Result};

/// Rows of a box of weights.
const BOX_ROWS: usize = 64;
/// Bytes of the boxes' rows: of vectors of packed weights, and of what else four pieces have.
pub(super) const BOX_BYTES: [usize; 2] = [64, 16];
/// Bytes of a row of a box of plain weights, which is all that a stage has of it.
pub(super) const PLAIN_BYTES: usize = 128;
/// Rows that an interleaved map takes its boxes from.
const INTERLEAVED_ROWS: usize = 256;

/// Maps of a part's rows: of rows in order, and of the rows of a tile of activations in the order of packed columns, where the rows are a
/// multiple of 256. Each of the vectors of packed weights or all of plain ones, and of what else four pieces have.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct PartMaps {
    pub(super) in_order: [BoxMap; 2],
    pub(super) interleaved: Option<[BoxMap; 2]>,
}

/// Whether a part's rows have maps on Hopper.
pub(super) fn has_maps(part: &PartShape) -> bool {
    let is_wanted = match part.layout {
        Layout::Packed => true,
        Layout::Blocks => matches!(part.dtype, DType::F16 | DType::BF16) && part.row_bytes.is_multiple_of(16),
    };
    is_wanted && part.n_out > 0 && part.row_bytes > 0
}

/// Whether rows have an interleaved map, too.
pub(super) fn has_interleaved_maps(n_rows: usize) -> bool {
    n_rows.is_multiple_of(INTERLEAVED_ROWS)
}

/// The maps of a part's rows; `None` where no kernel wants them.
pub(super) fn maps(
    cuda: &Cuda,
    part: &PartShape,
    rows: DevicePtr,
    n_rows: usize,
) -> Result<Option<PartMaps>> {
    if !cuda.driver.is_hopper() || !has_maps(part) || n_rows == 0 {
        return Ok(None);
    }
    let row_bytes = part.row_bytes;
    let both = |spread| {
        let of = |box_bytes, swizzled| {
            let box_rows = BOX_ROWS;
            cuda.driver.box_map(Boxes { rows, n_rows, row_bytes, box_rows, spread, box_bytes, swizzled })
        };
        Ok(match part.layout {
            Layout::Packed => [of(BOX_BYTES[0], false)?, of(BOX_BYTES[1], false)?],
            Layout::Blocks => [of(PLAIN_BYTES, true)?; 2],
        })
    };
    let interleaved = if has_interleaved_maps(n_rows) { Some(both(true)?) } else { None };
    Ok(Some(PartMaps { in_order: both(false)?, interleaved }))
}
