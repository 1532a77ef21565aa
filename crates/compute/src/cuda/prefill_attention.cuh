// What the kernels of attention of many tokens share: their arguments, and the tokens of a block.
#pragma once
#include "cached.cuh"

struct PrefillAttentionArgs {
  float* y;                      // [n_tokens, n_heads, head_dim]
  const float* qkv;              // [n_tokens, (n_heads + 2 * n_kv_heads) * head_dim]
  const uint8_t* k_cache;        // [n_blocks, n_kv_heads, block_size, head_dim]
  const uint8_t* v_cache;
  const uint32_t* positions;     // [n_tokens]
  const uint32_t* table_starts;  // [n_tokens]
  const uint32_t* block_tables;
  const uint32_t* seq_starts;    // [n_seqs + 1]: first token of each sequence, and the number of tokens
  uint32_t n_seqs, n_heads, n_kv_heads, head_dim, block_size;
  uint32_t tile_tokens;          // tokens of a block
  uint32_t tile_heads;           // query heads of a block
  uint32_t window;               // positions that a token sees, itself among them
  float scale;
  float softcap;                 // 0: none
};

// The tokens of a block's tile, and which of them is where.
struct TokenTile {
  int first_token, n_tokens, first_position, end, start;
  const uint32_t* table;

  // The last tiles see the most keys, so they come first.
  DEVICE explicit TokenTile(const PrefillAttentionArgs& a) {
    int tile = gridDim.x - 1 - blockIdx.x, seq = 0;
    for (;; seq++) {
      const int n = ceil_div(a.seq_starts[seq + 1] - a.seq_starts[seq], a.tile_tokens);
      if (tile < n) break;
      tile -= n;
    }
    first_token = a.seq_starts[seq] + tile * a.tile_tokens;
    const int left = a.seq_starts[seq + 1] - first_token;
    n_tokens = left < static_cast<int>(a.tile_tokens) ? left : a.tile_tokens;
    first_position = a.positions[first_token], end = first_position + n_tokens;
    const int window = a.window;
    start = first_position + 1 > window ? first_position + 1 - window : 0;
    table = a.block_tables + a.table_starts[first_token];
  }
};
