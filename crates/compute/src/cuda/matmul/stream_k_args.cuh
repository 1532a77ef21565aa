// Arguments of kernels. Written by tools/kernels from mixed_gemm.rs; do not edit.
#pragma once
#include "mixed_gemm_args.cuh"

struct StreamKArgs {
  MixedGemmArgs of_all;
  // partial sums that blocks leave, [2 of each block, N / 8, MULTIPLIERS]
  float4* partials;
  // whether a quarter of them is there, [2 of each block, QUARTERS], zeros between launches
  uint32_t* is_ready;
  uint32_t n_tiles;
  uint32_t n_steps;
};
