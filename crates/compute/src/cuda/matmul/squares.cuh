// What a norm by the root mean square multiplies with, from the sums of squares of each 256 columns: the same bits from everywhere.
#pragma once
#include "../common/kernel.cuh"

DEVICE float inverse_rms(float sum, float inv_n, float eps) { return rsqrtf(fmaf(sum, inv_n, eps)); }

// Of a row in global memory, [rows, n_blocks]; lane t of four has a share. No row: -1.
DEVICE float norm_factor(const float* squares, int row, int n_blocks, int t, float inv_n, float eps) {
  float sum = 0;
#pragma unroll 4
  for (int i = t; i < n_blocks; i += 4) sum += row >= 0 ? __ldcg(squares + static_cast<size_t>(row) * n_blocks + i) : 0.0f;
  sum += __shfl_xor_sync(ALL_LANES, sum, 1);
  sum += __shfl_xor_sync(ALL_LANES, sum, 2);
  return inverse_rms(sum, inv_n, eps);
}

// Of a row in shared memory, by one thread.
DEVICE float norm_factor(const float* squares, int n_blocks, float inv_n, float eps) {
  float sums[4] = {};
#pragma unroll 1
  for (int i = 0; i < n_blocks; i += 4) {
#pragma unroll
    for (int t = 0; t < 4; t++) sums[t] += i + t < n_blocks ? squares[i + t] : 0.0f;
  }
  return inverse_rms((sums[0] + sums[1]) + (sums[2] + sums[3]), inv_n, eps);
}
