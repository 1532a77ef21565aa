// Arguments of kernels. Written by tools/kernels from dequantize.rs; do not edit.
#pragma once
#include <cstdint>

struct DequantizeArgs {
  // [n_rows, n], one row per blockIdx.x
  float* y;
  // rows of `row_bytes`
  const uint8_t* w;
  const void* codebook;
  // which row of w; null: row blockIdx.x
  const uint32_t* rows;
  // null, or: which of `chosen` says the row instead, where it is not NONE
  const uint32_t* sources;
  const uint32_t* chosen;
  uint64_t row_bytes;
  uint32_t n;
  // rows of w; an index past them reads the last
  uint32_t n_w_rows;
  float scale;
};
