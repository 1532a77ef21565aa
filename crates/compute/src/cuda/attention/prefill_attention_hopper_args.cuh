// Arguments of kernels. Written by tools/kernels from prefill_attention.rs; do not edit.
#pragma once
#include "../common/hopper.cuh"
#include "prefill_attention_args.cuh"

// The same on Hopper, with what its copy engine must know.
struct PrefillAttentionHopperArgs {
  PrefillAttentionArgs of_all;
  // heads of positions
  uint32_t n_cache_rows;
  // rows of a box, 8 to 128; 0: the cache does not come as boxes
  uint32_t box_rows;
  uint32_t n_tiles;
  // What is left to do with queries. [head_dim], null where there is no norm
  const float* q_weight;
  // [head_dim] or null
  const float* q_bias;
  // [n_tokens, rope_dim]: cosines, then sines; null where nothing turns
  const float* angles;
  uint32_t rope_dim;
  uint32_t interleaved;
  // 1: the norm takes the mean out
  uint32_t q_layer;
  float q_eps;
  ptx::TensorMap k_map;
  ptx::TensorMap v_map;
};
