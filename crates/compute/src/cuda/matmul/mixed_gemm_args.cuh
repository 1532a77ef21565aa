// Arguments of kernels. Written by tools/kernels from mixed_gemm.rs; do not edit.
#pragma once
#include "../common/hopper.cuh"

// Parts that the kernels take.
constexpr int MAX_PARTS = 4;

// Blocks of a cluster at most.
constexpr int MAX_CLUSTER = 6;

struct MixedGemmPart {
  // The rows of weights as bytes, and their boxes of 64 rows: of 64 bytes, and of 16 for what is not vectors; or of 128 bytes of plain weights, which lie in shared memory as `smem_desc` wants them.
  ptx::TensorMap vectors;
  ptx::TensorMap rest;
  uint32_t layout;
  // of the whole matrix
  uint32_t first_out;
  uint32_t n_out;
  // tiles `first_tile` to the next part's own it
  uint32_t first_tile;
};

struct MixedGemmArgs {
  MixedGemmPart parts[MAX_PARTS];
  // [m, y_stride], or tiles
  float* y;
  // as `mixed_gemm_activations` writes it
  const uint16_t* x;
  // [m], or null where all are `fixed_scale`
  const float* x_scales;
  // [n_out] or null
  const float* bias;
  uint32_t n_parts;
  // of this launch
  uint32_t first_tile;
  // steps[r] to steps[r + 1] are those of block r of a cluster
  uint32_t steps[MAX_CLUSTER + 1];
  // of a row of weights, the last of which may end early
  uint32_t n_pieces;
  uint32_t m;
  uint32_t y_stride;
  // GATE: part 0 is the gate's, part 1 up's, of one layout; y has the outputs of one
  uint32_t epilogue;
  // of GATE: the `ActivationLayout` of the tiles that y is, or 0
  uint32_t tiles;
  uint32_t activation;
  // of part 1: its first row of weights
  uint32_t up_row;
  // of the rings
  uint32_t w_stages;
  uint32_t x_stages;
  uint32_t w_stage_bytes;
};

struct MixedGemmActivationArgs {
  // [tiles of rows, padded / 64, rows, 64]
  uint16_t* y;
  // [tiles of rows, rows], what each row must be multiplied with
  float* scales;
  // [.., n]
  const float* x;
  // [blocks] the row of x of each, or null: in order
  const uint32_t* x_rows;
  // [blocks, n_places] rows of y that each row of x becomes, or null: one, the same
  const uint32_t* places;
  // [n] of the norm that comes before, or null
  const float* weight;
  // columns, and with those of zeros at the end
  uint32_t n;
  uint32_t padded;
  // an `ActivationLayout`
  uint32_t layout;
  // of a tile of rows
  uint32_t rows;
  uint32_t n_places;
  float eps;
};
