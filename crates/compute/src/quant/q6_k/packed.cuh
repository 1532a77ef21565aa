// Q6_K as kernels read it. Groups: 2 vectors of low nibbles, one of upper bits, 16 scales of int8 of each block of 256, the blocks' d as
// f16. Bits 8 b + 2 t of word i of a piece's upper bits are those of weight 16 i + 4 t + b.
#pragma once
#include "../../cuda/common/packed.cuh"
#include "device.cuh"

struct Packed_Q6_K : PackedLayout<210, 1> {
  static constexpr bool PAIRS_OF_SUMS = true, UNPACKS_VECTORS = true;
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
  // Sums of both halves by scale.
  DEVICE static void dot(const Piece& p, const X& x, int& a, int& b) {
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
    a = s0 * (sums[0] - 32 * low_half(x.sums(0))) + s1 * (sums[1] - 32 * high_half(x.sums(0)));
    b = s2 * (sums[2] - 32 * low_half(x.sums(1))) + s3 * (sums[3] - 32 * high_half(x.sums(1)));
  }
  DEVICE static float dot(const Piece& p, const X& x) {
    int a, b;
    dot(p, x, a, b);
    return ptx::f16_to_f32(p.d) * (static_cast<float>(a) * x.scale(0) + static_cast<float>(b) * x.scale(1));
  }
  // Four times the weights' sums, as `SmallM` has them.
  DEVICE static Integers integers(const Piece& p, const X& x) {
    int a, b;
    dot(p, x, a, b);
    return {(a + b) * 4, 0};
  }
  DEVICE static uint32_t factors(const Piece& p) { return p.d; }
  DEVICE static float total(uint32_t d, int sum, int) { return 0.25f * ptx::f16_to_f32(static_cast<uint16_t>(d)) * static_cast<float>(sum); }
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const Place p(k / 64, n);
    const uint8_t* group = group_of(row, p);
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
    uint8_t* group = group_of(row, p);
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

  DEVICE static Sixteen unpack16(const uint8_t* row, int piece, int j, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    const uint2 q = bytes_of(group, p, j);
    const uint8_t* upper = group + (2 * p.size + p.at) * 16 + j / 2 * 4;
    const uint32_t h0 = load_word(upper), h1 = load_word(upper + 8), s = load_word(group + 48 * p.size + p.at * 4) >> j / 2 * 8;
    const float d = f16_at(group + 52 * p.size + p.at / 4 * 2);
    const float s0 = d * static_cast<float>(static_cast<int8_t>(s)), s1 = d * static_cast<float>(static_cast<int8_t>(s >> 16));
    Sixteen y;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int bit = 8 * (i % 4) + 4 * (j % 2) + i / 4 * 2;
      y.low[i] = s0 * (float_of((byte_of(q, i) & 15) | (h0 >> bit & 3) << 4) - 32.0f);
      y.high[i] = s1 * (float_of(byte_of(q, i) >> 4 | (h1 >> bit & 3) << 4) - 32.0f);
    }
    return y;
  }

  static constexpr int ZERO = 32;
  DEVICE static float bound(const Codes::Half& h) { return 32.0f * fabsf(h.scale); }

  DEVICE static Taken take_codes(const uint8_t* row, int piece, int v, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    const uint8_t* upper = group + (2 * p.size + p.at) * 16 + v * 4;
    const uint32_t d = u16_at(group + 52 * p.size + p.at / 4 * 2);
    const uint32_t scales = load_word(group + 48 * p.size + p.at * 4);
    return {load16(group + (v * p.size + p.at) * 16), {d}, {load_word(upper), load_word(upper + 8), scales}};
  }

  DEVICE static Codes codes_of(const Taken& t, int, int v) {
    const uint32_t s = t.words[2] >> 8 * v;
    const float d = ptx::f16_to_f32(static_cast<uint16_t>(t.more.x));
    const float s0 = d * static_cast<float>(static_cast<int8_t>(s)), s1 = d * static_cast<float>(static_cast<int8_t>(s >> 16));
    const auto with = [](uint32_t bits) { return [=](uint32_t w, int i) { return w | (bits >> 2 * i & 0x03030303u) << 4; }; };
    return {{{for_words(low_nibbles(t.q), with(t.words[0])), s0, 0}, {for_words(high_nibbles(t.q), with(t.words[1])), s1, 0}}};
  }

  // Four times the weights, less their offset.
  struct SmallM : SmallMOf16 {
    DEVICE void take(const uint8_t* row0, const uint8_t* row1, unsigned size, unsigned at) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const uint8_t* row = r ? row1 : row0;
        words[r] = *reinterpret_cast<const uint32_t*>(row + 48 * size + at * 4);
        d[r] = 0.25f * ptx::f16_to_f32(*reinterpret_cast<const uint16_t*>(row + 52 * size + at / 4 * 2));
      }
    }
    DEVICE static int scale(const uint32_t (&w)[2], int h, int part, int r) { return static_cast<int8_t>(w[r] >> 8 * (2 * h + part)); }
    // Bits 8 b + 2 t of word i of a piece's upper bits are those of weight 16 i + 4 t + b.
    DEVICE static void unpack(uint32_t (&a)[4], const uint32_t (&q)[4], int h, const uint8_t* row0, const uint8_t* row1, int size, int at,
                              int t) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const uint32_t upper = *reinterpret_cast<const uint32_t*>((i % 2 ? row1 : row0) + (2 * size + at) * 16 + 8 * h + i / 2 * 4);
        a[i] = ptx::mask_and_set(h ? q[i] >> 2 : q[i] << 2, 0x3c3c3c3c, 0x80808080) ^ (rotate(upper, 6 - 2 * t) & 0xc0c0c0c0);
      }
    }
  };

  struct Fragment {
    static constexpr int VECTORS = 3, REST = 2;
    DEVICE static int rest_at(int i, int size, int at) { return i == 0 ? 48 * size + at * 4 : 52 * size; }
    uint32_t q[8], high[4], scale[4];
    DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, int at, bool) {
      put_vector(q, load16(vectors)), put_vector(q + 4, load16(vectors + 64 * STAGE_ROWS));
      put_vector(high, load16(vectors + 128 * STAGE_ROWS));
      const uint32_t s = *reinterpret_cast<const uint32_t*>(rest + t * 4);
      const float d = ptx::f16_to_f32(*reinterpret_cast<const uint16_t*>(rest + 16 * STAGE_ROWS + at / 4 * 2));
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const uint32_t h = ptx::f32_to_f16(d * (__uint_as_float(__byte_perm(s ^ 0x80808080, 0x4b000000, 0x7540 + i)) - 8388736.0f));
        scale[i] = twice(h, false);
      }
    }
    DEVICE Four word(int i) const {
      const uint32_t w = q[i], w8 = w >> 8;
      const int j = i % 4 * 2;
      // Bits j and j + 1 of each byte are the upper bits: to bits 4 and 5, and for the high half to bits 8 and 9.
      const uint32_t u = high[i / 4], v = high[2 + i / 4];
      const uint32_t u0 = j <= 4 ? u << (4 - j) : u >> (j - 4), u1 = u >> (4 + j), v0 = v << (8 - j), v1 = v >> j;
      const auto low = [&](uint32_t nibbles, uint32_t upper) {
        const uint32_t x = ptx::mask_and_set(upper, 0x00300030, ptx::mask_and_set(nibbles, 0x000f000f, MAGIC));
        return ptx::mul_f16(ptx::add_f16(x, 0xe420e420), scale[i / 4]);
      };
      const auto up = [&](uint32_t nibbles, uint32_t upper) {
        const uint32_t x = ptx::mask_and_set(upper, 0x03000300, ptx::mask_and_set(nibbles, 0x00f000f0, MAGIC));
        return ptx::mul_f16(ptx::fma_f16(x, 0x2c002c00, 0xd600d600), scale[2 + i / 4]);
      };
      return {{low(w, u0), low(w8, u1)}, {up(w, v0), up(w8, v1)}};
    }
  };
};
