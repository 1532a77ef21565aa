// Arguments of kernels. Written by tools/kernels from prefill_attention.rs; do not edit.
#pragma once
#include <cstdint>

struct PrefillAttentionArgs {
  // [n_tokens, n_heads, head_dim] as floats, or as tiles
  float* y;
  // [n_tokens] rows of `qkv_len`, of which the first n_heads * head_dim are queries
  const float* qkv;
  // [n_blocks, n_kv_heads, block_size, head_dim]
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
  uint32_t n_seqs;
  uint32_t n_heads;
  uint32_t n_kv_heads;
  uint32_t head_dim;
  uint32_t block_size;
  // tokens of a block
  uint32_t tile_tokens;
  // query heads of a block
  uint32_t tile_heads;
  // positions after its own that a token sees
  uint32_t ahead;
  // all positions that a token sees
  uint32_t span;
  float scale;
  // 0: none
  float softcap;
  // rows of y's tiles; 0: y is floats
  uint32_t y_rows;
  // a TileNumber
  uint32_t y_number;
};
