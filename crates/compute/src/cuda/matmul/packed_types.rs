//! The packed types, as launchers know them.
//!
//! Kernels have the rest from `quant/<type>/packed.cuh`. From the rows of [`PACKED`], `tools/kernels` writes packed.cuh, which brings these
//! files to all kernels.

use super::shape::{Layout, PartShape};
use crate::DType;
use crate::cuda::driver::kernel_args;

kernel_args! {
    in "layouts.cuh";

    /// The numbers that kernels know layouts by: plain numbers, and then the packed types in the order of their rows.
    const LAYOUT_F16: usize = 0;
    const LAYOUT_BF16: usize = 1;
    const FIRST_PACKED: usize = 2;
}

/// An element type that is repacked when it is loaded.
pub(in crate::cuda) struct PackedType {
    pub(in crate::cuda) dtype: DType,
    /// Of which rows are multiples.
    row_multiple: usize,
    /// Whether scales are integers within blocks of 256, for which `small_m` rounds activations in blocks of 256, and not of 32.
    has_integer_scales: bool,
    /// Boxes of a stage of `mixed_gemm`: 16-byte vectors of a piece, and 16-byte vectors of the rest of four pieces.
    boxes: [usize; 2],
    /// Whether the kernels of experts for one row and for Hopper have registers for it.
    of_experts: bool,
    /// Whether `stream_k_128` has; if not, `stream_k_256` takes its rows.
    of_stream_k_128: bool,
    /// Bytes of the table that codes are looked up in.
    table_bytes: usize,
    /// Whether `gemv` has the larger of its two rings, and no larger one for a gate.
    has_wide_ring: bool,
    /// Whether `gemv` has 256 threads, since little is to be computed for a weight.
    is_simple: bool,
}

/// All. A row is a line, of which `tools/kernels` wants the type.
#[rustfmt::skip]
pub(in crate::cuda) const PACKED: &[PackedType] = &[
    PackedType { dtype: DType::Q4_0, row_multiple: 64, has_integer_scales: false, boxes: [2, 1], of_experts: true, of_stream_k_128: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::Q8_0, row_multiple: 64, has_integer_scales: false, boxes: [4, 1], of_experts: true, of_stream_k_128: true, table_bytes: 0, has_wide_ring: true,  is_simple: true },
    PackedType { dtype: DType::Q4_K, row_multiple: 64, has_integer_scales: true,  boxes: [2, 1], of_experts: true, of_stream_k_128: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::Q5_K, row_multiple: 64, has_integer_scales: true,  boxes: [2, 3], of_experts: true, of_stream_k_128: true, table_bytes: 0, has_wide_ring: true,  is_simple: false },
    PackedType { dtype: DType::Q6_K, row_multiple: 64, has_integer_scales: true,  boxes: [3, 2], of_experts: true, of_stream_k_128: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::IQ4_NL, row_multiple: 64, has_integer_scales: false, boxes: [2, 1], of_experts: true, of_stream_k_128: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::IQ4_XS, row_multiple: 64, has_integer_scales: true, boxes: [2, 1], of_experts: true, of_stream_k_128: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::MXFP4, row_multiple: 64, has_integer_scales: false, boxes: [2, 1], of_experts: true, of_stream_k_128: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::Q5_0, row_multiple: 128, has_integer_scales: false, boxes: [2, 3], of_experts: true, of_stream_k_128: true, table_bytes: 0, has_wide_ring: true,  is_simple: false },
    PackedType { dtype: DType::NVFP4, row_multiple: 64, has_integer_scales: false, boxes: [2, 1], of_experts: true, of_stream_k_128: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::Q3_K, row_multiple: 256, has_integer_scales: true,  boxes: [1, 4], of_experts: false, of_stream_k_128: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::Q2_K, row_multiple: 256, has_integer_scales: true,  boxes: [1, 2], of_experts: false, of_stream_k_128: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::IQ3_S, row_multiple: 256, has_integer_scales: true, boxes: [1, 4], of_experts: false, of_stream_k_128: true, table_bytes: 2048, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::IQ2_XS, row_multiple: 256, has_integer_scales: true, boxes: [1, 2], of_experts: false, of_stream_k_128: false, table_bytes: 2048, has_wide_ring: false, is_simple: false },
];

/// Where a packed type stands in [`PACKED`].
pub(super) fn packed_index(dtype: DType) -> usize {
    PACKED.iter().position(|t| t.dtype == dtype).expect("a packed type")
}

/// Whether rows of `n_in` weights have a packed layout.
pub(super) fn is_packed(dtype: DType, n_in: usize) -> bool {
    PACKED.iter().any(|t| t.dtype == dtype && n_in.is_multiple_of(t.row_multiple)) && n_in > 0
}

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

impl PackedType {
    pub(super) fn of_layout(layout: u32) -> &'static Self {
        match Weights::of_layout(layout) {
            Weights::Packed(t) => t,
            Weights::Plain { .. } => panic!("layout {layout} is not packed"),
        }
    }

    /// Bytes of `size` pieces of a group, whole blocks.
    pub(super) fn group_bytes(&self, size: usize) -> usize {
        self.dtype.bytes_for(64 * size).expect("whole blocks").next_multiple_of(16)
    }

    pub(super) fn has_integer_scales(&self) -> bool {
        self.has_integer_scales
    }

    /// Boxes of a stage of `mixed_gemm`: see [`PackedType::boxes`].
    pub(super) fn boxes(&self) -> [usize; 2] {
        self.boxes
    }
}
