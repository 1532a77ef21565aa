// Arguments of kernels. Written by tools/kernels from paged_attention.rs; do not edit.
#pragma once
#include <cstdint>

struct AttentionArgs {
  // [n_tokens, n_heads, v_dim]
  float* y;
  // [n_tokens, n_heads, n_splits, v_dim + 2] where n_splits > 1: output, maximum, sum
  float* partial;
  // [n_tokens] rows of `qkv_len`, of which the first n_heads * head_dim are queries
  const float* qkv;
  // [n_blocks, n_kv_heads, block_size] heads of `head_bytes`, of which values have the first v_dim elements
  const uint8_t* k_cache;
  const uint8_t* v_cache;
  // [n_tokens]
  const uint32_t* positions;
  // [n_tokens]
  const uint32_t* table_starts;
  const uint32_t* block_tables;
  // [n_heads]: a score of each head that joins the sum and has no value; or null
  const float* sinks;
  // [n_seqs + 1]: first token of each sequence, and the number of tokens
  const uint32_t* seq_starts;
  uint32_t qkv_len;
  uint32_t n_heads;
  uint32_t n_kv_heads;
  uint32_t head_dim;
  uint32_t v_dim;
  uint32_t head_bytes;
  uint32_t block_size;
  uint32_t n_splits;
  // positions up to its own that a token sees, including its own
  uint32_t window;
  // positions after its own that a token sees
  uint32_t ahead;
  uint32_t n_seqs;
  float scale;
  // 0: none
  float softcap;
  // 1: scores fall with distance, by the slopes of ALiBi
  uint32_t alibi;
};

// Most splits that can be merged.
constexpr int MAX_MERGED = 128;

struct AttentionMergeArgs {
  // [n_tokens, n_heads, v_dim]
  float* y;
  // [n_tokens, n_heads, n_splits, v_dim + 2]: output, maximum, sum
  const float* partial;
  uint32_t n_heads;
  uint32_t v_dim;
  uint32_t n_splits;
};
