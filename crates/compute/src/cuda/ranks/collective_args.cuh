// Arguments of kernels. Written by tools/kernels from mod.rs; do not edit.
#pragma once
#include "../common/ranks.cuh"

struct CollectiveArgs {
  ranks::Ranks ranks;
  float* y;
  const float* x;
  // first column of each GPU in y, and the number of columns
  uint32_t starts[MAX_RANKS + 1];
  // numbers, or rows
  uint32_t n;
  // pair of the first block
  uint32_t first;
  // of rows in pairs; as wide as the widest GPU's columns
  uint32_t width;
  // whether the sum is added to y
  uint32_t add;
};
