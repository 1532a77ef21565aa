// Layouts of weights that kernels read fastest, made once from a file's blocks (repack.cu), with no bytes more than padding.
//
// A row is pieces of 64 weights: within one, byte l of 32 holds weight l in its low nibble and weight 32 + l in its high one. 32
// pieces, or what is left of a row, are a group, which a warp reads a piece to a lane: first the first 16 bytes of each piece, then
// the second ones, and so on, so that the lanes' loads lie side by side, and last what is smaller. Groups and rows are padded to a
// multiple of 16 bytes.
// A type gives
//   bytes(size)    of a group of `size` pieces,
//   Piece, take    a piece in registers, from its group in shared memory,
//   dot            its product with 64 activations of int8 (see XPiece),
//   PAIRS_OF_SUMS  which sums of activations `dot` wants,
//   ROWS           of which a lane takes a piece at a time: as many as its registers hold,
//   load8          eight weights as floats, bit for bit as from the file's block,
//   pack           the conversion of one piece.
#pragma once
#include "../common/quant.cuh"

// 64 activations: q[i] * scale[i / 32]. 80 bytes, so that eight threads that read neighbours use different banks.
struct __align__(16) XPiece {
  int8_t q[64];
  float scale[2];
  // What the type of the weights wants to know (its SUMS): the sums of the activations of each half, as floats; or the sums of q over
  // 16, in pairs, the first in the low half.
  uint32_t sums[2];
};

// A small integer's float without the slow conversion: sums begin at this number, whose last bits count units.
constexpr int FLOAT_UNITS = 0x4b400000;
DEVICE float units(int sum) { return __uint_as_float(static_cast<uint32_t>(sum)) - 12582912.0f; }

// The float of six bits.
DEVICE float six_bits(uint32_t x) { return __uint_as_float(ptx::mask_and_set(x, 63, 0x4b000000u)) - 8388608.0f; }

// Six bits times a number, of which `offset` is the product with -2^23: the bits are the last of a float between 2^23 and 2^24. Rounded once.
DEVICE float times_six_bits(uint32_t x, float factor, float offset) {
  return fmaf(__uint_as_float(ptx::mask_and_set(x, 63, 0x4b000000u)), factor, offset);
}

DEVICE int low_half(uint32_t x) { return static_cast<int16_t>(x); }
DEVICE int high_half(uint32_t x) { return static_cast<int>(x) >> 16; }

DEVICE uint4 load16(const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); }

DEVICE uint32_t word(const uint4 (&v)[2], int i) {
  const uint4 u = v[i / 4];
  return i % 4 == 0 ? u.x : i % 4 == 1 ? u.y : i % 4 == 2 ? u.z : u.w;
}

DEVICE uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// A piece of activations in registers.
struct X {
  uint4 v[5];
  float offsets[4];  // scales and sums times -2^23
  DEVICE void load(const XPiece* p) {
#pragma unroll
    for (int i = 0; i < 5; i++) v[i] = reinterpret_cast<const uint4*>(p)[i];
#pragma unroll
    for (int i = 0; i < 4; i++) offsets[i] = __uint_as_float(word(v[4], i)) * -8388608.0f;
  }
  DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < 5; i++) v[i] = uint4{0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) offsets[i] = 0;
  }
  DEVICE int q(int i) const { return static_cast<int>(word(v[i / 4], i % 4)); }
  DEVICE float scale(int half) const { return __uint_as_float(word(v[4], half)); }
  DEVICE float sum(int half) const { return __uint_as_float(word(v[4], 2 + half)); }
  DEVICE uint32_t sums(int half) const { return word(v[4], 2 + half); }
};

// Sums over 32 products of unsigned nibbles: of the low ones, and 16 times that of the high ones, in units of FLOAT_UNITS.
DEVICE void dot_nibbles(const uint4 (&q)[2], const X& x, int& low, int& high) {
  low = high = FLOAT_UNITS;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const uint32_t w = word(q, i);
    low = ptx::dp4a_unsigned(w & 0x0f0f0f0fu, x.q(i), low);
    high = ptx::dp4a_unsigned(w & 0xf0f0f0f0u, x.q(8 + i), high);
  }
}

// Pieces of a whole group.
constexpr int GROUP = 32;

DEVICE constexpr int padded(int bytes) { return (bytes + 15) / 16 * 16; }

// The first N vectors of a lane's piece.
template <int N>
DEVICE void take_vectors(uint4 (&to)[N], const uint8_t* group, int size, int at) {
#pragma unroll
  for (int i = 0; i < N; i++) to[i] = load16(group + (i * size + at) * 16);
}

// Where piece `piece` of a row of n weights is: its group, its place there, and how many pieces the group has.
struct Place {
  int group, at, size;
  DEVICE Place(int piece, int n) : group(piece / GROUP), at(piece % GROUP), size(n / 64 - piece / GROUP * GROUP) {
    if (size > GROUP) size = GROUP;
  }
};

template <class P>
DEVICE size_t group_at(int group) { return static_cast<size_t>(group) * P::bytes(GROUP); }

// Scales and mins of six bits, packed by sub-block: scale s in bits 12 s to 12 s + 5 of 12 bytes, its min in the next six.
// Source block: k_scales.rs.
DEVICE void pack_k_scales(uint8_t* out, const uint8_t* in, int piece) {
  int s0, m0, s1, m1;
  k_scale_min(in, 2 * piece, s0, m0);
  k_scale_min(in, 2 * piece + 1, s1, m1);
  const uint32_t bits = s0 | m0 << 6 | s1 << 12 | m1 << 18;
#pragma unroll
  for (int i = 0; i < 3; i++) out[3 * piece + i] = static_cast<uint8_t>(bits >> 8 * i);
}

// A block's header: d and dmin as f16, then 12 bytes of scales and mins. Of it, what one piece wants: the 24 bits of its two scales
// and mins.
struct KHeader {
  uint32_t d, bits;
  DEVICE void take(const uint8_t* header, int piece_of_block) {
    const uint4 words = load16(header);
    const bool front = piece_of_block < 2;
    d = words.x;
    bits = __funnelshift_r(front ? words.y : piece_of_block == 2 ? words.z : words.w, front ? words.z : words.w, 24 * piece_of_block & 31);
  }
  // d * (scales · sums of products) - dmin * (mins · sums of activations)
  DEVICE float apply(float low, float high, const X& x) const {
    const float scaled =
        times_six_bits(bits, x.scale(0), x.offsets[0]) * low + times_six_bits(bits >> 12, x.scale(1), x.offsets[1]) * high;
    const float mins = times_six_bits(bits >> 6, x.sum(0), x.offsets[2]) + times_six_bits(bits >> 18, x.sum(1), x.offsets[3]);
    return ptx::f16_to_f32(static_cast<uint16_t>(d)) * scaled - ptx::f16_to_f32(static_cast<uint16_t>(d >> 16)) * mins;
  }
  // The floats of weights of one half of a piece, as the scalar code rounds them.
  DEVICE static void load8(float* y, const uint8_t* header, int piece_of_block, int half, const int (&q)[8]) {
    const uint8_t* p = header + 4 + piece_of_block * 3;
    const uint32_t bits = (p[0] | p[1] << 8 | p[2] << 16) >> 12 * half;
    const float scale = f16_at(header) * static_cast<float>(bits & 63);
    const float min = f16_at(header + 2) * static_cast<float>(bits >> 6 & 63);
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = mul_then_add(scale, static_cast<float>(q[j]), -min);
  }
};

// Groups: 2 vectors, then headers of blocks of 256.
struct Packed_Q4_K {
  static constexpr bool PACKED = true, PAIRS_OF_SUMS = false;
  static constexpr int ROWS = 2;
  DEVICE static constexpr int bytes(int size) { return padded(36 * size); }
  typedef Q4_K Source;
  struct Piece {
    uint4 q[2];
    KHeader header;
  };
  DEVICE static void take(Piece& p, const uint8_t* group, int size, int at) {
    take_vectors(p.q, group, size, at);
    p.header.take(group + 32 * size + at / 4 * 16, at % 4);
  }
  DEVICE static float dot(const Piece& p, const X& x) {
    int low, high;
    dot_nibbles(p.q, x, low, high);
    return p.header.apply(units(low), units(high) * 0.0625f, x);
  }
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const Place p(k / 64, n);
    const uint8_t* group = row + group_at<Packed_Q4_K>(p.group);
    const uint8_t* vector = group + (k % 32 / 16 * p.size + p.at) * 16;
    int q[8];
#pragma unroll
    for (int j = 0; j < 8; j++) q[j] = vector[k % 16 + j] >> k / 32 % 2 * 4 & 15;
    KHeader::load8(y, group + 32 * p.size + p.at / 4 * 16, p.at % 4, k / 32 % 2, q);
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const uint8_t* in = source + static_cast<size_t>(piece / 4) * Q4_K::BYTES;
    const Place p(piece, n);
    uint8_t* group = row + group_at<Packed_Q4_K>(p.group);
    uint8_t* header = group + 32 * p.size + p.at / 4 * 16;
    if (piece % 4 == 0) {
      for (int i = 0; i < 4; i++) header[i] = in[i];
    }
    pack_k_scales(header + 4, in + 4, piece % 4);
    for (int i = 0; i < 32; i++) group[(i / 16 * p.size + p.at) * 16 + i % 16] = in[16 + piece % 4 * 32 + i];
  }
};

// As Packed_Q4_K, and then 8 bytes of fifth bits for each piece: bit 8 b + j of its first word is
// that of weight 4 j + b, of its second word that of weight 32 + 4 j + b.
struct Packed_Q5_K {
  static constexpr bool PACKED = true, PAIRS_OF_SUMS = false;
  static constexpr int ROWS = 1;
  DEVICE static constexpr int bytes(int size) { return padded(44 * size); }
  typedef Q5_K Source;
  struct Piece {
    uint4 q[2];
    uint2 high;
    KHeader header;
  };
  DEVICE static void take(Piece& p, const uint8_t* group, int size, int at) {
    take_vectors(p.q, group, size, at);
    p.header.take(group + 32 * size + at / 4 * 16, at % 4);
    p.high = *reinterpret_cast<const uint2*>(group + 36 * size + at * 8);
  }
  DEVICE static float dot(const Piece& p, const X& x) {
    int low = FLOAT_UNITS, high = FLOAT_UNITS;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t w = word(p.q, i);
      const uint32_t h0 = (i < 4 ? p.high.x << (4 - i) : p.high.x >> (i - 4)) & 0x10101010u;
      const uint32_t h1 = (i < 4 ? p.high.y << (4 - i) : p.high.y >> (i - 4)) & 0x10101010u;
      low = __dp4a(static_cast<int>((w & 0x0f0f0f0fu) | h0), x.q(i), low);
      high = __dp4a(static_cast<int>((w >> 4 & 0x0f0f0f0fu) | h1), x.q(8 + i), high);
    }
    return p.header.apply(units(low), units(high), x);
  }
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const Place p(k / 64, n);
    const uint8_t* group = row + group_at<Packed_Q5_K>(p.group);
    const uint8_t* vector = group + (k % 32 / 16 * p.size + p.at) * 16;
    const uint32_t high = u32_at(group + p.size * 36 + p.at * 8 + k / 32 % 2 * 4);
    int q[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int l = k % 32 + j;
      q[j] = (vector[k % 16 + j] >> k / 32 % 2 * 4 & 15) | (high >> (8 * (l % 4) + l / 4) & 1) << 4;
    }
    KHeader::load8(y, group + 32 * p.size + p.at / 4 * 16, p.at % 4, k / 32 % 2, q);
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const uint8_t* in = source + static_cast<size_t>(piece / 4) * Q5_K::BYTES;
    const Place p(piece, n);
    uint8_t* group = row + group_at<Packed_Q5_K>(p.group);
    uint8_t* header = group + 32 * p.size + p.at / 4 * 16;
    const int c = piece % 4;
    if (c == 0) {
      for (int i = 0; i < 4; i++) header[i] = in[i];
    }
    pack_k_scales(header + 4, in + 4, c);
    uint32_t high[2] = {};
    for (int l = 0; l < 32; l++) {
      const int bit = 8 * (l % 4) + l / 4;
      high[0] |= (in[16 + l] >> 2 * c & 1u) << bit;
      high[1] |= (in[16 + l] >> (2 * c + 1) & 1u) << bit;
    }
    for (int i = 0; i < 8; i++) group[p.size * 36 + p.at * 8 + i] = static_cast<uint8_t>(high[i / 4] >> 8 * (i % 4));
    for (int i = 0; i < 32; i++) group[(i / 16 * p.size + p.at) * 16 + i % 16] = in[48 + c * 32 + i];
  }
};

// Groups: 2 vectors of low nibbles, one of upper bits, 16 scales of int8 of each block of 256, the blocks' d
// as f16. Bits 8 b + 2 t of word i of a piece's upper bits are those of weight 16 i + 4 t + b.
struct Packed_Q6_K {
  static constexpr bool PACKED = true, PAIRS_OF_SUMS = true;
  static constexpr int ROWS = 1;
  DEVICE static constexpr int bytes(int size) { return padded(105 * size / 2); }
  typedef Q6_K Source;
  struct Piece {
    uint4 q[2], high;
    uint32_t scales;
    uint16_t d;
  };
  DEVICE static void take(Piece& p, const uint8_t* group, int size, int at) {
    take_vectors(p.q, group, size, at);
    p.high = load16(group + (2 * size + at) * 16);
    p.scales = *reinterpret_cast<const uint32_t*>(group + 48 * size + at * 4);
    p.d = *reinterpret_cast<const uint16_t*>(group + 52 * size + at / 4 * 2);
  }
  DEVICE static float dot(const Piece& p, const X& x) {
    int sums[4] = {};  // over 16 weights
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t w = word(p.q, i);
      const uint32_t h0 = word(p.high, i / 4), h1 = word(p.high, 2 + i / 4);
      const int t = i % 4;
      const uint32_t high0 = (t < 2 ? h0 << (4 - 2 * t) : h0 >> (2 * t - 4)) & 0x30303030u;
      const uint32_t high1 = (t < 2 ? h1 << (4 - 2 * t) : h1 >> (2 * t - 4)) & 0x30303030u;
      sums[i / 4] = __dp4a(static_cast<int>((w & 0x0f0f0f0fu) | high0), x.q(i), sums[i / 4]);
      sums[2 + i / 4] = __dp4a(static_cast<int>((w >> 4 & 0x0f0f0f0fu) | high1), x.q(8 + i), sums[2 + i / 4]);
    }
    const int s0 = static_cast<int8_t>(p.scales), s1 = static_cast<int8_t>(p.scales >> 8);
    const int s2 = static_cast<int8_t>(p.scales >> 16), s3 = static_cast<int>(p.scales) >> 24;
    const int a = s0 * (sums[0] - 32 * low_half(x.sums(0))) + s1 * (sums[1] - 32 * high_half(x.sums(0)));
    const int b = s2 * (sums[2] - 32 * low_half(x.sums(1))) + s3 * (sums[3] - 32 * high_half(x.sums(1)));
    return ptx::f16_to_f32(p.d) * (static_cast<float>(a) * x.scale(0) + static_cast<float>(b) * x.scale(1));
  }
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const Place p(k / 64, n);
    const uint8_t* group = row + group_at<Packed_Q6_K>(p.group);
    const uint8_t* low = group + (k % 32 / 16 * p.size + p.at) * 16 + k % 16;
    const uint8_t* upper = group + (2 * p.size + p.at) * 16;
    const int l = k % 64;
    const float d = f16_at(group + 52 * p.size + p.at / 4 * 2);
    const float scale = d * static_cast<float>(static_cast<int8_t>(group[p.size * 48 + p.at * 4 + l / 16]));
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int w = l + j;
      const uint32_t high = u32_at(upper + w / 16 * 4) >> (8 * (w % 4) + 2 * (w % 16 / 4)) & 3;
      y[j] = scale * (static_cast<float>((low[j] >> l / 32 * 4 & 15) | high << 4) - 32.0f);
    }
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const uint8_t* in = source + static_cast<size_t>(piece / 4) * Q6_K::BYTES;
    const Place p(piece, n);
    uint8_t* group = row + group_at<Packed_Q6_K>(p.group);
    const int c = piece % 4;
    uint32_t high[4] = {};
#pragma unroll
    for (int l = 0; l < 32; l++) {
      uint32_t q[2];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int i = 64 * c + 32 * half + l;
        const uint32_t low = in[i / 128 * 64 + i % 64] >> i / 64 % 2 * 4 & 15;
        q[half] = low | (in[128 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3) << 4;
        high[2 * half + l / 16] |= (q[half] >> 4) << (8 * (l % 4) + 2 * (l % 16 / 4));
      }
      group[(l / 16 * p.size + p.at) * 16 + l % 16] = static_cast<uint8_t>((q[0] & 15) | (q[1] & 15) << 4);
    }
    uint8_t* upper = group + (2 * p.size + p.at) * 16;
#pragma unroll
    for (int i = 0; i < 16; i++) upper[i] = static_cast<uint8_t>(high[i / 4] >> 8 * (i % 4));
    for (int i = 0; i < 4; i++) group[p.size * 48 + p.at * 4 + i] = in[192 + c * 4 + i];
    if (c == 0) {
      uint8_t* d = group + 52 * p.size + p.at / 4 * 2;
      d[0] = in[208], d[1] = in[209];
    }
  }
};

// Groups: 4 vectors of pieces of two blocks, the blocks' d as f16.
struct Packed_Q8_0 {
  static constexpr bool PACKED = true, PAIRS_OF_SUMS = false;
  static constexpr int ROWS = 1;
  DEVICE static constexpr int bytes(int size) { return padded(68 * size); }
  typedef Q8_0 Source;
  struct Piece {
    uint4 q[4];
    uint32_t d;
  };
  DEVICE static void take(Piece& p, const uint8_t* group, int size, int at) {
    take_vectors(p.q, group, size, at);
    p.d = *reinterpret_cast<const uint32_t*>(group + 64 * size + at * 4);
  }
  DEVICE static float dot(const Piece& p, const X& x) {
    int low = FLOAT_UNITS, high = FLOAT_UNITS;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      low = __dp4a(static_cast<int>(word(p.q[i / 4], i % 4)), x.q(i), low);
      high = __dp4a(static_cast<int>(word(p.q[2 + i / 4], i % 4)), x.q(8 + i), high);
    }
    const float d0 = ptx::f16_to_f32(static_cast<uint16_t>(p.d)), d1 = ptx::f16_to_f32(static_cast<uint16_t>(p.d >> 16));
    return d0 * x.scale(0) * units(low) + d1 * x.scale(1) * units(high);
  }
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const Place p(k / 64, n);
    const uint8_t* group = row + group_at<Packed_Q8_0>(p.group);
    const uint8_t* q = group + (k % 64 / 16 * p.size + p.at) * 16 + k % 16;
    const float d = f16_at(group + 64 * p.size + p.at * 4 + k / 32 % 2 * 2);
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = static_cast<float>(static_cast<int8_t>(q[j])) * d;
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const Place p(piece, n);
    uint8_t* group = row + group_at<Packed_Q8_0>(p.group);
    for (int half = 0; half < 2; half++) {
      const uint8_t* in = source + static_cast<size_t>(2 * piece + half) * Q8_0::BYTES;
      for (int i = 0; i < 32; i++) group[((2 * half + i / 16) * p.size + p.at) * 16 + i % 16] = in[2 + i];
      for (int i = 0; i < 2; i++) group[64 * p.size + 4 * p.at + 2 * half + i] = in[i];
    }
  }
};

// Groups: 2 vectors of pieces of two blocks, the blocks' d as f16.
struct Packed_Q4_0 {
  static constexpr bool PACKED = true, PAIRS_OF_SUMS = false;
  static constexpr int ROWS = 2;
  DEVICE static constexpr int bytes(int size) { return padded(36 * size); }
  typedef Q4_0 Source;
  struct Piece {
    uint4 q[2];
    uint32_t d;
  };
  DEVICE static void take(Piece& p, const uint8_t* group, int size, int at) {
    take_vectors(p.q, group, size, at);
    p.d = *reinterpret_cast<const uint32_t*>(group + 32 * size + at * 4);
  }
  DEVICE static float dot(const Piece& p, const X& x) {
    int low, high;
    dot_nibbles(p.q, x, low, high);
    const float d0 = ptx::f16_to_f32(static_cast<uint16_t>(p.d)), d1 = ptx::f16_to_f32(static_cast<uint16_t>(p.d >> 16));
    return d0 * (x.scale(0) * units(low) - 8.0f * x.sum(0)) + d1 * (x.scale(1) * (units(high) * 0.0625f) - 8.0f * x.sum(1));
  }
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const Place p(k / 64, n);
    const uint8_t* group = row + group_at<Packed_Q4_0>(p.group);
    const uint8_t* q = group + (k % 32 / 16 * p.size + p.at) * 16 + k % 16;
    const float d = f16_at(group + 32 * p.size + p.at * 4 + k / 32 % 2 * 2);
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = (static_cast<float>(q[j] >> k / 32 % 2 * 4 & 15) - 8.0f) * d;
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const uint8_t* in[2] = {source + static_cast<size_t>(2 * piece) * Q4_0::BYTES,
                            source + static_cast<size_t>(2 * piece + 1) * Q4_0::BYTES};
    const Place p(piece, n);
    uint8_t* group = row + group_at<Packed_Q4_0>(p.group);
    for (int l = 0; l < 32; l++) {
      const int shift = l / 16 * 4;
      group[(l / 16 * p.size + p.at) * 16 + l % 16] =
          static_cast<uint8_t>((in[0][2 + l % 16] >> shift & 15) | (in[1][2 + l % 16] >> shift & 15) << 4);
    }
    for (int half = 0; half < 2; half++) {
      for (int i = 0; i < 2; i++) group[32 * p.size + 4 * p.at + 2 * half + i] = in[half][i];
    }
  }
};

#define FOR_EACH_PACKED(F) F(Packed_Q4_0) F(Packed_Q8_0) F(Packed_Q4_K) F(Packed_Q5_K) F(Packed_Q6_K)
