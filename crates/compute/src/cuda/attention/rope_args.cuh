// Arguments of kernels. Written by tools/kernels from rope.rs; do not edit.
#pragma once
#include <cstdint>

struct AnglesArgs {
  // [n_tokens, 2 * n]: cosines, then sines
  float* y;
  // [n]
  const float* f;
  // [n_tokens]
  const uint32_t* positions;
  uint32_t n;
  float scale;
};

struct StoreArgs {
  // [n_tokens, (n_heads + 2 * n_kv_heads) * head_dim]
  float* qkv;
  // [n_blocks, n_kv_heads, block_size] heads of `head_bytes`
  uint8_t* k_cache;
  uint8_t* v_cache;
  // [head_dim], null where heads have no norm
  const float* q_weight;
  // [head_dim] or null
  const float* q_bias;
  const float* k_weight;
  const float* k_bias;
  // [n_tokens, rope_dim]: cosines, then sines; null where nothing rotates
  const float* angles;
  // [n_tokens]
  const uint32_t* positions;
  // [n_tokens]: first entry of a token's block table
  const uint32_t* table_starts;
  const uint32_t* block_tables;
  uint32_t n_heads;
  uint32_t n_kv_heads;
  uint32_t head_dim;
  uint32_t head_bytes;
  // heads before it are left alone
  uint32_t first_head;
  uint32_t rope_dim;
  uint32_t interleaved;
  uint32_t block_size;
  // 1: the norms subtract the mean
  uint32_t layer;
  float q_eps;
  float k_eps;
};
