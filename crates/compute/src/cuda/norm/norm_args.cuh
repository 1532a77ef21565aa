// Arguments of kernels. Written by tools/kernels from mod.rs; do not edit.
#pragma once
#include <cstdint>

struct NormArgs {
  // [n_rows, n], may be x
  float* y;
  const float* x;
  // [n]
  const float* weight;
  // [n] or null
  const float* bias;
  uint32_t n;
  // Whether the mean is taken out first.
  uint32_t layer;
  // Whether the result is added to y.
  uint32_t add;
  float eps;
};
