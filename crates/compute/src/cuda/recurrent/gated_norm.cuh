// The norm of a head's values and the gate after it.
#pragma once
#include "../common/activation.cuh"

// 1 / the root mean square of `n` elements, by a warp; all lanes get it.
DEVICE float inverse_rms(const float* x, int n, int lane, float mean, float eps) {
  float sum = 0;
  for (int i = lane; i < n; i += 32) sum += (x[i] - mean) * (x[i] - mean);
  return 1.0f / sqrtf(warp_sum(sum) / n + eps);
}
