// Preparation of a head of queries, keys or values: norm, rotation (RoPE), and the write to each type of cache.
#pragma once
#include "../common/quant.cuh"

// One head of up to 32 N elements, by one warp: lane `l` holds elements l, l + 32, …
template <int N>
struct HeadOf {
  float x[N];
};
using Head = HeadOf<8>;

// LayerNorm with `layer`, else RMSNorm, of a head by one warp; all lanes call it.
template <int N>
DEVICE void norm_head(HeadOf<N>& h, int dim, int lane, const float* weight, const float* bias, bool layer, float eps) {
  float mean = 0;
  if (layer) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < N; j++) sum += h.x[j];  // zeros past the end
    mean = warp_sum(sum) / dim;
  }
  float sum = 0;
#pragma unroll
  for (int j = 0; j < N; j++) sum += lane + 32 * j < dim ? (h.x[j] - mean) * (h.x[j] - mean) : 0.0f;
  const float inv = 1.0f / sqrtf(warp_sum(sum) / dim + eps);
#pragma unroll
  for (int j = 0; j < N; j++) {
    const int i = lane + 32 * j;
    if (i < dim) h.x[j] = (h.x[j] - mean) * inv * weight[i] + (bias ? bias[i] : 0.0f);
  }
}

// Rotates pair `i` of a head in shared memory, of which the first `n` pairs rotate.
DEVICE void rotate_pair(float* head, int i, int n, bool interleaved, float c, float s) {
  const int p = interleaved ? 2 * i : i, q = interleaved ? 2 * i + 1 : i + n;
  const float x = head[p], y = head[q];
  head[p] = x * c - y * s;
  head[q] = x * s + y * c;
}

// Writes a head, floats in shared memory, to a cache of type T at `out`; each lane of a warp writes its share.
template <class T>
DEVICE void write_head(uint8_t* out, const float* head, int dim, int lane);

template <>
DEVICE void write_head<F32>(uint8_t* out, const float* head, int dim, int lane) {
#pragma unroll 1
  for (int i = lane; i < dim; i += 32) reinterpret_cast<float*>(out)[i] = head[i];
}

template <>
DEVICE void write_head<F16>(uint8_t* out, const float* head, int dim, int lane) {
#pragma unroll 1
  for (int i = lane; i < dim; i += 32) reinterpret_cast<uint16_t*>(out)[i] = ptx::f32_to_f16(head[i]);
}

template <>
DEVICE void write_head<BF16>(uint8_t* out, const float* head, int dim, int lane) {
#pragma unroll 1
  for (int i = lane; i < dim; i += 32) reinterpret_cast<uint16_t*>(out)[i] = ptx::f32_to_bf16(head[i]);
}

template <>
DEVICE void write_head<Q8_0>(uint8_t* out, const float* head, int dim, int lane) {
  for (int b = 0; b < dim / 32; b++) {
    const float x = head[b * 32 + lane];
    const float d = warp_max(fabsf(x)) / 127.0f;
    const float per_unit = d != 0.0f ? 1.0f / d : 0.0f;
    uint8_t* block = out + b * Q8_0::BYTES;
    // Halves away from zero, as the scalar code rounds.
    block[2 + lane] = static_cast<uint8_t>(static_cast<int8_t>(roundf(x * per_unit)));
    if (lane == 0) *reinterpret_cast<uint16_t*>(block) = ptx::f32_to_f16(d);
  }
}

