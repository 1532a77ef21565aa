// Arguments of kernels. Written by tools/kernels from gated_norm.rs; do not edit.
#pragma once
#include <cstdint>

struct GatedNormArgs {
  // [n_rows, n_groups, n], in place
  float* x;
  // [n_rows] rows of `gate_len`, which begin with n_groups * n gates
  const float* gate;
  // [n]
  const float* weight;
  // [n] or null
  const float* bias;
  uint32_t n_rows;
  uint32_t n_groups;
  uint32_t n;
  uint32_t gate_len;
  // 1: the mean is taken out first
  uint32_t layer;
  float eps;
};
