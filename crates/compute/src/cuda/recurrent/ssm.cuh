// What the kernels of the state-space scan share.
#pragma once
#include "softplus.cuh"
#include "ssm_scan_args.cuh"
#include "states.cuh"

// What a block computes: `n_columns` columns from `first_column` on, of a head of a sequence.
struct SsmWork {
  int seq, head, group, first_column, first_token, n_tokens;

  DEVICE SsmWork(const SsmScanArgs& a, int n_columns) {
    const int n_heads = a.n_heads, n_slices = a.n_slices;
    head = blockIdx.x / n_slices % n_heads, seq = blockIdx.x / n_slices / n_heads;
    group = head / (n_heads / a.n_groups), first_column = blockIdx.x % n_slices * n_columns;
    first_token = a.seq_starts[seq], n_tokens = a.seq_starts[seq + 1] - first_token;
  }

  // The step size of a token of the sequence.
  DEVICE float step_size(const SsmScanArgs& a, int token) const {
    const float x = a.dt[static_cast<size_t>(first_token + token) * a.dt_len + head] + a.dt_bias[head], dt = softplus(x);
    // Comparisons that let NaN through.
    return dt < a.dt_min ? a.dt_min : dt > a.dt_max ? a.dt_max : dt;
  }
};
