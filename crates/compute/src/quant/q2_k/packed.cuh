// Q2_K as kernels read it. Groups: one vector of each piece, its four scales and mins as in the file, and d and dmin of blocks of 256 as
// f16. Bits 2 s and 2 s + 1 of byte b of word v of the vector are weight 16 s + 4 v + b, so that masks find all weights.
#pragma once
#include "../../cuda/common/packed.cuh"
#include "device.cuh"

// What one piece wants of its block. Byte s of `bits`: the scale of weights from 16 s on in its low nibble, their min in the high one.
struct Q2_K_Scales {
  uint32_t bits, d;
  DEVICE float scale(int s) const { return ptx::f16_to_f32(static_cast<uint16_t>(d)) * static_cast<float>(bits >> 8 * s & 15); }
  DEVICE float min(int s) const { return ptx::f16_to_f32(static_cast<uint16_t>(d >> 16)) * static_cast<float>(bits >> (8 * s + 4) & 15); }
  // Low nibbles of bytes 0 and 1 in half precision.
  DEVICE static uint32_t halves(uint32_t bytes) {
    return ptx::add_f16(ptx::mask_and_set(bytes << 8, 0x000f0000, ptx::mask_and_set(bytes, 0x0000000f, MAGIC)), 0xe400e400);
  }
};

struct Packed_Q2_K : PackedLayout<84, 2> {
  static constexpr bool OF_EXPERTS = false;
  static constexpr bool PAIRS_OF_SUMS = true;
  struct Piece {
    uint4 q;
    Q2_K_Scales scales;
  };
  DEVICE static Q2_K_Scales scales_at(const uint8_t* group, int size, int at) {
    return {load_word(group + 16 * size + at * 4), load_word(group + 20 * size + at / 4 * 4)};
  }
  DEVICE static void take(Piece& p, const uint8_t* group, int size, int at) {
    p.q = load16(group + at * 16), p.scales = scales_at(group, size, at);
  }
  // Sums of both halves by scale, of the second times 16, and of mins, which begin with `first`. Those over 16 products are times 1, 4, 16 and 64.
  DEVICE static void dot(const Piece& p, const X& x, int first, int& low, int& high, int& low_mins, int& high_mins) {
    int sums[4] = {};
#pragma unroll
    for (int i = 0; i < 16; i++) sums[i / 4] = ptx::dp4a_unsigned(word(p.q, i % 4) & 0x03030303u << i / 4 * 2, x.q(i), sums[i / 4]);
    const auto scale = [&](int s) { return static_cast<int>(p.scales.bits >> 8 * s & 15); };
    low = first + scale(0) * sums[0] + (scale(1) * sums[1] >> 2);
    high = first + scale(2) * sums[2] + (scale(3) * sums[3] >> 2);
    const int mins = static_cast<int>(p.scales.bits >> 4 & 0x0f0f0f0fu);
    low_mins = __dp2a_lo(static_cast<int>(x.sums(0)), mins, first);
    high_mins = __dp2a_hi(static_cast<int>(x.sums(1)), mins, first);
  }
  DEVICE static float dot(const Piece& p, const X& x) {
    int low, high, low_mins, high_mins;
    dot(p, x, FLOAT_UNITS, low, high, low_mins, high_mins);
    const float scaled = x.scale(0) * units(low) + x.scale(1) * (units(high) * 0.0625f);
    const float of_mins = x.scale(0) * units(low_mins) + x.scale(1) * units(high_mins);
    return ptx::f16_to_f32(static_cast<uint16_t>(p.scales.d)) * scaled - ptx::f16_to_f32(static_cast<uint16_t>(p.scales.d >> 16)) * of_mins;
  }
  // 16 times the weights' sums, as `SmallM` has them.
  DEVICE static Integers integers(const Piece& p, const X& x) {
    int low, high, low_mins, high_mins;
    dot(p, x, 0, low, high, low_mins, high_mins);
    return {low * 16 + high, low_mins + high_mins};
  }
  DEVICE static uint32_t factors(const Piece& p) { return p.scales.d; }
  DEVICE static float total(uint32_t both, int sum, int mins) {
    const float d = ptx::f16_to_f32(static_cast<uint16_t>(both)), dmin = ptx::f16_to_f32(static_cast<uint16_t>(both >> 16));
    return fmaf(0.0625f * d, static_cast<float>(sum), -__fmul_rn(dmin, static_cast<float>(mins)));
  }
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const Place p(k / 64, n);
    const uint8_t* group = group_of(row, p);
    const uint8_t* q = group + p.at * 16 + k % 16;
    const int s = k % 64 / 16;
    const Q2_K_Scales scales = scales_at(group, p.size, p.at);
    const float scale = scales.scale(s), min = scales.min(s);
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = mul_then_add(scale, static_cast<float>(q[j] >> 2 * s & 3), -min);
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const uint8_t* in = source + static_cast<size_t>(piece / 4) * Q2_K::BYTES;
    const Place p(piece, n);
    uint8_t* group = group_of(row, p);
    const int c = piece % 4;
    for (int i = 0; i < 16; i++) {
      uint32_t byte = 0;
      for (int s = 0; s < 4; s++) {
        const int l = 64 * c + 16 * s + i;
        byte |= (in[16 + l / 128 * 32 + l % 32] >> l / 32 % 4 * 2 & 3u) << 2 * s;
      }
      group[p.at * 16 + i] = static_cast<uint8_t>(byte);
    }
    for (int i = 0; i < 4; i++) group[16 * p.size + p.at * 4 + i] = in[4 * c + i];
    if (c == 0) {
      for (int i = 0; i < 4; i++) group[20 * p.size + p.at + i] = in[80 + i];
    }
  }

  DEVICE static Sixteen unpack16(const uint8_t* row, int piece, int j, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    const uint2 q = bytes_of(group, p, j % 2);
    const Q2_K_Scales scales = scales_at(group, p.size, p.at);
    const int s = j / 2;
    const float s0 = scales.scale(s), s1 = scales.scale(2 + s), m0 = scales.min(s), m1 = scales.min(2 + s);
    Sixteen y;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      y.low[i] = mul_then_add(s0, float_of(byte_of(q, i) >> 2 * s & 3), -m0);
      y.high[i] = mul_then_add(s1, float_of(byte_of(q, i) >> (4 + 2 * s) & 3), -m1);
    }
    return y;
  }

  // Codes have no zero of their own: mins differ.
  static constexpr int ZERO = -1;
  DEVICE static float bound(const Codes::Half& h) { return fmaxf(fabsf(h.min), fabsf(h.scale * 3.0f - h.min)); }
  DEVICE static Taken take_codes(const uint8_t* row, int piece, int, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    const Q2_K_Scales scales = scales_at(group, p.size, p.at);
    return {load16(group + p.at * 16), {}, {scales.bits, scales.d}};
  }
  DEVICE static Codes codes_of(const Taken& t, int, int v) {
    const Q2_K_Scales scales = {t.words[0], t.words[1]};
    const auto codes = [&](int s) { return for_words(t.q, [=](uint32_t w, int) { return w >> 2 * s & 0x03030303u; }); };
    return {{{codes(v), scales.scale(v), scales.min(v)}, {codes(2 + v), scales.scale(2 + v), scales.min(2 + v)}}};
  }

  // Four times the weights of a piece's first half, sixteen times those of its second.
  struct SmallM : SmallMOf16 {
    static constexpr bool MINS_OF_16 = true;
    // As in the file, two in a word, since registers are scarce.
    uint32_t both_d[2];
    DEVICE void take(const uint8_t* row0, const uint8_t* row1, unsigned size, unsigned at) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const Q2_K_Scales scales = scales_at(r ? row1 : row0, static_cast<int>(size), static_cast<int>(at));
        words[r] = scales.bits, both_d[r] = scales.d;
      }
    }
    DEVICE static int scale(const uint32_t (&w)[2], int h, int part, int r) { return static_cast<int>(w[r] >> 8 * (2 * h + part) & 15); }
    DEVICE static void unpack(uint32_t (&a)[4], const uint32_t (&q)[4], int h, const uint8_t*, const uint8_t*, int, int, int) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const bool first = i < 2;
        a[i] = h ? (first ? q[i] : q[i] >> 2) & 0x30303030 : (first ? q[i] << 2 : q[i]) & 0x0c0c0c0c;
      }
    }
    // Mins as weights, of a piece with these words.
    DEVICE static void mins(uint32_t (&a)[4], const uint32_t (&w)[2], int h) {
#pragma unroll
      for (int i = 0; i < 4; i++) a[i] = __byte_perm(w[i % 2] >> 4 & 0x0f0f0f0f, 0, 0x1111 * (2 * h + i / 2));
    }
    DEVICE float total(int low, int high, float of_mins, int r) const {
      const float d = ptx::f16_to_f32(static_cast<uint16_t>(both_d[r])), dmin = ptx::f16_to_f32(static_cast<uint16_t>(both_d[r] >> 16));
      return fmaf(0.0625f * d, static_cast<float>(low * 4 + high), -__fmul_rn(dmin, of_mins));
    }
  };

  struct Fragment {
    static constexpr int VECTORS = 1, REST = 2;
    DEVICE static int rest_at(int i, int size, int at) { return i == 0 ? 16 * size + at * 4 : 20 * size + at / 16 * 16; }
    uint32_t q[4], scale[4], min[4];
    DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, int at, bool) {
      put_vector(q, load16(vectors));
      const uint32_t bits = load_word(rest + t * 4), d = load_word(rest + 16 * STAGE_ROWS + at % 16);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint32_t s = ptx::mul_f16(Q2_K_Scales::halves(bits >> 16 * i), twice(d, false));
        const uint32_t m = ptx::mul_f16(Q2_K_Scales::halves(bits >> (16 * i + 4)), twice(d, true) ^ 0x80008000);
        scale[2 * i] = twice(s, false), scale[2 * i + 1] = twice(s, true), min[2 * i] = twice(m, false), min[2 * i + 1] = twice(m, true);
      }
    }
    // Numbers in bits 2 s and 2 s + 1 of bytes 0 and 2: times 4^s they are added to 1024.
    DEVICE uint32_t weights(uint32_t w, int s) const {
      const uint32_t x = ptx::mask_and_set(w, 0x00030003u << 2 * s, MAGIC);
      const uint32_t q = s == 0 ? ptx::add_f16(x, 0xe400e400) : ptx::fma_f16(x, 0x3c003c00 - 0x08000800 * s, 0xe400e400 - 0x08000800 * s);
      return ptx::fma_f16(q, scale[s], min[s]);
    }
    DEVICE Four word(int i) const {
      const uint32_t w = q[i % 4], w8 = w >> 8;
      const int s = i / 4;
      return {{weights(w, s), weights(w8, s)}, {weights(w, 2 + s), weights(w8, 2 + s)}};
    }
  };
};
