// Arguments of kernels. Written by tools/kernels from packed_types.rs; do not edit.
#pragma once
#include <cstdint>

// The numbers that kernels know layouts by: plain numbers, and then the packed types.
constexpr int LAYOUT_F16 = 0;

constexpr int LAYOUT_BF16 = 1;

constexpr int LAYOUT_Q4_0 = 2;

constexpr int LAYOUT_Q8_0 = 3;

constexpr int LAYOUT_Q4_K = 4;

constexpr int LAYOUT_Q5_K = 5;

constexpr int LAYOUT_Q6_K = 6;

constexpr int LAYOUT_IQ4_NL = 7;

constexpr int LAYOUT_IQ4_XS = 8;

constexpr int LAYOUT_MXFP4 = 9;

constexpr int LAYOUT_Q5_0 = 10;

constexpr int LAYOUT_NVFP4 = 11;
