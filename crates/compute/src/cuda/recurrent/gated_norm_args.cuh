// Arguments of kernels. Written by tools/kernels from gated_norm.rs; do not edit.
#pragma once
#include <cstdint>

struct GatedNormArgs {
  // [n_rows, n_groups, n], in place
  float* x;
  // [n_rows] rows of `gate_len`, which begin with n_groups * n gates
  const float* gate;
  // [n], or [n_groups, n] where groups have their own
  const float* weight;
  // As the weights, or null
  const float* bias;
  uint32_t n_rows;
  uint32_t n_groups;
  uint32_t n;
  uint32_t gate_len;
  // From the weights of a group to those of the next; 0: one group's weights serve all
  uint32_t weight_stride;
  // 1: the mean is taken out first
  uint32_t layer;
  // 1: the gate multiplies what is normalized; 0: the result
  uint32_t gate_first;
  float eps;
};
