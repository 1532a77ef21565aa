// Arguments of kernels. Written by tools/kernels from mod.rs; do not edit.
#pragma once
#include <cstdint>

struct MoeArgs {
  // [n_tokens, hidden_size]
  float* y;
  // [n_tokens, n_experts]
  const float* router;
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
  // [n_tiles]; those not needed have no rows
  struct MoeTile* tiles;
  uint32_t n_tokens;
  uint32_t n_experts;
  uint32_t n_used;
  uint32_t hidden_size;
  uint32_t n_tiles;
  uint32_t norm_topk;
};
