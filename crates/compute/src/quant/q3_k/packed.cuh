// Q3_K as kernels read it. Groups: one vector and 8 bytes of each piece, then 14 bytes of each block of 256: 16 scales of six bits with a
// sign, and d as f16.
//
// In byte b of word v of the vector, bits 0 to 2 are weight 4 v + b, bits 3 to 5 weight 16 + 4 v + b, bits 6 and 7 the first bits of weight
// 32 + 4 v + b. In byte b of word k of the 8 bytes, bits 0 to 2 are weight 48 + 8 k + b, bits 3 to 5 weight 52 + 8 k + b, bit 6 is the
// third bit of weight 32 + 8 k + b, bit 7 that of weight 36 + 8 k + b. So three quarters of the weights are where a mask finds them.
#pragma once
#include "../../cuda/common/packed.cuh"
#include "device.cuh"

// Of a block's last 14 bytes, what one piece wants: its four scales, of which the first is in the last bits.
struct Q3_K_Scales {
  static constexpr int BYTES = 14;
  uint32_t bits;
  uint16_t d;
  // `at`: where a byte of the 14 is.
  template <class At>
  DEVICE static Q3_K_Scales read(int piece_of_block, At at) {
    const int first = 3 * piece_of_block & ~1;
    const uint32_t words = u16_at(at(first)) | u16_at(at(first + 2)) << 16;
    return {words >> 8 * (piece_of_block % 2), static_cast<uint16_t>(u16_at(at(12)))};
  }
  DEVICE static int integer(uint32_t bits, int i) { return static_cast<int>(bits << (26 - 6 * i)) >> 26; }
  DEVICE int integer(int i) const { return integer(bits, i); }
  DEVICE float scale(int i) const { return ptx::f16_to_f32(d) * static_cast<float>(integer(i)); }
  // Scales 2 i and 2 i + 1 in half precision.
  DEVICE uint32_t halves(int i) const {
    const uint32_t unsigned_bits = (bits ^ 0x820820u) >> 12 * i;
    const uint32_t s = ptx::mask_and_set(unsigned_bits << 10, 0x3f0000, ptx::mask_and_set(unsigned_bits, 0x3f, MAGIC));
    return ptx::mul_f16(ptx::add_f16(s, 0xe420e420), twice(d, false));
  }
  DEVICE static void pack(uint8_t* p, int piece_of_block, const uint8_t* block) {
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++) {
      const int s = 4 * piece_of_block + i;
      const uint32_t low = block[96 + s % 8] >> s / 8 * 4 & 15, high = block[104 + s % 4] >> s / 4 * 2 & 3;
      bits |= ((low | high << 4) ^ 32) << 6 * i;
    }
    for (int i = 0; i < 3; i++) p[3 * piece_of_block + i] = static_cast<uint8_t>(bits >> 8 * i);
    if (piece_of_block == 0) p[12] = block[108], p[13] = block[109];
  }
};

struct Packed_Q3_K : PackedLayout<110, 2> {
  static constexpr bool OF_EXPERTS = false;
  static constexpr bool PAIRS_OF_SUMS = true;
  struct Piece {
    uint4 q;
    uint2 rest;
    Q3_K_Scales scales;
  };
  DEVICE static const uint8_t* vector_at(const uint8_t* group, int at) { return group + at * 16; }
  DEVICE static const uint8_t* rest_at(const uint8_t* group, int size, int at) { return group + 16 * size + at * 8; }
  DEVICE static Q3_K_Scales scales_at(const uint8_t* group, int size, int at) {
    return Q3_K_Scales::read(at % 4, [=](int i) { return group + 24 * size + at / 4 * Q3_K_Scales::BYTES + i; });
  }
  DEVICE static void take(Piece& p, const uint8_t* group, int size, int at) {
    p.q = load16(vector_at(group, at)), p.rest = load_pair(rest_at(group, size, at)), p.scales = scales_at(group, size, at);
  }
  // Sums of both halves by scale, which begin with `first`. Those over 16 products are multiples of what their bits' places make of them.
  DEVICE static void dot(const Piece& p, const X& x, int& low, int& high, int first) {
    int sums[4] = {}, eights = 0;
#pragma unroll
    for (int v = 0; v < 4; v++) {
      const uint32_t w = word(p.q, v), rest = v < 2 ? p.rest.x : p.rest.y;
      sums[0] = ptx::dp4a_unsigned(w & 0x07070707u, x.q(v), sums[0]);
      sums[1] = ptx::dp4a_unsigned(w & 0x38383838u, x.q(4 + v), sums[1]);
      sums[2] = ptx::dp4a_unsigned((w >> 2 & 0x30303030u) | (rest >> v % 2 & 0x40404040u), x.q(8 + v), sums[2]);
      int& last = v % 2 ? eights : sums[3];
      last = ptx::dp4a_unsigned(rest & (v % 2 ? 0x38383838u : 0x07070707u), x.q(12 + v), last);
    }
    const int of_weights[4] = {sums[0] - 4 * low_half(x.sums(0)), (sums[1] >> 3) - 4 * high_half(x.sums(0)),
                               (sums[2] >> 4) - 4 * low_half(x.sums(1)), sums[3] + (eights >> 3) - 4 * high_half(x.sums(1))};
    low = first + p.scales.integer(0) * of_weights[0] + p.scales.integer(1) * of_weights[1];
    high = first + p.scales.integer(2) * of_weights[2] + p.scales.integer(3) * of_weights[3];
  }
  DEVICE static float dot(const Piece& p, const X& x) {
    int low, high;
    dot(p, x, low, high, FLOAT_UNITS);
    return ptx::f16_to_f32(p.scales.d) * (units(low) * x.scale(0) + units(high) * x.scale(1));
  }
  // 32 times the weights' sums, as `SmallM` has them.
  DEVICE static Integers integers(const Piece& p, const X& x) {
    int low, high;
    dot(p, x, low, high, 0);
    return {(low + high) * 32, 0};
  }
  DEVICE static uint32_t factors(const Piece& p) { return p.scales.d; }
  DEVICE static float total(uint32_t d, int sum, int) { return 0.03125f * ptx::f16_to_f32(static_cast<uint16_t>(d)) * static_cast<float>(sum); }

  // Weight l of a piece, plus 4.
  DEVICE static uint32_t code(const uint8_t* vector, const uint8_t* rest, int l) {
    const uint32_t q = vector[l % 16], r = rest[l % 16 / 8 * 4 + l % 4];
    const int odd = l % 8 / 4;
    return l < 32 ? q >> l / 16 * 3 & 7 : l < 48 ? q >> 6 | (r >> (6 + odd) & 1) << 2 : r >> 3 * odd & 7;
  }
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const Place p(k / 64, n);
    const uint8_t* group = group_of(row, p);
    const float scale = scales_at(group, p.size, p.at).scale(k % 64 / 16);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const uint32_t q = code(vector_at(group, p.at), rest_at(group, p.size, p.at), k % 64 + j);
      y[j] = scale * (static_cast<float>(q) - 4.0f);
    }
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const uint8_t* in = source + static_cast<size_t>(piece / 4) * Q3_K::BYTES;
    const Place p(piece, n);
    uint8_t* group = group_of(row, p);
    const auto q = [&](int l) {
      const int i = 64 * (piece % 4) + l;
      return (in[32 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3u) | (in[i % 32] >> i / 32 & 1u) << 2;
    };
    for (int i = 0; i < 16; i++) group[p.at * 16 + i] = static_cast<uint8_t>(q(i) | q(16 + i) << 3 | (q(32 + i) & 3) << 6);
    for (int i = 0; i < 8; i++) {
      const int l = i / 4 * 8 + i % 4;
      group[16 * p.size + p.at * 8 + i] =
          static_cast<uint8_t>(q(48 + l) | q(52 + l) << 3 | (q(32 + l) >> 2) << 6 | (q(36 + l) >> 2) << 7);
    }
    Q3_K_Scales::pack(group + 24 * p.size + p.at / 4 * Q3_K_Scales::BYTES, piece % 4, in);
  }

  DEVICE static Sixteen unpack16(const uint8_t* row, int piece, int j, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    const uint2 q = bytes_of(group, p, j % 2);
    const uint32_t rest = load_word(rest_at(group, p.size, p.at) + j % 2 * 4);
    const Q3_K_Scales scales = scales_at(group, p.size, p.at);
    const float s0 = scales.scale(j / 2), s1 = scales.scale(2 + j / 2);
    Sixteen y;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t r = rest >> i % 4 * 8, third = byte_of(q, i) >> 6 | (r >> (6 + i / 4) & 1) << 2, last = r >> i / 4 * 3 & 7;
      y.low[i] = s0 * (float_of(byte_of(q, i) >> j / 2 * 3 & 7) - 4.0f);
      y.high[i] = s1 * (float_of(j < 2 ? third : last) - 4.0f);
    }
    return y;
  }

  static constexpr int ZERO = 4;
  DEVICE static float bound(const Codes::Half& h) { return 4.0f * fabsf(h.scale); }
  DEVICE static Taken take_codes(const uint8_t* row, int piece, int, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    const uint2 rest = load_pair(rest_at(group, p.size, p.at));
    const Q3_K_Scales scales = scales_at(group, p.size, p.at);
    return {load16(vector_at(group, p.at)), {scales.d}, {rest.x, rest.y, scales.bits}};
  }
  DEVICE static Codes codes_of(const Taken& t, int, int v) {
    const Q3_K_Scales scales = {t.words[2], static_cast<uint16_t>(t.more.x)};
    const uint4 low = for_words(t.q, [=](uint32_t w, int) { return w >> 3 * v & 0x07070707u; });
    const uint4 high = for_words(t.q, [&](uint32_t w, int i) {
      const uint32_t rest = t.words[i / 2];
      return v == 0 ? (w >> 6 & 0x03030303u) | (rest >> (4 + i % 2) & 0x04040404u) : rest >> 3 * (i % 2) & 0x07070707u;
    });
    return {{{low, scales.scale(v), 0}, {high, scales.scale(2 + v), 0}}};
  }

  // Weights times 32.
  struct SmallM : SmallMOf16 {
    DEVICE void take(const uint8_t* row0, const uint8_t* row1, unsigned size, unsigned at) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const Q3_K_Scales scales = scales_at(r ? row1 : row0, static_cast<int>(size), static_cast<int>(at));
        words[r] = scales.bits, d[r] = 0.03125f * ptx::f16_to_f32(scales.d);
      }
    }
    DEVICE static int scale(const uint32_t (&w)[2], int h, int part, int r) { return Q3_K_Scales::integer(w[r], 2 * h + part); }
    DEVICE static void unpack(uint32_t (&a)[4], const uint32_t (&q)[4], int h, const uint8_t* row0, const uint8_t* row1, int size, int at,
                              int t) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (h == 0) {
          a[i] = (q[i] << (i < 2 ? 5 : 2) & 0xe0e0e0e0) ^ 0x80808080;
          continue;
        }
        const uint32_t rest = load_word(rest_at(i % 2 ? row1 : row0, size, at) + t / 2 * 4);
        a[i] = i < 2 ? ptx::mask_and_set(q[i] >> 1, 0x60606060, 0x80808080) ^ (rest << (1 - t % 2) & 0x80808080)
                     : (rest << (5 - t % 2 * 3) & 0xe0e0e0e0) ^ 0x80808080;
      }
    }
  };

  struct Fragment {
    static constexpr int VECTORS = 1, REST = 4;
    // The block's last 14 bytes may begin within one box and end in the next.
    DEVICE static int rest_at(int i, int size, int at) {
      return i < 2 ? 16 * size + at * 8 + i * 16 : 24 * size + at / 4 * Q3_K_Scales::BYTES / 16 * 16 + (i - 2) * 16;
    }
    uint32_t q[4], rest[2], scale[4];
    DEVICE void load(const uint8_t* vectors, const uint8_t* rests, int t, int at, bool) {
      put_vector(q, load16(vectors));
      const uint2 pair = load_pair(rests + t / 2 * 16 * STAGE_ROWS + t % 2 * 8);
      rest[0] = pair.x, rest[1] = pair.y;
      const int first = 32 + at / 4 * Q3_K_Scales::BYTES % 16;
      const Q3_K_Scales scales =
          Q3_K_Scales::read(t, [=](int i) { return rests + (first + i) / 16 * 16 * STAGE_ROWS + (first + i) % 16; });
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint32_t pair = scales.halves(i);
        scale[2 * i] = twice(pair, false), scale[2 * i + 1] = twice(pair, true);
      }
    }
    // Numbers in bits 0 to 2 of bytes 0 and 2, or in bits 3 to 5, less 4.
    DEVICE static uint32_t three_bits(uint32_t w, bool upper) {
      return upper ? ptx::fma_f16(ptx::mask_and_set(w, 0x00380038, MAGIC), 0x30003000, 0xd820d820)
                   : ptx::add_f16(ptx::mask_and_set(w, 0x00070007, MAGIC), 0xe404e404);
    }
    // Those in bits 6 and 7, of which the third bit is bit 8 of `third`.
    DEVICE static uint32_t split_bits(uint32_t w, uint32_t third) {
      const uint32_t x = ptx::mask_and_set(third, 0x01000100, ptx::mask_and_set(w, 0x00c000c0, MAGIC));
      return ptx::fma_f16(x, 0x24002400, 0xcd00cd00);
    }
    DEVICE Four word(int i) const {
      const int v = i % 4, s = i / 4, odd = v % 2;
      const uint32_t w = q[v], r = rest[v / 2];
      const uint32_t low[2] = {three_bits(w, s), three_bits(w >> 8, s)};
      const uint32_t high[2] = {s ? three_bits(r, odd) : split_bits(w, r << (2 - odd)),
                                s ? three_bits(r >> 8, odd) : split_bits(w >> 8, r >> (6 + odd))};
      return {{ptx::mul_f16(low[0], scale[s]), ptx::mul_f16(low[1], scale[s])},
              {ptx::mul_f16(high[0], scale[2 + s]), ptx::mul_f16(high[1], scale[2 + s])}};
    }
  };
};
