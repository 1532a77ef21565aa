// Arguments of kernels. Written by tools/kernels from wide_attention.rs; do not edit.
#pragma once
#include "prefill_attention_args.cuh"

struct WideAttentionArgs {
  // y: [n_tokens, n_heads, v_dim] as floats
  PrefillAttentionArgs of_all;
  // [n_tokens, n_heads, n_splits, v_dim + 2] where n_splits > 1: output, maximum, sum
  float* partial;
  uint32_t v_dim;
  uint32_t n_splits;
};
