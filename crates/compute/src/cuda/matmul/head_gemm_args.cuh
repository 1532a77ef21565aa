// Arguments of kernels. Written by tools/kernels from head_gemm.rs; do not edit.
#pragma once
#include <cstdint>

// Most columns: the rows of a block and two stages of weights fit in the shared memory of any GPU.
constexpr int MAX_IN = 512;

struct HeadGemmArgs {
  // [m, y_stride], and this part's outputs from 0 on
  float* y;
  // [m, x_stride]
  const float* x;
  // [n_heads, n_out, n_in]
  const uint8_t* w;
  uint64_t row_bytes;
  // from one head to the next
  uint64_t head_bytes;
  uint32_t n_in;
  uint32_t n_out;
  uint32_t m;
  // outputs of a block, a multiple of 128
  uint32_t share;
  uint32_t x_stride;
  uint32_t y_stride;
  // elements from one head to the next, multiples of 4 in x
  uint32_t x_head;
  uint32_t y_head;
};
