// Arguments of kernels. Written by tools/kernels from grouped_gemm.rs; do not edit.
#pragma once
#include "mixed_gemm_args.cuh"

struct GroupedGemmArgs {
  // x: [tiles of rows, padded / 64, N, 64], x_scales: [tiles of rows, N]; y is by slot, or as x
  MixedGemmArgs product;
  // one for each blockIdx.y
  const struct RowTile* tiles;
  // of a gate [n_experts, 2 * y_stride], or null; not where y is tiles
  const float* bias;
  // of a part's weights, from one expert to the next
  uint32_t expert_rows;
};
