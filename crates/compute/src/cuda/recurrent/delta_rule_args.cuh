// Arguments of kernels. Written by tools/kernels from delta_rule.rs; do not edit.
#pragma once
#include <cstdint>

// Columns of a head that `delta_token` takes.
constexpr int MAX_V_DIM = 256;

struct DeltaRuleArgs {
  // [n_tokens, n_v_heads, v_dim]
  float* y;
  // [n_tokens] rows of `qkv_len`: queries and keys [n_k_heads, k_dim], values [n_v_heads, v_dim]
  const float* qkv;
  // [n_tokens] rows of `rates_len`, which begin with b and a, [n_v_heads] each
  const float* rates;
  // [n_v_heads]
  const float* decay;
  // [n_v_heads]
  const float* dt_bias;
  // [n_slots, n_v_heads, v_dim, k_dim]
  float* state;
  // [n_seqs + 1]: first token of each sequence, and the number of tokens
  const uint32_t* seq_starts;
  // [n_seqs, 3], see `SeqState`
  const uint32_t* states;
  const uint32_t* batch;
  // of `delta_token`, as norm_weight: [n_tokens] rows of `gate_len`, which begin with [n_v_heads, v_dim]
  const float* gate;
  // [v_dim]
  const float* norm_weight;
  uint32_t n_k_heads;
  uint32_t n_v_heads;
  uint32_t k_dim;
  uint32_t v_dim;
  uint32_t qkv_len;
  uint32_t rates_len;
  uint32_t gate_len;
  // blocks that share a head of a sequence
  uint32_t n_slices;
  // 1: value head i goes with key head i % n_k_heads; 0: those of one key head are adjacent
  uint32_t tiled;
  // 1 / sqrt(k_dim)
  float q_scale;
  float norm_eps;
};
