// What small_m.cu and grouped_small_m.cu share: activations rounded to 8 bits, and 16 rows of packed weights times such on the integer tensor
// cores.
#pragma once
#include "packed.cuh"
#include "squares.cuh"

// Words of a type's table, at most.
constexpr int MAX_TABLE = 512;

// 256 activations of 8 rows, as lanes (g, t) want them: with g = lane / 4 a row, t = lane % 4.
struct XBlock {
  // Of each 32, a sub-block, the integers 4 t to 4 t + 3 of both 16. For wgmma, as [8][2][32] words: those of the first 16 of all rows, and then
  // those of the second.
  uint2 q[8][32];
  // Sums of the integers of sub-blocks 2 t and 2 t + 1: each as two numbers of half precision, y has the rest of x. For wgmma, as [2][32] words.
  uint2 sums[32];
  // Of each sub-block, for each row, what its integers are to be multiplied with. For the K types all of a row are one.
  float scale[8][8];
};

// The 256 columns of activations that four pieces meet. With R rows, the eight columns of the tensor cores' second operand are 8 / R
// sets of them: set s has the activations of sub-blocks s R to s R + R - 1, and zeros elsewhere. So products with sub-blocks of several
// sets add up without meeting, and are scaled together. Column g is row g % R of set g / R.
template <int R>
struct Columns {
  uint2 q[8];           // of each sub-block
  uint2 sums;           // of sub-blocks 2 t and 2 t + 1
  const float* scales;  // in shared memory, as in XBlock
  // From shared memory, all rows.
  DEVICE void take(const XBlock* x, unsigned lane) {
    static_assert(R == 8, "all columns have rows of their own");
#pragma unroll
    for (unsigned i = 0; i < 8; i++) q[i] = x->q[i][lane];
    sums = x->sums[lane], scales = x->scale[0];
  }
  // The same where they lie as wgmma wants them.
  DEVICE void take_tile(const XBlock* x, unsigned lane) {
    const uint32_t *words = reinterpret_cast<const uint32_t*>(x->q) + lane, *halves = reinterpret_cast<const uint32_t*>(x->sums) + lane;
#pragma unroll
    for (unsigned i = 0; i < 8; i++) q[i] = {words[64 * i], words[64 * i + 32]};
    sums = {halves[0], halves[32]}, scales = x->scale[0];
  }
  // From global memory. `to_scales` is the warp's.
  DEVICE void load(const XBlock* x, float* to_scales, unsigned lane) {
    const unsigned g = lane / 4, t = lane % 4, from = g % R * 4 + t;
    const float2 pair = __ldcg(reinterpret_cast<const float2*>(x->scale) + lane);
#pragma unroll
    for (unsigned i = 0; i < 8; i++) q[i] = i / R == g / R ? __ldcg(&x->q[i][from]) : uint2{0, 0};
    sums = 2 * t / R == g / R ? __ldcg(&x->sums[from]) : uint2{0, 0};
    __syncwarp();
    reinterpret_cast<float2*>(to_scales)[lane] = pair;
    scales = to_scales;
    __syncwarp();
  }
};

// Floats of scales.
constexpr int X_SCALES = 64;

// The mins' part of a warp's sums, of types that have any.
template <class P, int R>
DEVICE void multiply_mins(float (&of_mins)[4], const P& p, const Columns<R>& x, unsigned lane) {
  if constexpr (P::MINS) {
    // Twice, for the sums' first and second parts.
    const uint32_t mins[4] = {p.mins[0], p.mins[1], p.mins[0], p.mins[1]};
    ptx::mma_f16(of_mins, mins, x.sums.x, x.sums.y);
  }
  if constexpr (P::MINS_OF_16) {
    int mins_of_16[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint32_t words[P::WORDS];
#pragma unroll
      for (int j = 0; j < P::WORDS; j++) words[j] = __shfl_sync(ALL_LANES, p.words[j], (lane & 28) + i);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        uint32_t a[4];
        P::mins(a, words, h);
        ptx::mma_s8(mins_of_16, a, x.q[2 * i + h], mins_of_16);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) of_mins[j] = static_cast<float>(mins_of_16[j]);
  }
}

// Adds the products of a step's piece up by scale.
template <class P, int R>
DEVICE void add_scaled(typename P::Sum (&scaled)[2][4], const int (&d)[2][P::PARTS][4], const uint32_t (&words)[P::WORDS], const Columns<R>& x,
                       int step, unsigned t) {
  const float2* x_scales = reinterpret_cast<const float2*>(x.scales + 2 * t % R);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float2 x_scale = {};
    if constexpr (P::OF_32) x_scale = x_scales[(2 * t / R * R + 2 * step + h) * 4];
#pragma unroll
    for (int part = 0; part < P::PARTS; part++) {
#pragma unroll
      for (int j = 0; j < 4; j++) P::add(scaled[h][j], d[h][part][j], P::scale(words, h, part, j / 2), j % 2 ? x_scale.y : x_scale.x);
    }
  }
}

// Of sums by scale and the mins' part the products of 256 columns. No multiplication here is fused with an addition elsewhere: kernels have the
// same bits.
template <class P, int R>
DEVICE void scale_columns(float (&sums)[4], const P& p, const typename P::Sum (&scaled)[2][4], const float (&of_mins)[4], const Columns<R>& x,
                          unsigned lane) {
  // Those of columns 2 t and 2 t + 1 for the first sub-block.
  const float2* x_scales = reinterpret_cast<const float2*>(x.scales + 2 * (lane % 4) % R);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    sums[j] = p.total(scaled[0][j], scaled[1][j], of_mins[j], j / 2);
    if constexpr (!P::OF_32) sums[j] = __fmul_rn(sums[j], j % 2 ? x_scales->y : x_scales->x);
  }
}

// The same with the mins' part.
template <class P, int R>
DEVICE void finish_columns(float (&sums)[4], const P& p, const typename P::Sum (&scaled)[2][4], const Columns<R>& x, unsigned lane) {
  float of_mins[4] = {};
  multiply_mins<P, R>(of_mins, p, x, lane);
  scale_columns<P, R>(sums, p, scaled, of_mins, x, lane);
}

// Multiplies 16 rows of weights with four pieces' columns of N sets of activations. `stage`: where the rows are, `pitch` bytes from one to the
// next, of a group of `size` pieces; `at`: the first of the four. TAIL: the group may end before the fourth. Sums of rows g and g + 8 with columns
// 2 t and 2 t + 1.
template <class Packed, int R, int N, bool TAIL>
DEVICE void multiply_columns(float (&sums)[N][4], const uint8_t* stage, unsigned pitch, unsigned size, unsigned at, const Columns<R> (&x)[N],
                             const uint32_t* table, unsigned lane) {
  // What follows from these for each of the types is computed where it is wanted.
  lane = ptx::anew(lane), size = ptx::anew(size);
  typedef typename Packed::SmallM P;
  const unsigned t = lane % 4;
  const uint8_t *row0 = stage + lane / 4 * pitch, *row1 = row0 + 8 * pitch;
  constexpr bool LONE_VECTOR = Packed::Fragment::VECTORS == 1;
  const uint8_t* matrices = stage + lane % 16 * pitch + ((LONE_VECTOR ? 0 : lane / 16 * size) + at) * 16;
  P p;
  static_assert(Packed::TABLE <= MAX_TABLE, "the table has no room");
  if constexpr (Packed::TABLE > 0) p.table = table;
  // What is not there is multiplied with zeros, so that any numbers do.
  p.take(row0, row1, size, TAIL ? min(at + t, size - 1) : at + t);
  // By halves of pieces.
  typename P::Sum scaled[N][2][4] = {};
  int none[P::PARTS][4];
#pragma unroll
  for (int i = 0; i < 4 * P::PARTS; i++) none[i / 4][i % 4] = P::FIRST;
  // A step takes a piece of each set.
  constexpr int STEPS = R / 2, SETS = 8 / R;
#pragma unroll
  for (int step = 0; step < STEPS; step++) {
    int d[N][2][P::PARTS][4];
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      const int i = set * STEPS + step;
      uint32_t raw[4] = {};
      if constexpr (Packed::TABLE == 0) ptx::ldmatrix_x4(raw, matrices + i * 16);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        uint32_t a[4];
        if constexpr (!P::UNPACKED) {
          p.unpack(a, raw, h, row0, row1, size, at + i, t);
        } else {
          // Its second 32 are bytes of their own.
          if (h == 1) ptx::ldmatrix_x4(raw, matrices + (2 * size + i) * 16);
#pragma unroll
          for (int j = 0; j < 4; j++) a[j] = raw[j];
        }
#pragma unroll
        for (int n = 0; n < N; n++) P::multiply(d[n][h], a, x[n].q[2 * i + h], set == 0 ? none : d[n][h]);
      }
    }
    // Those of the step's piece of the lane's columns' set.
    uint32_t words[P::WORDS];
#pragma unroll
    for (int i = 0; i < P::WORDS; i++) {
      words[i] = STEPS == 1 ? p.words[i] : __shfl_sync(ALL_LANES, p.words[i], (lane & (32 - STEPS)) + step);
    }
#pragma unroll
    for (int n = 0; n < N; n++) add_scaled<P, R>(scaled[n], d[n], words, x[n], step, t);
    // The next step's loads wait, so that registers suffice for the mins.
    if constexpr (P::MINS_OF_16) {
      if (step % 2 == 1) __syncwarp();
    }
  }
#pragma unroll
  for (int n = 0; n < N; n++) finish_columns<P, R>(sums[n], p, scaled[n], x[n], lane);
}

DEVICE void load8_fresh(float (&v)[8], const float* from) {
  const float4 a = __ldcg(reinterpret_cast<const float4*>(from)), b = __ldcg(reinterpret_cast<const float4*>(from + 4));
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// Eight activations as integers, times `scale`, of which lanes of a warp that follow each other have the 32 or 256 of a block.
struct Rounded {
  uint32_t packed[2];
  float scale;
  int sum;  // of the 32
};

DEVICE Rounded round_eight(const float (&v)[8], bool of_32) {
  // As integers, magnitudes compare alike, and what is not a number is largest.
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) bits = max(bits, __float_as_uint(v[i]) & 0x7fffffffu);
#pragma unroll 1
  for (int i = 1; i < (of_32 ? 4 : 32); i *= 2) bits = max(bits, __shfl_xor_sync(ALL_LANES, bits, i));
  const float largest = __uint_as_float(bits), per_unit = largest > 1e-30f ? __fdividef(127.0f, largest) : 0.0f;
  // The last byte of a float of this size is an integer, rounded.
  uint32_t q[8];
#pragma unroll
  for (int i = 0; i < 8; i++) q[i] = __float_as_uint(fmaf(v[i], per_unit, UNITS));
  Rounded r;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    r.packed[i] = __byte_perm(__byte_perm(q[4 * i], q[4 * i + 1], 0x0040), __byte_perm(q[4 * i + 2], q[4 * i + 3], 0x0040), 0x5410);
  }
  r.scale = largest * (1.0f / 127.0f);
  r.sum = __dp4a(static_cast<int>(r.packed[0]), 0x01010101, __dp4a(static_cast<int>(r.packed[1]), 0x01010101, 0));
  r.sum += __shfl_xor_sync(ALL_LANES, r.sum, 1);
  r.sum += __shfl_xor_sync(ALL_LANES, r.sum, 2);
  return r;
}

// Puts columns k to k + 7 of a row in its block, with what its integers are to be multiplied with; `for_wgmma`: as XBlock says.
DEVICE void put_rounded(XBlock& y, unsigned row, unsigned k, const Rounded& r, float scale, bool for_wgmma) {
  const unsigned part = k / 32, l = k % 32, at = row * 4 + l % 16 / 4;
  uint32_t* to = reinterpret_cast<uint32_t*>(y.q[part]) + (for_wgmma ? l / 16 * 32 + at : 2 * at + l / 16);
#pragma unroll
  for (int i = 0; i < 2; i++) to[for_wgmma ? i : 2 * i] = r.packed[i];
  if (l == 0) {
    y.scale[part][row] = scale;
    const float exact = static_cast<float>(r.sum);
    const uint16_t high = ptx::f32_to_f16(exact), low = ptx::f32_to_f16(exact - ptx::f16_to_f32(high));
    uint16_t* sums = reinterpret_cast<uint16_t*>(y.sums) + (row * 4 + part / 2) * (for_wgmma ? 2 : 4) + part % 2;
    sums[0] = high, sums[for_wgmma ? 64 : 2] = low;
  }
}
