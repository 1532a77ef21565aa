// Arguments of kernels. Written by tools/kernels from latent.rs; do not edit.
#pragma once
#include <cstdint>

struct LatentArgs {
  // [n_tokens, n_heads, kv_rank + rope_dim]; the ends of heads are written
  float* queries;
  // [n_tokens, n_heads, nope_dim + rope_dim]
  const float* q;
  // [n_tokens, kv_rank + rope_dim]
  const float* latent;
  // [n_blocks, block_size] keys of `key_bytes`
  uint8_t* cache;
  // [kv_rank]
  const float* weight;
  // [kv_rank] or null
  const float* bias;
  // [n_tokens, rope_dim]: cosines, then sines
  const float* angles;
  // [n_tokens]
  const uint32_t* positions;
  // [n_tokens]: first entry of a token's block table
  const uint32_t* table_starts;
  const uint32_t* block_tables;
  uint32_t n_heads;
  uint32_t kv_rank;
  uint32_t nope_dim;
  uint32_t rope_dim;
  uint32_t interleaved;
  uint32_t key_bytes;
  uint32_t block_size;
  // 1: the norm subtracts the mean
  uint32_t layer;
  float eps;
};
