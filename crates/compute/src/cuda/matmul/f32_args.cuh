// Arguments of kernels. Written by tools/kernels from f32.rs; do not edit.
#pragma once
#include <cstdint>

struct F32Args {
  // [m, y_stride]
  float* y;
  // [m, n_in]
  const float* x;
  // [n_out, n_in]
  const float* w;
  // [n_in]: x is normalized first (root mean square); or null; not f32_gemm
  const float* norm_weight;
  // [n_out] or null
  const float* bias;
  // a multiple of 4
  uint32_t n_in;
  uint32_t n_out;
  uint32_t m;
  uint32_t y_stride;
  float eps;
};
