// Arguments of kernels. Written by tools/kernels from grouped_small_m.rs; do not edit.
#pragma once
#include <cstdint>

struct GroupedSmallMArgs {
  // [n_uses, n_out] by slot
  float* y;
  // [tiles of rows, 2, n_blocks]
  const struct XBlock* x;
  // [tiles of rows]
  const struct RowTile* tiles;
  // how many of these have rows
  const uint32_t* n_filled;
  // of a gate [n_experts, 2 * n_out], or null
  const float* bias;
  // the first expert's rows, or a gate's and its up's
  const uint8_t* w[2];
  uint64_t row_bytes;
  // from one expert to the next
  uint64_t expert_bytes;
  uint32_t n_out;
  // units of an expert
  uint32_t n_units;
  // of a row: groups, pieces of 64 columns, and blocks of 256, the last of which may end early
  uint32_t n_groups;
  uint32_t n_pieces;
  uint32_t n_blocks;
  // of a row's groups, and of its last one
  uint32_t group_bytes;
  uint32_t last_bytes;
  // from a row of a stage to the next one's
  uint32_t pitch;
  uint32_t n_stages;
  // barriers of full stages: of a stage each n_stages-th, by turns
  uint32_t n_full;
  uint32_t n_slots;
  uint32_t gate;
  uint32_t activation;
};

struct GroupedSmallMActivationArgs {
  // [tiles of rows, 2, n_blocks]
  struct XBlock* y;
  // [.., n]
  const float* x;
  // [blocks] the row of x of each, or null: in order
  const uint32_t* x_rows;
  // [blocks, n_places] rows of y that each row of x becomes
  const uint32_t* places;
  // [n] of the norm that comes before, or null
  const float* weight;
  uint32_t n;
  uint32_t n_blocks;
  uint32_t n_places;
  // whether each 32 have a scale of their own
  uint32_t of_32;
  float eps;
};
