// Arguments of kernels. Written by tools/kernels from mod.rs; do not edit.
#pragma once
#include <cstdint>

struct NormArgs {
  // [n_rows, n] in rows of `row_len`, may be x
  float* y;
  // As y.
  const float* x;
  // [n]
  const float* weight;
  // [n] or null
  const float* bias;
  uint32_t n;
  // Elements from one row to the next, of which n are normalized.
  uint32_t row_len;
  // Whether the mean is taken out first.
  uint32_t layer;
  // Whether the result is added to y.
  uint32_t add;
  float eps;
};

struct NormSumArgs {
  // [m, n], n a multiple of 8
  float* x;
  // tiles of half precision, [m, n]
  const uint8_t* y;
  // [m, n]
  uint8_t* tiles;
  // [n]
  const float* weight;
  // [n] or null
  const float* bias;
  uint32_t m;
  uint32_t n;
  // of all tiles
  uint32_t n_rows;
  // TileNumber of the result
  uint32_t number;
  // 1: the mean is taken out first
  uint32_t layer;
  float eps;
};
