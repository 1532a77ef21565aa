// Norms of groups of a row's elements, and a gate on each element.
//
// Mapping. Warp: a group of a row; 4 warps to a block. Moves: each element and its gate in, the result out.
#include "gated_norm.cuh"
#include "gated_norm_args.cuh"

KERNEL(gated_norm, GatedNormArgs, 128) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const int lane = threadIdx.x % 32, n = a.n, n_groups = a.n_groups;
  const size_t index = static_cast<size_t>(blockIdx.x) * 4 + threadIdx.x / 32;
  if (index >= a.n_rows * static_cast<size_t>(n_groups)) return;
  const size_t row = index / n_groups;
  const int group = index % n_groups;
  float* x = a.x + index * n;
  const float* gate = a.gate + row * a.gate_len + static_cast<size_t>(group) * n;
  const float* weight = a.weight + static_cast<size_t>(group) * a.weight_stride;
  const float* bias = a.bias ? a.bias + static_cast<size_t>(group) * a.weight_stride : nullptr;
  if (a.gate_first) {
    // Each lane reads only what it wrote.
    for (int i = lane; i < n; i += 32) x[i] *= activate_one(SILU, gate[i]);
  }
  float mean = 0;
  if (a.layer) {
    for (int i = lane; i < n; i += 32) mean += x[i];
    mean = warp_sum(mean) / n;
  }
  const float inverse = inverse_rms(x, n, lane, mean, a.eps);
  for (int i = lane; i < n; i += 32) {
    const float normed = (x[i] - mean) * inverse * weight[i] + (bias ? bias[i] : 0.0f);
    x[i] = a.gate_first ? normed : normed * activate_one(SILU, gate[i]);
  }
}
