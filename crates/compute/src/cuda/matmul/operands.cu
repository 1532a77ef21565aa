// Operands of the tensor cores: rows of activations, normalized where a norm comes before, and slabs of weights, as numbers of 16 bits
// or of 8.
//
// Rows are padded with zeros, to a multiple of 8 or of the columns of a tile. A block of `activations` converts one row, of
// `weights` 1024 elements of one (2048 of packed ones), a thread 8 or 16 at a time. Moves: each number in once (activations of very long
// rows two or three times more, from a cache), 2 bytes or 1 per element out.
//
// Numbers of 8 bits are the nearest of 255 multiples of a scale, which 256 columns of a row share: the largest magnitude over 127.
#include "../common/halves.cuh"
#include "packed.cuh"
#include "row_scale.cuh"
#include "operands_args.cuh"

// Half precision and BF16 are in halves.cuh.
struct Int8 {};

// Columns of a tile, 128 bytes of each row.
template <class T> constexpr int TILE = 64;
template <> constexpr int TILE<Int8> = 128;

// Columns that share a scale of 8 bits.
constexpr int SCALED = 256;

// Byte where eight elements of a row from k on go. `n_rows` are the rows of tiles; 0: rows of 16-bit numbers lie one after the other.
template <class T>
DEVICE size_t swizzled_offset(uint32_t row, int k, int padded, uint32_t n_rows) {
  if (TILE<T> == 64 && n_rows == 0) return (static_cast<size_t>(row) * padded + k) * 2;
  return byte_in_tiles(row, static_cast<uint32_t>(k) * (128 / TILE<T>), n_rows);
}

template <class T>
DEVICE int padded_len(int n, uint32_t n_rows) {
  if (TILE<T> == 128) return ceil_div(n, SCALED) * SCALED;
  return n_rows ? ceil_div(n, TILE<T>) * TILE<T> : ceil_div(n, 8) * 8;
}

template <class T>
DEVICE void put_eight(uint8_t* y, uint32_t row, int k, int padded, uint32_t n_rows, const float (&v)[8]) {
  *reinterpret_cast<uint4*>(y + swizzled_offset<T>(row, k, padded, n_rows)) = eight_of<T>(v);
}

// The bytes of four numbers up to 127 in magnitude, to the nearest: the last ones of sums with a float whose last bit counts ones.
DEVICE uint32_t four_bytes(float a, float b, float c, float d) {
  const auto bits = [](float x) { return __float_as_uint(x + 12582912.0f); };
  return __byte_perm(__byte_perm(bits(a), bits(b), 0x40), __byte_perm(bits(c), bits(d), 0x40), 0x5410);
}

DEVICE void put_bytes(uint8_t* y, uint32_t row, int k, uint32_t n_rows, const float (&v)[8], float factor) {
  const uint2 bytes = {four_bytes(v[0] * factor, v[1] * factor, v[2] * factor, v[3] * factor),
                       four_bytes(v[4] * factor, v[5] * factor, v[6] * factor, v[7] * factor)};
  *reinterpret_cast<uint2*>(y + swizzled_offset<Int8>(row, k, 0, n_rows)) = bytes;
}

// The larger of two magnitudes, as integers, which compare alike: what is not a number is largest, and stays in the scale.
DEVICE uint32_t larger_magnitude(uint32_t bits, float x) { return max(bits, __float_as_uint(x) & 0x7fffffffu); }

// The largest magnitude that LANES neighbouring lanes have, and what brings it to 127. Numbers too small for a factor become zeros.
template <int LANES>
struct Range {
  float max, factor;
  DEVICE explicit Range(uint32_t bits) {
#pragma unroll
    for (int d = 1; d < LANES; d *= 2) bits = ::max(bits, __shfl_xor_sync(ALL_LANES, bits, d));
    max = __uint_as_float(bits);
    factor = max > 1e-36f ? __fdividef(127.0f, max) : 0.0f;
  }
  DEVICE float scale() const { return max * (1.0f / 127.0f); }
};

// Rows as `for_eights` of `activations` gives them, in 16 bits.
template <class T, class ForEights>
DEVICE void to_halves(const ActivationArgs& a, int padded, float* scratch, ForEights for_eights) {
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
    const RowScale scale(max);
    factor = scale.factor;
    if (threadIdx.x == 0) a.scales[blockIdx.x] = scale.inverse;
  }
  for_eights(true, [&](float (&v)[8], int k) {
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] *= factor;
    if (k < padded) put_eight<T>(a.y, blockIdx.x, k, padded, a.n_rows, v);
  });
}

// Eight elements of a block's row from k on to 8 bits; all lanes of a warp together.
DEVICE void put_scaled(const ActivationArgs& a, int k, int padded, const float (&v)[8]) {
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < 8; j++) largest = larger_magnitude(largest, v[j]);
  const Range<SCALED / 8> range(largest);
  if (k >= padded) return;
  put_bytes(a.y, blockIdx.x, k, a.n_rows, v, range.factor);
  if (k % SCALED == 0) a.scales[static_cast<size_t>(k / SCALED) * a.n_rows + blockIdx.x] = range.scale();
}

// A block keeps HELD times 2048 elements of its row in registers; 0: it reads them for each use.
template <class T, int HELD>
DEVICE void activations(const ActivationArgs& a) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  __shared__ float scratch[8];
  const int n = a.n, padded = padded_len<T>(n, a.n_rows);
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
  // Calls f with eight elements at a time and their place, after the norm if so wanted; elements past the end are zeros. All threads
  // come along.
  const auto for_eights = [&](bool normed, auto f) {
    if constexpr (HELD > 0) {
#pragma unroll
      for (int c = 0; c < HELD; c++) {
        if (c * 2048 < padded) f(held[c], c * 2048 + threadIdx.x * 8);
      }
    } else {
      for (int first = 0; first < padded; first += 2048) {
        const int k = first + threadIdx.x * 8;
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
  if constexpr (TILE<T> == 128) {
    for_eights(true, [&](float (&v)[8], int k) { put_scaled(a, k, padded, v); });
  } else {
    to_halves<T>(a, padded, scratch, for_eights);
  }
}

// Rows that no norm comes before to 8 bits, 2048 elements by a block.
KERNEL(activation_bytes, ActivationArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const int n = a.n, k = blockIdx.y * 2048 + threadIdx.x * 8;
  float v[8] = {};
  if (k < n) load8_floats(v, a.x + static_cast<size_t>(blockIdx.x) * n, k, n);
  put_scaled(a, k, padded_len<Int8>(n, a.n_rows), v);
}

// Rows that lie in tiles of BF16 to 8 bits, 2048 elements by a block.
KERNEL(bfloat_bytes, ActivationArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const int n = a.n, k = blockIdx.y * 2048 + threadIdx.x * 8;
  float v[8] = {};
  if (k < n) {
    const uint8_t* x = reinterpret_cast<const uint8_t*>(a.x) + swizzled_offset<Bfloat>(blockIdx.x, k, 0, a.n_rows);
    const uint4 pairs = *reinterpret_cast<const uint4*>(x);
    const uint32_t words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = __uint_as_float(j % 2 ? words[j / 2] & 0xffff0000u : words[j / 2] << 16);
  }
  put_scaled(a, k, padded_len<Int8>(n, a.n_rows), v);
}

#define ACTIVATIONS(T) \
  KERNEL_4(activations_##T##_4096, ActivationArgs, 256) { activations<T, 2>(a); } \
  KERNEL(activations_##T##_16384, ActivationArgs, 256) { activations<T, 8>(a); } \
  KERNEL(activations_##T, ActivationArgs, 256) { activations<T, 0>(a); }
ACTIVATIONS(Half) ACTIVATIONS(Bfloat) ACTIVATIONS(Int8)

// `load` decodes eight weights of a row.
template <class T, class Load>
DEVICE void weights(const WeightArgs& a, Load load) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const int n = a.n, padded = padded_len<T>(n, a.n_rows), k = (blockIdx.y * 128 + threadIdx.x) * 8;
  if (k >= padded) return;
  float v[8] = {};
  if (k < n) load(v, a.w + blockIdx.x * a.row_bytes, k, n, a.codebook);
  put_eight<T>(a.y, a.first_row + blockIdx.x, k, padded, a.n_rows, v);
}

template <class Q> struct HalfOf { typedef Half Type; };
template <> struct HalfOf<BF16> { typedef Bfloat Type; };

#define WEIGHTS(Q) \
  KERNEL(weights_##Q, WeightArgs, 128) { weights<HalfOf<Q>::Type>(a, load8<Q>); }
FOR_EACH_QUANT(WEIGHTS)

// A thread converts sixteen weights of a piece of 64; these rows need no padding.
template <class P>
DEVICE void packed_weights(const WeightArgs& a) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const int n = a.n, i = blockIdx.y * 128 + threadIdx.x, piece = i / 4, k = piece * 64 + i % 4 * 8;
  if (k >= n) return;
  const Sixteen v = P::unpack16(a.w + blockIdx.x * a.row_bytes, piece, i % 4, n);
  put_eight<Half>(a.y, a.first_row + blockIdx.x, k, n, a.n_rows, v.low);
  put_eight<Half>(a.y, a.first_row + blockIdx.x, k + 32, n, a.n_rows, v.high);
}

// The bytes of codes' weights times `factor`, which makes them 127 in magnitude at most, to the nearest: a number and 128 are counted in
// 256ths, two in a word.
template <class P>
DEVICE uint4 bytes_of_codes(const Codes::Half& h, float factor) {
  constexpr int ZERO = P::ZERO, HALF = 128;
  const int scale = __float2int_rn(h.scale * factor * 256.0f);
  const int offset = (ZERO < 0 ? __float2int_rn((128.0f - h.min * factor) * 256.0f) : 128 * 256 - ZERO * scale) + HALF;
  const uint32_t offsets = static_cast<uint32_t>(offset) * 0x10001u;
  return for_words(h.q, [&](uint32_t w, int) {
    const uint32_t even = __byte_perm(w, 0, 0x4240) * static_cast<uint32_t>(scale) + offsets;
    const uint32_t odd = __byte_perm(w, 0, 0x4341) * static_cast<uint32_t>(scale) + offsets;
    return __byte_perm(even, odd, 0x7351) ^ 0x80808080u;
  });
}

// The same to 8 bits: a thread converts 32 weights of a piece, eight neighbouring threads 256 columns. Weights are asked
// for before the kernel before has ended, since nobody writes them.
template <class P>
DEVICE void packed_bytes(const WeightArgs& a) {
  ptx::launch_dependents();
  const uint32_t i = blockIdx.y * 128 + threadIdx.x, piece = i / 2, v = i % 2, last_piece = a.n / 64 - 1;
  const int n = a.n, k = piece * 64 + v * 16;
  const Taken taken = P::take_codes(a.w + blockIdx.x * a.row_bytes, min(piece, last_piece), v, n);
  ptx::griddepcontrol_wait();
  Codes codes = {};
  if (k < n) codes = P::codes_of(taken, piece, v);
  const Range<SCALED / 32> range(larger_magnitude(larger_magnitude(0, P::bound(codes.half[0])), P::bound(codes.half[1])));
  if (k >= padded_len<Int8>(n, a.n_rows)) return;
  const uint32_t row = a.first_row + blockIdx.x;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    *reinterpret_cast<uint4*>(a.y + swizzled_offset<Int8>(row, k + 32 * h, 0, a.n_rows)) = bytes_of_codes<P>(codes.half[h], range.factor);
  }
  if (k % SCALED == 0) a.scales[static_cast<size_t>(k / SCALED) * a.n_rows + row] = range.scale();
}

#define WEIGHTS_PACKED(Q) \
  KERNEL(weights_Packed_##Q, WeightArgs, 128) { packed_weights<Packed_##Q>(a); } \
  KERNEL(bytes_Packed_##Q, WeightArgs, 128) { packed_bytes<Packed_##Q>(a); }
FOR_EACH_PACKED(WEIGHTS_PACKED)
