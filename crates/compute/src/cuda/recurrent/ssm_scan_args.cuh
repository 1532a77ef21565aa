// Arguments of kernels. Written by tools/kernels from ssm_scan.rs; do not edit.
#pragma once
#include <cstdint>

constexpr int SSM_THREADS = 256;

// Columns of a head that a block has.
constexpr int SSM_COLUMNS = 32;

// Of `ssm_chunks`: columns that a block has, rows of a state, and shared memory.
constexpr int SSM_CHUNK_COLUMNS = 64;

constexpr int SSM_CHUNK_STATE_DIM = 128;

constexpr int SSM_CHUNK_SHARED_BYTES = 127488;

struct SsmScanArgs {
  // [n_tokens, n_heads, head_dim]
  float* y;
  // [n_tokens] rows of `xbc_len`: x [n_heads, head_dim], B and C [n_groups, state_dim]
  const float* xbc;
  // [n_tokens] rows of `dt_len`, which begin with dt, [n_heads]
  const float* dt;
  // [n_heads]
  const float* decay;
  // [n_heads]
  const float* dt_bias;
  // [n_heads]
  const float* skip;
  // [n_slots, n_heads, head_dim, state_dim]
  float* state;
  // [n_seqs + 1]: first token of each sequence, and the number of tokens
  const uint32_t* seq_starts;
  // [n_seqs, 3], see `SeqState`
  const uint32_t* states;
  const uint32_t* batch;
  uint32_t n_heads;
  uint32_t head_dim;
  uint32_t n_groups;
  uint32_t state_dim;
  uint32_t xbc_len;
  uint32_t dt_len;
  // blocks that share a head of a sequence
  uint32_t n_slices;
  float dt_min;
  float dt_max;
};
