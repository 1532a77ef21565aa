// Normalization of rows.
//
// A block owns a row, or some columns of it. Moves: them in and out.
#include "../common/kernel.cuh"
#include "norm_args.cuh"

// Normalizes x[n] into y, or adds it to y. Thread `i` of the block reads and writes only elements i, i + blockDim.x, …
DEVICE void norm_row(float* y, const float* x, const float* weight, const float* bias, int n, bool layer, bool add, float eps,
                     float* scratch) {
  float mean = 0;
  if (layer) {
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
    mean = block_sum(sum, scratch) / n;
  }
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += (x[i] - mean) * (x[i] - mean);
  const float inv = 1.0f / sqrtf(block_sum(sum, scratch) / n + eps);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float normed = (x[i] - mean) * inv * weight[i] + (bias ? bias[i] : 0.0f);
    y[i] = add ? y[i] + normed : normed;
  }
}

KERNEL(norm_rows, NormArgs, 1024) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  __shared__ float scratch[32];
  const size_t at = static_cast<size_t>(blockIdx.x) * a.row_len;
  norm_row(a.y + at, a.x + at, a.weight, a.bias, a.n, a.layer, a.add, a.eps, scratch);
}
