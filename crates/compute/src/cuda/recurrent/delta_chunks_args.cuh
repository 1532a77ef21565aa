// Arguments of kernels. Written by tools/kernels from delta_chunks.rs; do not edit.
#pragma once
#include <cstdint>

// Tokens of a chunk.
constexpr int CHUNK = 32;

// Elements of keys.
constexpr int CHUNK_K_DIM = 128;

// Columns of the state that a block of `delta_chunks` has.
constexpr int CHUNK_COLUMNS = 32;

constexpr int CHUNK_THREADS = 128;

// Shared memory of a block of `delta_chunks`.
constexpr int CHUNK_SHARED_BYTES = 72960;

struct DeltaChunksArgs {
  // [n_tokens, n_v_heads, v_dim]
  float* y;
  // [n_tokens] rows of `qkv_len`: queries and keys [n_k_heads, CHUNK_K_DIM], values [n_v_heads, v_dim]
  const float* qkv;
  // [n_tokens] rows of `rates_len`, which begin with b and a, [n_v_heads] each
  const float* rates;
  // [n_v_heads]
  const float* decay;
  // [n_v_heads]
  const float* dt_bias;
  // [n_slots, n_v_heads, v_dim, CHUNK_K_DIM]
  float* state;
  // [n_seqs + 1]: first token of each sequence, and the number of tokens
  const uint32_t* seq_starts;
  // [n_seqs, 3], see `SeqState`
  const uint32_t* states;
  const uint32_t* batch;
  // [n_tokens, n_k_heads, 2, CHUNK_K_DIM]: queries and keys over their lengths, in half precision
  uint16_t* unit_rows;
  // [chunks, n_v_heads, 2, CHUNK, CHUNK]: the inverse times beta, and P, in half precision
  uint16_t* squares;
  // [chunks, n_v_heads, CHUNK]: sums of the logarithms of decays
  float* log_decays;
  uint32_t n_seqs;
  uint32_t n_k_heads;
  uint32_t n_v_heads;
  uint32_t v_dim;
  uint32_t qkv_len;
  uint32_t rates_len;
  // 1: value head i goes with key head i % n_k_heads; 0: those of one key head are adjacent
  uint32_t tiled;
  // 1 / sqrt(CHUNK_K_DIM)
  float q_scale;
};
