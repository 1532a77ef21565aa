// Operands of the tensor cores: rows of activations and slabs of weights as numbers of 16 bits.
//
// Rows are padded to a multiple of 8 with zeros. A block of `activations` converts one row, of `weights` 1024 elements of one, a
// thread 8 at a time. Moves: each number in once (activations twice, the second time from a cache), 2 bytes per element out.
#include "halves.cuh"
#include "packed.cuh"

struct ActivationArgs {
  uint16_t* y;    // [m, n rounded up to 8], one row per block
  float* scales;  // [m], what each row must be multiplied with; not written for bfloat16
  const float* x; // [m, n]
  uint32_t n;
};

template <class T>
DEVICE void activations(const ActivationArgs& a) {
  ptx::wait_for_previous_kernel();
  __shared__ float maxima[8];
  const int n = a.n, padded = ceil_div(n, 8) * 8;
  const float* x = a.x + static_cast<size_t>(blockIdx.x) * n;
  uint16_t* y = a.y + static_cast<size_t>(blockIdx.x) * padded;
  float factor = 1;
  if constexpr (T::SCALED) {
    float max = 0;
    for (int k = threadIdx.x * 8; k < n; k += 2048) {
      float v[8];
      load8_floats(v, x, k, n);
#pragma unroll
      for (int j = 0; j < 8; j++) max = fmaxf(max, fabsf(v[j]));
    }
    max = warp_max(max);
    if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = max;
    __syncthreads();
    for (int w = 0; w < 8; w++) max = fmaxf(max, maxima[w]);
    // The power of two that brings the largest magnitude to 2^12 or just above; exponents of both factors stay normal.
    const int exponent = __float_as_uint(max) >> 23;
    const int e = 127 + 139 - exponent;
    const uint32_t bounded = exponent == 0 ? 127 : e < 1 ? 1 : e > 253 ? 253 : e;
    factor = __uint_as_float(bounded << 23);
    if (threadIdx.x == 0) a.scales[blockIdx.x] = __uint_as_float((254 - bounded) << 23);
  }
  for (int k = threadIdx.x * 8; k < n; k += 2048) {
    float v[8];
    load8_floats(v, x, k, n);
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] *= factor;
    *reinterpret_cast<uint4*>(y + k) = eight_of<T>(v);
  }
}

KERNEL(activations_Half, ActivationArgs, 256) { activations<Half>(a); }
KERNEL(activations_Bfloat, ActivationArgs, 256) { activations<Bfloat>(a); }

struct WeightArgs {
  uint16_t* y;       // [n_rows, n rounded up to 8], one row per blockIdx.x
  const uint8_t* w;  // rows of `row_bytes`
  const void* codebook;
  uint64_t row_bytes;
  uint32_t n;
};

// `load` decodes eight weights of a row.
template <class Load>
DEVICE void weights(const WeightArgs& a, Load load) {
  ptx::wait_for_previous_kernel();
  const int n = a.n, k = (blockIdx.y * 128 + threadIdx.x) * 8;
  if (k >= n) return;
  float v[8];
  load(v, a.w + blockIdx.x * a.row_bytes, k, n, a.codebook);
  uint16_t* y = a.y + static_cast<size_t>(blockIdx.x) * (ceil_div(n, 8) * 8);
  *reinterpret_cast<uint4*>(y + k) = eight_of<Half>(v);
}

#define WEIGHTS(Q) \
  KERNEL(weights_##Q, WeightArgs, 128) { weights(a, load8<Q>); }
FOR_EACH_QUANT(WEIGHTS)

#define WEIGHTS_PACKED(P)                                                                                     \
  KERNEL(weights_##P, WeightArgs, 128) {                                                                      \
    weights(a, [](float* y, const uint8_t* row, int k, int n, const void*) { P::load8(y, row, k, n); });      \
  }
FOR_EACH_PACKED(WEIGHTS_PACKED)
