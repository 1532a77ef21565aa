// Q5_K as kernels read it. Groups: those of Q4_K, and then 8 bytes of fifth bits for each piece (FifthBits).
#pragma once
#include "../k_scales.cuh"
#include "device.cuh"

struct Packed_Q5_K : PackedLayout<176, 1> {
  static constexpr bool WIDE_RING = true;
  struct Piece {
    uint4 q[2];
    FifthBits fifths;
    KHeader header;
  };
  DEVICE static void take(Piece& p, const uint8_t* group, int size, int at) {
    take_vectors(p.q, group, size, at);
    p.header.take(group + 32 * size + at / 4 * 16, at % 4);
    p.fifths = FifthBits::load(group + 36 * size + at * 8);
  }
  DEVICE static float dot(const Piece& p, const X& x) {
    int low, high;
    p.fifths.dot(p.q, x, low, high);
    return p.header.apply(units(low), units(high), x);
  }
  DEVICE static Integers integers(const Piece& p, const X& x) {
    int low, high;
    p.fifths.dot(p.q, x, low, high, 0);
    return p.header.integers(low, high, x);
  }
  DEVICE static uint32_t factors(const Piece& p) { return p.header.d; }
  DEVICE static float total(uint32_t d, int sum, int mins) { return KHeader::total(d, 1.0f, sum, mins); }
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const Place p(k / 64, n);
    const uint8_t* group = group_of(row, p);
    const uint8_t* nibbles = nibbles_at(group, p, k);
    const uint32_t fifths = load_word(group + p.size * 36 + p.at * 8 + k / 32 % 2 * 4);
    int q[8];
#pragma unroll
    for (int j = 0; j < 8; j++) q[j] = static_cast<int>(nibble(nibbles[j], k) | FifthBits::of_weight(fifths, k % 32 + j));
    KHeader::load8(y, group + 32 * p.size + p.at / 4 * 16, p.at % 4, k / 32 % 2, q);
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const uint8_t* in = source + static_cast<size_t>(piece / 4) * Q5_K::BYTES;
    const Place p(piece, n);
    uint8_t* group = group_of(row, p);
    uint8_t* header = group + 32 * p.size + p.at / 4 * 16;
    const int c = piece % 4;
    if (c == 0) {
      for (int i = 0; i < 4; i++) header[i] = in[i];
    }
    pack_k_scales(header + 4, in + 4, c);
    for (int half = 0; half < 2; half++) {
      FifthBits::pack(group + p.size * 36 + p.at * 8 + half * 4, [&](int l) { return in[16 + l] >> (2 * c + half) & 1u; });
    }
    for (int i = 0; i < 32; i++) group[(i / 16 * p.size + p.at) * 16 + i % 16] = in[48 + c * 32 + i];
  }

  DEVICE static Sixteen unpack16(const uint8_t* row, int piece, int j, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    KHeader header;
    header.take(group + 32 * p.size + p.at / 4 * 16, p.at % 4);
    const KFloats scales(header);
    const uint2 fifths = load_pair(group + 36 * p.size + p.at * 8), q = bytes_of(group, p, j);
    Sixteen y;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int bit = 8 * (i % 4) + 2 * j + i / 4;
      y.low[i] = scales.weight(0, (byte_of(q, i) & 15) | (fifths.x >> bit & 1) << 4);
      y.high[i] = scales.weight(1, byte_of(q, i) >> 4 | (fifths.y >> bit & 1) << 4);
    }
    return y;
  }

  // Codes have no zero of their own: mins differ.
  static constexpr int ZERO = -1;
  DEVICE static float bound(const Codes::Half& h) { return fmaxf(fabsf(h.min), fabsf(h.scale * 31.0f - h.min)); }

  DEVICE static Taken take_codes(const uint8_t* row, int piece, int v, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    const uint2 fifths = load_pair(group + 36 * p.size + p.at * 8);
    return {load16(group + (v * p.size + p.at) * 16), load16(group + 32 * p.size + p.at / 4 * 16), {fifths.x, fifths.y}};
  }

  DEVICE static Codes codes_of(const Taken& t, int piece, int v) {
    const KFloats k = k_floats_of(t, piece);
    return {{{FifthBits::above(low_nibbles(t.q), t.words[0], v), k.scale[0], k.min[0]},
             {FifthBits::above(high_nibbles(t.q), t.words[1], v), k.scale[1], k.min[1]}}};
  }

  struct SmallM : SmallMK {
    // Bit 8 b + j of a word of fifth bits is that of weight 4 j + b: lane t wants j = t and 4 + t.
    DEVICE static void unpack(uint32_t (&a)[4], const uint32_t (&q)[4], int h, const uint8_t* row0, const uint8_t* row1, int size, int at,
                              int t) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const uint32_t fifths = *reinterpret_cast<const uint32_t*>((i % 2 ? row1 : row0) + 36 * size + at * 8 + 4 * h);
        a[i] = (h ? q[i] >> 4 & 0x0f0f0f0f : q[i] & 0x0f0f0f0f) | (rotate(fifths, 4 - i / 2 * 4 - t) & 0x10101010);
      }
    }
    DEVICE float total(int low, int high, float of_mins, int r) const { return SmallMK::total(low + high, of_mins, r); }
  };

  struct Fragment {
    static constexpr int VECTORS = 2, REST = 3;
    DEVICE static int rest_at(int i, int size, int at) { return i == 0 ? 32 * size + at * 4 : 36 * size + at * 8 + (i - 1) * 16; }
    uint32_t q[8];
    uint2 fifths;
    KHalves k;
    DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, int, bool) {
      put_vector(q, load16(vectors)), put_vector(q + 4, load16(vectors + 64 * STAGE_ROWS));
      fifths = load_pair(rest + (1 + t / 2) * 16 * STAGE_ROWS + t % 2 * 8);
      KHeader header;
      header.take(rest, t);
      k.take(header);
    }
    DEVICE Four word(int i) const {
      const Four v = five_bits_f16<0xe400e400, 0xd400d400>(q[i], fifths, i);
      return {{k.weight(0, v.low[0]), k.weight(0, v.low[1])}, {k.weight(1, v.high[0]), k.weight(1, v.high[1])}};
    }
  };
};
