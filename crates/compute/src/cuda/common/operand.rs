//! Where a matmul's input comes from and where a result goes: floats, or the tiles that the next matmul reads.

use super::KvSlots;
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
    /// Half precision in order, times a factor (halves.cuh), for `gemm`.
    GemmHalf,
}

/// The 16 bits that one kernel writes for the next; halves.cuh has the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cuda) enum TileNumber {
    Bfloat = 1,
    Half = 2,
}

/// Activations in tiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tiles {
    pub(in crate::cuda) layout: TileLayout,
    pub(in crate::cuda) ptr: DevicePtr,
    /// Rows of each tile.
    pub(in crate::cuda) rows: usize,
}

impl Tiles {
    /// A number of tiles of half precision for `gemm` times this is what it stands for (halves.cuh).
    pub(in crate::cuda) const HALF_FACTOR: f32 = 16.0;

    /// # Panics
    /// If they are not for `gemm`.
    pub(in crate::cuda) fn number(self) -> TileNumber {
        match self.layout {
            TileLayout::GemmBfloat => TileNumber::Bfloat,
            TileLayout::GemmHalf => TileNumber::Half,
            layout => panic!("{layout:?} for a kernel that writes gemm's tiles"),
        }
    }
}

/// Where an operation puts its result.
#[derive(Clone, Copy)]
pub(in crate::cuda) enum Output {
    /// Floats.
    Floats(DevicePtr),
    /// Tiles, in the layout that the matmul wants which reads them.
    Tiles(Tiles),
    /// Queries, keys and values in 16 bits, the latter two in the cache.
    Qkv(KvSlots),
}

impl Output {
    /// Where it begins.
    pub(in crate::cuda) fn ptr(self) -> DevicePtr {
        match self {
            Self::Floats(y) => y,
            Self::Qkv(slots) => slots.q,
            Self::Tiles(tiles) => tiles.ptr,
        }
    }

    /// Rows of tiles; 0 for others.
    pub(in crate::cuda) fn tile_rows(self) -> usize {
        match self {
            Self::Floats(_) | Self::Qkv(..) => 0,
            Self::Tiles(tiles) => tiles.rows,
        }
    }

    /// The [`TileNumber`] of gemm's tiles; 0 for others.
    pub(in crate::cuda) fn tile_number(self) -> u32 {
        match self {
            Self::Floats(_) | Self::Qkv(..) => 0,
            Self::Tiles(tiles) => tiles.number() as u32,
        }
    }

    /// From column `first` on, a multiple of a tile's columns.
    pub(in crate::cuda) fn after(self, first: usize) -> Self {
        match self {
            Self::Floats(y) => Self::Floats(y.offset(4 * first)),
            Self::Qkv(slots) => Self::Qkv(KvSlots { first_out: slots.first_out + first as u32, ..slots }),
            Self::Tiles(t) => Self::Tiles(Tiles { ptr: t.ptr.offset(2 * first * t.rows), ..t }),
        }
    }
}
