// Q4_K as kernels read it. Groups: 2 vectors, then headers of blocks of 256.
#pragma once
#include "../k_scales.cuh"
#include "device.cuh"

struct Packed_Q4_K : PackedLayout<144, 2> {
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
  DEVICE static Integers integers(const Piece& p, const X& x) {
    int low, high;
    dot_nibbles(p.q, x, low, high, 0);
    return p.header.integers(low * 16, high, x);
  }
  DEVICE static uint32_t factors(const Piece& p) { return p.header.d; }
  DEVICE static float total(uint32_t d, int sum, int mins) { return KHeader::total(d, 0.0625f, sum, mins); }
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const Place p(k / 64, n);
    const uint8_t* group = group_of(row, p);
    const uint8_t* nibbles = nibbles_at(group, p, k);
    int q[8];
#pragma unroll
    for (int j = 0; j < 8; j++) q[j] = static_cast<int>(nibble(nibbles[j], k));
    KHeader::load8(y, group + 32 * p.size + p.at / 4 * 16, p.at % 4, k / 32 % 2, q);
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const uint8_t* in = source + static_cast<size_t>(piece / 4) * Q4_K::BYTES;
    const Place p(piece, n);
    uint8_t* group = group_of(row, p);
    uint8_t* header = group + 32 * p.size + p.at / 4 * 16;
    if (piece % 4 == 0) {
      for (int i = 0; i < 4; i++) header[i] = in[i];
    }
    pack_k_scales(header + 4, in + 4, piece % 4);
    for (int i = 0; i < 32; i++) group[(i / 16 * p.size + p.at) * 16 + i % 16] = in[16 + piece % 4 * 32 + i];
  }

  DEVICE static Sixteen unpack16(const uint8_t* row, int piece, int j, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    KHeader header;
    header.take(group + 32 * p.size + p.at / 4 * 16, p.at % 4);
    const KFloats scales(header);
    const uint2 q = bytes_of(group, p, j);
    Sixteen y;
#pragma unroll
    for (int i = 0; i < 8; i++) y.low[i] = scales.weight(0, byte_of(q, i) & 15), y.high[i] = scales.weight(1, byte_of(q, i) >> 4);
    return y;
  }

  // Codes have no zero of their own: mins differ.
  static constexpr int ZERO = -1;
  DEVICE static float bound(const Codes::Half& h) { return fmaxf(fabsf(h.min), fabsf(h.scale * 15.0f - h.min)); }

  DEVICE static Taken take_codes(const uint8_t* row, int piece, int v, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    return {load16(group + (v * p.size + p.at) * 16), load16(group + 32 * p.size + p.at / 4 * 16)};
  }

  DEVICE static Codes codes_of(const Taken& t, int piece, int) {
    const KFloats k = k_floats_of(t, piece);
    return {{{low_nibbles(t.q), k.scale[0], k.min[0]}, {high_nibbles(t.q), k.scale[1], k.min[1]}}};
  }

  // The high nibbles stay where they are: sixteen times the weights.
  struct SmallM : SmallMK {
    DEVICE void take(const uint8_t* row0, const uint8_t* row1, unsigned size, unsigned at) {
      SmallMK::take(row0, row1, size, at);
      d[0] *= 0.0625f, d[1] *= 0.0625f;
    }
    DEVICE static void unpack(uint32_t (&a)[4], const uint32_t (&q)[4], int h, const uint8_t*, const uint8_t*, int, int, int) {
#pragma unroll
      for (int i = 0; i < 4; i++) a[i] = q[i] & (h ? 0xf0f0f0f0 : 0x0f0f0f0f);
    }
    DEVICE float total(int low, int high, float of_mins, int r) const { return SmallMK::total(low * 16 + high, of_mins, r); }
  };

  struct Fragment {
    static constexpr int VECTORS = 2, REST = 1;
    DEVICE static int rest_at(int, int size, int at) { return 32 * size + at * 4; }
    uint32_t q[8];
    KHalves k;
    DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, int, bool) {
      put_vector(q, load16(vectors)), put_vector(q + 4, load16(vectors + 64 * STAGE_ROWS));
      KHeader header;
      header.take(rest, t);
      k.take(header);
    }
    DEVICE Four word(int i) const {
      const uint32_t w = q[i], w8 = w >> 8;
      return {{k.weight(0, low_nibbles_f16(w)), k.weight(0, low_nibbles_f16(w8))},
              {k.weight(1, high_nibbles_f16(w)), k.weight(1, high_nibbles_f16(w8))}};
    }
  };
};
