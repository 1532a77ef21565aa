// Arguments of kernels. Written by tools/kernels from gemm.rs; do not edit.
#pragma once
#include "../common/hopper.cuh"
#include "../common/kv_slots_args.cuh"
#include "gemm_args.cuh"

// Matrices that a matmul can have rows of: queries', keys' and values'.
constexpr int MAX_MATRICES = 3;

// How many matrices' rows come as boxes, and the first row of each among the outputs. A gate's ups come after it.
struct WeightBoxes {
  uint32_t n_matrices;
  uint32_t first_rows[MAX_MATRICES];
};

// The same on Hopper, with the matrices whose rows TMA brings as boxes, and whether x and y have tiles.
struct GemmHopperArgs {
  GemmArgs of_all;
  // 0: weights are tiles. Else they are rows of 16 bits, of so many matrices one after the other, which TMA brings as boxes; a gate's ups come after the gates.
  WeightBoxes boxes;
  // A TileNumber: whether outputs are tiles, with as many rows as those of x.
  uint32_t to_tiles;
  // Factor of all rows where x_scales is null.
  float x_factor;
  KvSlots slots;
  ptx::TensorMap maps[MAX_MATRICES];
};
