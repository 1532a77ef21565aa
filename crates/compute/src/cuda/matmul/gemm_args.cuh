// Arguments of kernels. Written by tools/kernels from gemm.rs; do not edit.
#pragma once
#include <cstdint>

struct GemmArgs {
  // [m, y_stride], and this launch's outputs from 0 on
  float* y;
  // [m, k], or tiles of x_rows rows
  const uint8_t* x;
  // [m] factors of the rows, or null; of 8 bits: [k / 256, x_rows]
  const float* x_scales;
  // [n_out, k], or tiles of w_rows rows
  const uint8_t* w;
  // of 8 bits: [k / 256, w_rows]
  const float* w_scales;
  // as w for GATE: what is multiplied with the activated outputs of w
  const uint8_t* up;
  // as w_scales
  const float* up_scales;
  // [n_out] or null
  const float* bias;
  // a multiple of 8, or of the columns of a tile, or of 256 of 8 bits
  uint32_t k;
  uint32_t n_out;
  uint32_t m;
  uint32_t y_stride;
  uint32_t epilogue;
  uint32_t activation;
  uint32_t x_rows;
  uint32_t w_rows;
};
