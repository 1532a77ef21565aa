// Arguments of kernels. Written by tools/kernels from mod.rs; do not edit.
#pragma once
#include "../common/route_args.cuh"

// Warps of moe_group.
constexpr int GROUP_WARPS = 16;

struct MoeArgs {
  // [n_tokens, hidden_size]
  float* y;
  // Whether sums are added to y.
  uint32_t adds;
  RouteArgs route;
  // [n_experts, hidden_size], or null
  const float* down_bias;
  // [n_uses, hidden_size], by slot
  const float* outputs;
  // [n_uses]: use i of token t at t * n_used + i, most probable first
  uint32_t* experts;
  // [n_uses]
  float* weights;
  // [n_uses]: the slot of each use; slots are sorted by expert, then by use
  uint32_t* slots;
  // [n_uses]: the token of each slot
  uint32_t* tokens;
  // [n_uses]: where each use is if all tiles have `tile_rows` rows
  uint32_t* places;
  // [n_tiles]; those not needed have no rows
  struct MoeTile* tiles;
  // how many tiles have rows
  uint32_t* n_filled;
  uint32_t n_tokens;
  uint32_t hidden_size;
  uint32_t n_tiles;
  // Slots of a tile at most.
  uint32_t tile_rows;
};

struct MoeGateArgs {
  // [n_uses, intermediate_size], by slot
  float* hidden;
  // [n_uses, 2 * intermediate_size], by slot
  const float* gate_up;
  // [n_experts, 2 * intermediate_size], or null
  const float* bias;
  // [n_uses]
  const uint32_t* experts;
  // [n_uses]
  const uint32_t* slots;
  uint32_t intermediate_size;
  uint32_t activation;
};
