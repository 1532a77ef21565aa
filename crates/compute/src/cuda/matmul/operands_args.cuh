// Arguments of kernels. Written by tools/kernels from operands.rs; do not edit.
#pragma once
#include <cstdint>

struct ActivationArgs {
  // as `swizzled_offset` says, one row per block
  uint8_t* y;
  // [m], what each row must be multiplied with; not written for bfloat16; of 8 bits [padded / 256, n_rows]
  float* scales;
  // [m, n]; of `bfloat_bytes` tiles of n_rows rows
  const float* x;
  // [n] of the norm that comes before, or null
  const float* weight;
  // [n] or null
  const float* bias;
  uint32_t n;
  uint32_t n_rows;
  // 1: the norm takes the mean out
  uint32_t layer;
  float eps;
};

struct WeightArgs {
  // as `swizzled_offset` says, from `first_row` on one row per blockIdx.x
  uint8_t* y;
  // of 8 bits: [padded / 256, n_rows]
  float* scales;
  // rows of `row_bytes`
  const uint8_t* w;
  const void* codebook;
  uint64_t row_bytes;
  uint32_t n;
  uint32_t n_rows;
  // a slab may hold rows of several matrices
  uint32_t first_row;
};
