//! What the kernels for few rows find in memory at a part of a matrix.

use super::packed_types::{FIRST_PACKED, LAYOUT_BF16, LAYOUT_F16, PACKED, PackedType, packed_index};
use super::shape::{Layout, PartShape};
use crate::DType;

/// What a kernel finds at a part's weights.
#[derive(Clone, Copy)]
pub(super) enum Weights {
    /// F16 or BF16.
    Plain {
        layout: usize,
    },
    Packed(&'static PackedType),
}

impl Weights {
    /// `None` where the kernels for few rows know the layout not.
    pub(super) fn of(part: &PartShape, n_in: usize) -> Option<Self> {
        match (part.layout, part.dtype) {
            (Layout::Blocks, DType::F16) if n_in.is_multiple_of(8) => {
                Some(Self::Plain { layout: LAYOUT_F16 })
            }
            (Layout::Blocks, DType::BF16) if n_in.is_multiple_of(8) => {
                Some(Self::Plain { layout: LAYOUT_BF16 })
            }
            (Layout::Blocks, _) => None,
            (Layout::Packed, dtype) => Some(Self::Packed(&PACKED[packed_index(dtype)])),
        }
    }

    /// The same by the kernels' number.
    pub(super) fn of_layout(layout: u32) -> Self {
        let layout = layout as usize;
        match layout.checked_sub(FIRST_PACKED) {
            None => Self::Plain { layout },
            Some(index) => Self::Packed(&PACKED[index]),
        }
    }

    pub(super) fn layout(self) -> u32 {
        let layout = match self {
            Self::Plain { layout } => layout,
            Self::Packed(t) => FIRST_PACKED + packed_index(t.dtype),
        };
        layout as u32
    }

    /// Whether the kernels of experts for one row and for Hopper take it.
    pub(super) fn is_of_experts(self) -> bool {
        match self {
            Self::Plain { .. } => true,
            Self::Packed(t) => t.of_experts,
        }
    }

    /// Whether `stream_k_128` takes it.
    pub(super) fn is_of_stream_k_128(self) -> bool {
        match self {
            Self::Plain { .. } => true,
            Self::Packed(t) => t.of_stream_k_128,
        }
    }

    /// Bytes of the type's table in shared memory.
    pub(super) fn table_bytes(self) -> usize {
        match self {
            Self::Plain { .. } => 0,
            Self::Packed(t) => t.table_bytes,
        }
    }

    pub(super) fn is_plain(self) -> bool {
        matches!(self, Self::Plain { .. })
    }

    /// Whether `gemv` has 256 threads.
    pub(super) fn is_simple(self) -> bool {
        match self {
            Self::Plain { .. } => true,
            Self::Packed(t) => t.is_simple,
        }
    }

    /// Bytes of the ring of `gemv` in shared memory, as gemv.cu has them.
    pub(super) fn gemv_ring(self, hopper: bool, large: bool) -> usize {
        match self {
            _ if !hopper => 60 << 10,
            Self::Plain { .. } => 64 << 10,
            Self::Packed(t) if t.has_wide_ring => 92 << 10,
            Self::Packed(_) if large => 108 << 10,
            Self::Packed(_) => 84 << 10,
        }
    }
}
