// Arguments of kernels. Written by tools/kernels from grouped_gemm.rs; do not edit.
#pragma once
#include "mixed_gemm_args.cuh"

struct GroupedGemmArgs {
  // x: [tiles of rows, padded / 64, N, 64], x_scales: [tiles of rows, N]; y is by slot, or as x
  MixedGemmArgs product;
  // [tiles of rows]
  const struct RowTile* tiles;
  // how many of these have rows
  const uint32_t* n_filled;
  // tiles of outputs, each of which makes an item of work with each tile of rows
  uint32_t out_tiles;
  // where in shared memory the sums of an item are
  uint32_t sums_at;
  // of a gate [n_experts, 2 * y_stride], or null; not where y is tiles
  const float* bias;
  // of a part's weights, from one expert to the next
  uint32_t expert_rows;
};
