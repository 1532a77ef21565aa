// Arguments of kernels. Written by tools/kernels from simt.rs; do not edit.
#pragma once
#include <cstdint>

struct SimtGemvArgs {
  // [m, y_stride], and this part's outputs from 0 on
  float* y;
  // [.., x_stride], of which n_in count
  const float* x;
  // [n_experts, n_out, n_in]
  const uint8_t* w;
  // [n_out] or null
  const float* bias;
  const void* codebook;
  // one per blockIdx.y; null: tiles of all rows, in order
  const struct Tile* tiles;
  // row of x for each row of y; null: the same
  const uint32_t* x_rows;
  uint64_t expert_bytes;
  uint64_t row_bytes;
  uint32_t n_in;
  uint32_t n_out;
  uint32_t m;
  uint32_t x_stride;
  uint32_t y_stride;
  // elements from the inputs, and outputs, of one blockIdx.z to the next, an expert each
  uint32_t x_head;
  uint32_t y_head;
};

struct SimtGemmArgs {
  // [m, y_stride], and this slab's outputs from 0 on
  float* y;
  // [m, n_in]
  const float* x;
  // [n_out, n_in]
  const float* w;
  // [n_out] or null
  const float* bias;
  uint32_t n_in;
  uint32_t n_out;
  uint32_t m;
  uint32_t y_stride;
};
