//! The packed types, as launchers know them.
//!
//! Kernels have the rest from `quant/<type>/packed.cuh`. From the rows of [`PACKED`], `tools/kernels` writes packed.cuh, which brings these
//! files to all kernels.

use super::small_m::GROUP;
use crate::DType;
use crate::cuda::driver::kernel_args;

kernel_args! {
    in "layouts.cuh";

    /// The numbers that kernels know layouts by: plain numbers, and then the packed types in the order of their rows.
    const LAYOUT_F16: usize = 0;
    const LAYOUT_BF16: usize = 1;
    const FIRST_PACKED: usize = 2;

    /// The first packed types, which are met most often, have kernels of their own in `mixed_gemm` and `stream_k`.
    const N_COMMON: usize = 5;
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
    pub(super) of_experts: bool,
    /// Whether `stream_k_128` has; if not, `stream_k_256` takes its rows.
    pub(super) of_stream_k_128: bool,
    /// Whether `gemm_i8` takes it.
    pub(super) of_gemm_i8: bool,
    /// Bytes of the table that codes are looked up in.
    pub(super) table_bytes: usize,
    /// Whether `gemv` has the larger of its two rings, and no larger one for a gate.
    pub(super) has_wide_ring: bool,
    /// Whether `gemv` has 256 threads, since little is to be computed for a weight.
    pub(super) is_simple: bool,
}

/// All. A row is a line, of which `tools/kernels` wants the type.
#[rustfmt::skip]
pub(in crate::cuda) const PACKED: &[PackedType] = &[
    PackedType { dtype: DType::Q4_0, row_multiple: 64, has_integer_scales: false, boxes: [2, 1], of_experts: true, of_stream_k_128: true, of_gemm_i8: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::Q8_0, row_multiple: 64, has_integer_scales: false, boxes: [4, 1], of_experts: true, of_stream_k_128: true, of_gemm_i8: true, table_bytes: 0, has_wide_ring: true,  is_simple: true },
    PackedType { dtype: DType::Q4_K, row_multiple: 64, has_integer_scales: true,  boxes: [2, 1], of_experts: true, of_stream_k_128: true, of_gemm_i8: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::Q5_K, row_multiple: 64, has_integer_scales: true,  boxes: [2, 3], of_experts: true, of_stream_k_128: true, of_gemm_i8: true, table_bytes: 0, has_wide_ring: true,  is_simple: false },
    PackedType { dtype: DType::Q6_K, row_multiple: 64, has_integer_scales: true,  boxes: [3, 2], of_experts: true, of_stream_k_128: true, of_gemm_i8: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::IQ4_NL, row_multiple: 64, has_integer_scales: false, boxes: [2, 1], of_experts: true, of_stream_k_128: true, of_gemm_i8: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::IQ4_XS, row_multiple: 64, has_integer_scales: true, boxes: [2, 1], of_experts: true, of_stream_k_128: true, of_gemm_i8: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::MXFP4, row_multiple: 64, has_integer_scales: false, boxes: [2, 1], of_experts: true, of_stream_k_128: true, of_gemm_i8: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::Q5_0, row_multiple: 64, has_integer_scales: false, boxes: [2, 3], of_experts: true, of_stream_k_128: true, of_gemm_i8: true, table_bytes: 0, has_wide_ring: true,  is_simple: false },
    PackedType { dtype: DType::NVFP4, row_multiple: 64, has_integer_scales: false, boxes: [2, 1], of_experts: true, of_stream_k_128: true, of_gemm_i8: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::Q3_K, row_multiple: 256, has_integer_scales: true,  boxes: [1, 4], of_experts: false, of_stream_k_128: true, of_gemm_i8: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::Q2_K, row_multiple: 256, has_integer_scales: true,  boxes: [1, 2], of_experts: false, of_stream_k_128: true, of_gemm_i8: true, table_bytes: 0, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::IQ3_S, row_multiple: 256, has_integer_scales: true, boxes: [1, 4], of_experts: false, of_stream_k_128: true, of_gemm_i8: false, table_bytes: 2048, has_wide_ring: false, is_simple: false },
    PackedType { dtype: DType::IQ2_XS, row_multiple: 256, has_integer_scales: true, boxes: [1, 2], of_experts: false, of_stream_k_128: false, of_gemm_i8: true, table_bytes: 2048, has_wide_ring: false, is_simple: false },
];

/// Where a packed type stands in [`PACKED`].
pub(super) fn packed_index(dtype: DType) -> usize {
    PACKED.iter().position(|t| t.dtype == dtype).expect("a packed type")
}

/// Whether codes are FP4, which Hopper's instructions decode.
pub(super) fn is_fp4(dtype: DType) -> bool {
    matches!(dtype, DType::MXFP4 | DType::NVFP4)
}

/// Bytes of a row of `n_in` weights in their packed layout, if they have one.
pub(in crate::cuda) fn packed_row_bytes(dtype: DType, n_in: usize) -> Option<usize> {
    let packed = PACKED.iter().find(|t| t.dtype == dtype && n_in.is_multiple_of(t.row_multiple));
    packed.filter(|_| n_in > 0).map(|t| t.row_bytes(n_in))
}

impl PackedType {
    /// By the kernels' number.
    ///
    /// # Panics
    /// If that layout is not packed.
    pub(super) fn of_layout(layout: u32) -> &'static Self {
        let index = (layout as usize).checked_sub(FIRST_PACKED);
        index.map(|i| &PACKED[i]).unwrap_or_else(|| panic!("layout {layout} is not packed"))
    }

    /// Bytes of a group of `size` pieces.
    pub(super) fn group_bytes(&self, size: usize) -> usize {
        // The kinds of vectors of a group begin at multiples of 16 bytes: those of Q5_0 have 8 bytes of a piece before the last kind.
        let gap = if self.dtype == DType::Q5_0 && !size.is_multiple_of(2) { 8 } else { 0 };
        (self.dtype.bytes_for(64 * size).expect("whole blocks") + gap).next_multiple_of(16)
    }

    /// Bytes of a row of `n_in` weights, which are pieces.
    fn row_bytes(&self, n_in: usize) -> usize {
        let (n_groups, rest) = (n_in / (64 * GROUP), n_in / 64 % GROUP);
        n_groups * self.group_bytes(GROUP) + self.group_bytes(rest)
    }

    pub(super) fn has_integer_scales(&self) -> bool {
        self.has_integer_scales
    }

    /// Boxes of a stage of `mixed_gemm`: see [`PackedType::boxes`].
    pub(super) fn boxes(&self) -> [usize; 2] {
        self.boxes
    }
}
