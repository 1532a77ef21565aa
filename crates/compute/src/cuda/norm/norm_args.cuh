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
  // Whether threads hold 8 elements each: rows, x, y, weight and bias begin at multiples of 16 bytes, and n is a multiple of 8.
  uint32_t held;
  float eps;
};

struct NormHeadsArgs {
  // [n_heads, n]: rows of `heads_of_row` heads, n a multiple of 8
  float* x;
  // [n] of all heads
  const float* weight;
  // [n] or null
  const float* bias;
  // [heads_of_row, n]
  const float* weights;
  uint32_t n_heads;
  uint32_t heads_of_row;
  uint32_t n;
  // 1: the mean is taken out first
  uint32_t layer;
  float eps;
};

struct AddNormsArgs {
  // [rows, n], n a multiple of 8
  float* y;
  // [rows, n] each
  const float* x[2];
  // [n]: of both x, and of their sum
  const float* weights[3];
  float eps[3];
  uint32_t n;
};

struct NormSumArgs {
  // [m, n], n a multiple of 8; null: x is in the tiles of the result
  const float* x;
  // tiles of half precision, [m, n]
  const uint8_t* y;
  // the result, [m, n]
  uint8_t* tiles;
  // the result, may be x, or null
  float* sum;
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

struct NormEmbeddedArgs {
  // [m, n], n a multiple of 8
  float* x;
  // [n_positions, n] or null
  const float* positions;
  // [m]
  const uint32_t* position_of;
  // [n_types, n] or null
  const float* types;
  // [m]
  const uint32_t* type_of;
  // [n]
  const float* weight;
  // [n] or null
  const float* bias;
  uint32_t m;
  uint32_t n;
  uint32_t n_positions;
  uint32_t n_types;
  // 1: the mean is taken out first
  uint32_t layer;
  float eps;
};

struct ReadTilesArgs {
  // [m, n], n a multiple of 8
  float* y;
  // of half precision, [m, n]
  const uint8_t* tiles;
  uint32_t m;
  uint32_t n;
  // of the tiles
  uint32_t n_rows;
};
