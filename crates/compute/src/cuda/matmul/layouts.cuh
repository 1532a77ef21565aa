// Arguments of kernels. Written by tools/kernels from packed_types.rs; do not edit.
#pragma once
#include <cstdint>

// The numbers that kernels know layouts by: plain numbers, and then the packed types in the order of their rows.
constexpr int LAYOUT_F16 = 0;

constexpr int LAYOUT_BF16 = 1;

constexpr int FIRST_PACKED = 2;

// The first packed types, which are met most often, have kernels of their own in `mixed_gemm` and `stream_k`.
constexpr int N_COMMON = 5;
