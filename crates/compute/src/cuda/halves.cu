// Operands of the tensor cores: rows of activations, normalized where a norm comes before, and slabs of weights as numbers of 16 bits.
//
// Rows are padded with zeros, to a multiple of 8 or, where they are tiled, of 64. A block of `activations` converts one row, of
// `weights` 1024 elements of one (2048 of packed ones), a thread 8 or 16 at a time. Moves: each number in once (activations of very long
// rows two or three times more, from a cache), 2 bytes per element out.
#include "halves.cuh"
#include "unpack.cuh"

// Where eight elements of a row from k on go. Hopper's tensor cores read tiles: for each 64 columns all rows, of which each 16 bytes
// lie at their number xor the row's, modulo 8. `n_rows` are the rows of tiles; 0: rows lie one after the other.
DEVICE size_t place(uint32_t row, int k, int padded, uint32_t n_rows) {
  if (n_rows == 0) return static_cast<size_t>(row) * padded + k;
  return (static_cast<size_t>(k / 64) * n_rows + row) * 64 + ((k / 8 ^ row) & 7) * 8;
}

DEVICE int padded_len(int n, uint32_t n_rows) { return n_rows ? ceil_div(n, 64) * 64 : ceil_div(n, 8) * 8; }

struct ActivationArgs {
  uint16_t* y;          // as `place` says, one row per block
  float* scales;        // [m], what each row must be multiplied with; not written for bfloat16
  const float* x;       // [m, n]
  const float* weight;  // [n] of the norm that comes before, or null
  const float* bias;    // [n] or null
  uint32_t n, n_rows;
  uint32_t layer;       // 1: the norm takes the mean out
  float eps;
};

// A block keeps HELD times 2048 elements of its row in registers; 0: it reads them for each use.
template <class T, int HELD>
DEVICE void activations(const ActivationArgs& a) {
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  __shared__ float scratch[8];
  const int n = a.n, padded = padded_len(n, a.n_rows);
  const float* x = a.x + static_cast<size_t>(blockIdx.x) * n;
  float mean = 0, inverse = 1;
  const auto norm = [&](float (&v)[8], int k) {
    if (!a.weight || k >= n) return;
    float w[8], b[8] = {};
    load8_floats(w, a.weight, k, n);
    if (a.bias) load8_floats(b, a.bias, k, n);
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = (v[j] - mean) * inverse * w[j] + b[j];
  };
  float held[HELD ? HELD : 1][8] = {};
#pragma unroll
  for (int c = 0; c < HELD; c++) {
    const int k = c * 2048 + threadIdx.x * 8;
    if (k < n) load8_floats(held[c], x, k, n);
  }
  // Calls f with eight elements at a time and their place, after the norm if so wanted; elements past the end are zeros.
  const auto for_eights = [&](bool normed, auto f) {
    if constexpr (HELD > 0) {
#pragma unroll
      for (int c = 0; c < HELD; c++) {
        const int k = c * 2048 + threadIdx.x * 8;
        if (k < padded) f(held[c], k);
      }
    } else {
      for (int k = threadIdx.x * 8; k < padded; k += 2048) {
        float v[8] = {};
        if (k < n) load8_floats(v, x, k, n);
        if (normed) norm(v, k);
        f(v, k);
      }
    }
  };
  if (a.weight) {
    float sum = 0;
    if (a.layer) {
      for_eights(false, [&](float (&v)[8], int) {
#pragma unroll
        for (int j = 0; j < 8; j++) sum += v[j];
      });
      mean = block_sum(sum, scratch) / n;
    }
    sum = 0;
    for_eights(false, [&](float (&v)[8], int k) {
#pragma unroll
      for (int j = 0; j < 8; j++) sum += k + j < n ? (v[j] - mean) * (v[j] - mean) : 0.0f;
    });
    inverse = 1.0f / sqrtf(block_sum(sum, scratch) / n + a.eps);
    if constexpr (HELD > 0) for_eights(false, norm);
  }
  float factor = 1;
  if constexpr (T::SCALED) {
    float max = 0;
    for_eights(true, [&](float (&v)[8], int) {
#pragma unroll
      for (int j = 0; j < 8; j++) max = fmaxf(max, fabsf(v[j]));
    });
    max = warp_max(max);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = max;
    __syncthreads();
    for (int w = 0; w < 8; w++) max = fmaxf(max, scratch[w]);
    // The power of two that brings the largest magnitude to 2^12 or just above; exponents of both factors stay normal.
    const int exponent = __float_as_uint(max) >> 23;
    const int e = 127 + 139 - exponent;
    const uint32_t bounded = exponent == 0 ? 127 : e < 1 ? 1 : e > 253 ? 253 : e;
    factor = __uint_as_float(bounded << 23);
    if (threadIdx.x == 0) a.scales[blockIdx.x] = __uint_as_float((254 - bounded) << 23);
  }
  for_eights(true, [&](float (&v)[8], int k) {
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] *= factor;
    *reinterpret_cast<uint4*>(a.y + place(blockIdx.x, k, padded, a.n_rows)) = eight_of<T>(v);
  });
}

#define ACTIVATIONS(T) \
  KERNEL_4(activations_##T##_4096, ActivationArgs, 256) { activations<T, 2>(a); } \
  KERNEL(activations_##T##_16384, ActivationArgs, 256) { activations<T, 8>(a); } \
  KERNEL(activations_##T, ActivationArgs, 256) { activations<T, 0>(a); }
ACTIVATIONS(Half) ACTIVATIONS(Bfloat)

struct WeightArgs {
  uint16_t* y;         // as `place` says, from `first_row` on one row per blockIdx.x
  const uint8_t* w;    // rows of `row_bytes`
  const void* codebook;
  uint64_t row_bytes;
  uint32_t n, n_rows;
  uint32_t first_row;  // a slab may hold rows of several matrices
};

// `load` decodes eight weights of a row.
template <class T, class Load>
DEVICE void weights(const WeightArgs& a, Load load) {
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const int n = a.n, padded = padded_len(n, a.n_rows), k = (blockIdx.y * 128 + threadIdx.x) * 8;
  if (k >= padded) return;
  float v[8] = {};
  if (k < n) load(v, a.w + blockIdx.x * a.row_bytes, k, n, a.codebook);
  *reinterpret_cast<uint4*>(a.y + place(a.first_row + blockIdx.x, k, padded, a.n_rows)) = eight_of<T>(v);
}

template <class Q> struct HalfOf { typedef Half Type; };
template <> struct HalfOf<BF16> { typedef Bfloat Type; };

#define WEIGHTS(Q) \
  KERNEL(weights_##Q, WeightArgs, 128) { weights<HalfOf<Q>::Type>(a, load8<Q>); }
FOR_EACH_QUANT(WEIGHTS)

// A thread converts sixteen weights of a piece of 64; these rows need no padding.
template <class P>
DEVICE void packed_weights(const WeightArgs& a) {
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const int n = a.n, i = blockIdx.y * 128 + threadIdx.x, piece = i / 4, k = piece * 64 + i % 4 * 8;
  if (k >= n) return;
  const Sixteen v = unpack16<P>(a.w + blockIdx.x * a.row_bytes, piece, i % 4, n);
  *reinterpret_cast<uint4*>(a.y + place(a.first_row + blockIdx.x, k, n, a.n_rows)) = eight_of<Half>(v.low);
  *reinterpret_cast<uint4*>(a.y + place(a.first_row + blockIdx.x, k + 32, n, a.n_rows)) = eight_of<Half>(v.high);
}

#define WEIGHTS_PACKED(P) \
  KERNEL(weights_##P, WeightArgs, 128) { packed_weights<P>(a); }
FOR_EACH_PACKED(WEIGHTS_PACKED)
