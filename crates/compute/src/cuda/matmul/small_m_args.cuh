// Arguments of kernels. Written by tools/kernels from small_m.rs; do not edit.
#pragma once
#include <cstdint>

// Parts that the kernels take.
constexpr int MAX_PARTS = 4;

struct SmallMPart {
  // [n_out] rows of `row_bytes`
  const uint8_t* w;
  uint64_t row_bytes;
  uint32_t layout;
  // of the whole matrix
  uint32_t first_out;
  uint32_t n_out;
  // blocks `first_block` to the next part's own it
  uint32_t first_block;
  // of a row's groups, and of its last one
  uint32_t group_bytes;
  uint32_t last_bytes;
  // From a row of a unit to the next one's, so that sixteen bytes of each of eight rows are in different banks.
  uint32_t pitch;
};

struct SmallMArgs {
  // [m, y_stride]
  float* y;
  // [n_in / 256]
  const struct XBlock* x;
  // [m, n_in / 256]: sums of squares of what is to be normalized (root mean square); or null.
  const float* squares;
  // [n_out] or null
  const float* bias;
  SmallMPart parts[MAX_PARTS];
  uint32_t n_parts;
  uint32_t n_blocks;
  uint32_t n_in;
  uint32_t m;
  uint32_t y_stride;
  // of the ring
  uint32_t n_stages;
  // of 256 columns, which are added up by themselves; 0: all together
  uint32_t part_blocks;
  // GATE: part 0 is the gate's, part 1 up's, of one layout; y has the outputs of one
  uint32_t epilogue;
  uint32_t activation;
  // 1 / n_in
  float inv_n;
  float eps;
};

struct SmallMActivationArgs {
  // [m / 8 / tile_slots, n / 256, tile_slots]
  struct XBlock* y;
  // [m, n / 256], where a norm comes before
  float* squares;
  // [m, n]
  const float* x;
  // [n] of the norm, or null
  const float* weight;
  uint32_t n;
  // whether each 32 have a scale of their own
  uint32_t of_32;
  // slots of 8 rows of a tile, a power of two
  uint32_t tile_slots;
  // whether integers and their sums lie as wgmma wants them
  uint32_t for_wgmma;
};
