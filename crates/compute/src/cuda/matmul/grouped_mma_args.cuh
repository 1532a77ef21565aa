// Arguments of kernels. Written by tools/kernels from grouped_mma.rs; do not edit.
#pragma once
#include <cstdint>

struct GroupedMmaArgs {
  // by slot, [n_uses, n_out]
  float* y;
  // [tiles of rows, padded / 64, 64, 64] in order
  const uint8_t* x;
  // [tiles of rows, 64]
  const float* x_scales;
  // one for each blockIdx.y
  const struct RowTile* tiles;
  // of a gate [n_experts, 2 * n_out], or null
  const float* bias;
  // the matrix, or a gate's and its up's
  const uint8_t* w[2];
  uint64_t row_bytes;
  // from one expert to the next
  uint64_t expert_bytes;
  uint32_t n_in;
  uint32_t padded;
  uint32_t n_out;
  uint32_t gate;
  uint32_t activation;
};
