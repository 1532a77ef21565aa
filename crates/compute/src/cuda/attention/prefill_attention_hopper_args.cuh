// Arguments of kernels. Written by tools/kernels from prefill_attention.rs; do not edit.
#pragma once
#include "../common/hopper.cuh"
#include "prefill_attention_args.cuh"

// The same on Hopper, with TMA's descriptors of the cache and the preparation of queries.
struct PrefillAttentionHopperArgs {
  PrefillAttentionArgs of_all;
  // rows of the cache, each a head of a position
  uint32_t n_cache_rows;
  // rows of a TMA box, 8 to 128; 0: without TMA
  uint32_t box_rows;
  uint32_t n_tiles;
  // of 16 bits, as the cache's, [n_tokens, n_heads, head_dim]; or null, and they are rows of qkv
  const uint8_t* queries;
  // [head_dim]; null where queries are prepared or have no norm
  const float* q_weight;
  // [head_dim] or null
  const float* q_bias;
  // [n_tokens, rope_dim]: cosines, then sines; null where nothing rotates
  const float* angles;
  uint32_t rope_dim;
  uint32_t interleaved;
  // 1: the norm subtracts the mean
  uint32_t q_layer;
  float q_eps;
  ptx::TensorMap k_map;
  ptx::TensorMap v_map;
};
