// Arguments of kernels. Written by tools/kernels from gemm_i8.rs; do not edit.
#pragma once
#include <cstdint>

// Parts that the kernels take.
constexpr int MAX_PARTS = 4;

struct GemmI8Part {
  // [n_out] rows of `row_bytes`
  const uint8_t* w;
  uint64_t row_bytes;
  uint32_t layout;
  // of the whole matrix
  uint32_t first_out;
  uint32_t n_out;
  // tiles `first_tile` to the next part's own it
  uint32_t first_tile;
};

struct GemmI8Args {
  // [m, y_stride]
  float* y;
  // [tiles of rows, n_blocks, N]
  const struct XBlock* x;
  // [m, n_blocks]: sums of squares of what is to be normalized (root mean square); or null.
  const float* squares;
  // [n_out] or null
  const float* bias;
  // [tiles of rows, tiles, parts of columns, N, threads with sums]
  float4* partial;
  // [tiles of rows, tiles]: parts of columns that are done; zero before and after a launch
  uint32_t* arrived;
  GemmI8Part parts[MAX_PARTS];
  uint32_t n_parts;
  // of outputs
  uint32_t n_tiles;
  // of 256 columns, and those of a part of the columns
  uint32_t n_blocks;
  uint32_t part_blocks;
  uint32_t n_parts_of_columns;
  uint32_t m;
  uint32_t y_stride;
  // from one output's rest of a group to the next one's
  uint32_t rest_pitch;
  // of the ring, on Hopper
  uint32_t n_stages;
  // GATE: part 0 is the gate's, part 1 up's, of one layout; y has the outputs of one
  uint32_t epilogue;
  uint32_t activation;
  // 1 / n_in
  float inv_n;
  float eps;
};
