// Normalization of rows.
//
// A block of norm_rows owns a row, or some columns of it. Moves: them in and out.
#include "../common/halves.cuh"
#include "../common/quant.cuh"
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

// The residual after a block: x + y normalized, as floats in place of x and as tiles for the next matmul.
//
// A warp owns a row of up to 256 HELD elements and keeps it in registers. Moves: 6 bytes an element in, 6 out.
template <int HELD>
DEVICE void norm_sum(const NormSumArgs& a) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const int n = a.n, lane = threadIdx.x % 32;
  const uint32_t row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= a.m) return;
  float* x = a.x + static_cast<size_t>(row) * n;
  float v[HELD][8];
  float sum = 0;
#pragma unroll
  for (int c = 0; c < HELD; c++) {
    const int k = c * 256 + lane * 8;
#pragma unroll
    for (int j = 0; j < 8; j++) v[c][j] = 0;
    if (k >= n) continue;
    load8_floats(v[c], x, k, n);
    const uint4 pairs = *reinterpret_cast<const uint4*>(a.y + byte_in_tiles(row, 2 * k, a.n_rows));
    const uint32_t words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
    for (int j = 0; j < 8; j++) {
      v[c][j] = fmaf(ptx::f16_to_f32(static_cast<uint16_t>(words[j / 2] >> 16 * (j % 2))), 1.0f / HALF_TILE_FACTOR, v[c][j]);
      sum += v[c][j];
    }
  }
  const float mean = a.layer ? warp_sum(sum) / n : 0.0f;
  sum = 0;
#pragma unroll
  for (int c = 0; c < HELD; c++) {
#pragma unroll
    for (int j = 0; j < 8; j++) sum += c * 256 + lane * 8 < n ? (v[c][j] - mean) * (v[c][j] - mean) : 0.0f;
  }
  const float inverse = 1.0f / sqrtf(warp_sum(sum) / n + a.eps);
#pragma unroll
  for (int c = 0; c < HELD; c++) {
    const int k = c * 256 + lane * 8;
    if (k >= n) continue;
    float w[8], b[8] = {};
    load8_floats(w, a.weight, k, n);
    if (a.bias) load8_floats(b, a.bias, k, n);
#pragma unroll
    for (int j = 0; j < 8; j++) v[c][j] = (v[c][j] - mean) * inverse * w[j] + b[j];
    *reinterpret_cast<float4*>(x + k) = float4{v[c][0], v[c][1], v[c][2], v[c][3]};
    *reinterpret_cast<float4*>(x + k + 4) = float4{v[c][4], v[c][5], v[c][6], v[c][7]};
    const uint4 pairs = {tile_pair(a.number, v[c][0], v[c][1]), tile_pair(a.number, v[c][2], v[c][3]),
                         tile_pair(a.number, v[c][4], v[c][5]), tile_pair(a.number, v[c][6], v[c][7])};
    *reinterpret_cast<uint4*>(a.tiles + byte_in_tiles(row, 2 * k, a.n_rows)) = pairs;
  }
}

KERNEL(norm_sum_1024, NormSumArgs, 256) { norm_sum<4>(a); }
KERNEL(norm_sum_2048, NormSumArgs, 256) { norm_sum<8>(a); }
