// Arguments of kernels. Written by tools/kernels from decode_attention.rs; do not edit.
#pragma once
#include "../batch/splits_args.cuh"

struct DecodeAttentionArgs {
  // [n_tokens, n_heads, head_dim] as floats, or as tiles in the order of packed columns
  float* y;
  // [splits of all tokens, n_heads, head_dim + 2]: output, maximum, sum
  float* partial;
  // [n_tokens, groups of a token's heads]: splits that are done; zero before and after a launch
  uint32_t* arrived;
  // [n_tokens, (n_heads + 2 * n_kv_heads) * head_dim]
  const float* qkv;
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
  // [n_splits], of which the last may be zeros; or null, and tokens have `n_splits` each
  const AttentionSplit* splits;
  // [n_tokens]
  const uint32_t* table_starts;
  const uint32_t* block_tables;
  // [n_heads]: a score of each head that joins the sum and has no value; or null
  const float* sinks;
  uint32_t n_heads;
  uint32_t n_kv_heads;
  uint32_t head_dim;
  uint32_t head_bytes;
  uint32_t rope_dim;
  uint32_t interleaved;
  uint32_t n_tokens;
  uint32_t block_size;
  // 1: the norms subtract the mean
  uint32_t layer;
  // groups of a token's heads, a block each
  uint32_t head_blocks;
  uint32_t n_splits;
  // of these, so many have blocks
  uint32_t n_parallel;
  // 1: the kernel before has written keys and values of the step
  uint32_t is_stored;
  // rows of y's tiles; 0: y is floats
  uint32_t tile_rows;
  // positions that a token sees, including its own
  uint32_t window;
  float q_eps;
  float k_eps;
  float scale;
  // 0: none
  float softcap;
  // 1: blocks without work run the code too
  uint32_t all_run;
};
