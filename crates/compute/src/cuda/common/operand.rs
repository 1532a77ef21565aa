//! Where a matmul's input comes from and where a result goes: floats, or the tiles that the next matmul reads.

use crate::Norm;
use crate::cuda::driver::{Cuda, DevicePtr};

/// What a matmul reads.
#[derive(Clone, Copy)]
pub(in crate::cuda) enum Input<'a> {
    /// Floats, normalized first where a norm is given.
    Floats(DevicePtr, Option<&'a Norm<Cuda>>),
    /// Tiles, in the layout that the matmul wants.
    Tiles(Tiles),
}

/// How activations lie in tiles (tiles.cuh, gemm.cuh).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum TileLayout {
    /// Half precision in the order of packed columns, for `mixed_gemm` with packed weights.
    PackedHalf,
    /// Half precision in order, for `mixed_gemm` with weights of F16.
    PlainHalf,
    /// BF16 in order, for `mixed_gemm` with weights of BF16.
    PlainBfloat,
    /// BF16 in order, for `gemm`.
    GemmBfloat,
}

/// Activations in tiles.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct Tiles {
    pub(in crate::cuda) layout: TileLayout,
    pub(in crate::cuda) ptr: DevicePtr,
    /// Rows of each tile.
    pub(in crate::cuda) rows: usize,
}

/// Where an operation puts its result.
#[derive(Clone, Copy)]
pub(in crate::cuda) enum Output {
    /// Floats.
    Floats(DevicePtr),
    /// Tiles, in the layout that the matmul wants which reads them.
    Tiles(Tiles),
}

impl Output {
    /// Where it begins.
    pub(in crate::cuda) fn ptr(self) -> DevicePtr {
        match self {
            Self::Floats(y) => y,
            Self::Tiles(tiles) => tiles.ptr,
        }
    }

    /// Rows of tiles; 0 for floats.
    pub(in crate::cuda) fn tile_rows(self) -> usize {
        match self {
            Self::Floats(_) => 0,
            Self::Tiles(tiles) => tiles.rows,
        }
    }

    /// From column `first` on, a multiple of a tile's columns.
    pub(in crate::cuda) fn after(self, first: usize) -> Self {
        match self {
            Self::Floats(y) => Self::Floats(y.offset(4 * first)),
            Self::Tiles(t) => Self::Tiles(Tiles { ptr: t.ptr.offset(2 * first * t.rows), ..t }),
        }
    }
}
