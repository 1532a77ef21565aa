// Arguments of kernels. Written by tools/kernels from gemv.rs; do not edit.
#pragma once
#include "../common/ranks.cuh"
#include "../common/route_args.cuh"

// Parts that the kernels take.
constexpr int MAX_PARTS = 4;

// Experts that a token uses at most.
constexpr int MAX_USED = 32;

struct GemvPart {
  // [n_out] rows of `row_bytes`
  const uint8_t* w;
  uint64_t row_bytes;
  uint32_t layout;
  // of the whole matrix
  uint32_t first_out;
  uint32_t n_out;
  // blocks `first_block` to the next part's own it
  uint32_t first_block;
};

struct GemvArgs {
  // [m, y_stride]
  float* y;
  // [m, n_in]
  const float* x;
  // [n_in]: x is normalized first (root mean square); or null
  const float* norm_weight;
  // [n_out] or null
  const float* bias;
  GemvPart parts[MAX_PARTS];
  uint32_t n_parts;
  uint32_t n_blocks;
  uint32_t n_in;
  uint32_t m;
  uint32_t y_stride;
  // GATE: part 0 is the gate's, part 1 up's, of one layout; y has the outputs of one
  uint32_t epilogue;
  uint32_t activation;
  uint32_t large_ring;
  // 1 / n_in
  float inv_n;
  float eps;
};

struct GemvRanksArgs {
  GemvArgs product;
  ranks::Ranks ranks;
};

struct GemvInOrderArgs {
  GemvArgs product;
  // blocks of 256 columns whose products are added up by themselves
  uint32_t part_blocks;
};

// The product of rows with the experts that each uses, a row to a blockIdx.y. GATE: `product.n_out` are the outputs of all of a row's
// experts, one after the other. Else they add up, and x has n_row columns for each.
struct GemvExpertsArgs {
  GemvArgs product;
  // what chooses the experts of each row
  RouteArgs route;
  // [all experts, n_out], for GATE [all experts, 2 * n_out]; or null
  const float* bias;
  // of a part, from one expert to the next
  uint64_t expert_bytes;
  // outputs of an expert
  uint32_t n_out;
  // columns of an expert's row
  uint32_t n_row;
};
