// Q5_K as kernels read it. Groups: those of Q4_K, and then 8 bytes of fifth bits for each piece: bit 8 b + j of its first word is that of
// weight 4 j + b, of its second word that of weight 32 + 4 j + b.
#pragma once
#include "../k_scales.cuh"
#include "device.cuh"

struct Packed_Q5_K {
  static constexpr bool PACKED = true, PAIRS_OF_SUMS = false;
  static constexpr int ROWS = 1;
  static constexpr bool WIDE_RING = true;
  DEVICE static constexpr int bytes(int size) { return padded(44 * size); }
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

  DEVICE static Sixteen unpack16(const uint8_t* row, int piece, int j, int n) {
    const Place p(piece, n);
    const uint8_t* group = row + group_at<Packed_Q5_K>(p.group);
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
    const uint8_t* group = row + group_at<Packed_Q5_K>(p.group);
    const uint2 fifths = load_pair(group + 36 * p.size + p.at * 8);
    return {load16(group + (v * p.size + p.at) * 16), load16(group + 32 * p.size + p.at / 4 * 16), {fifths.x, fifths.y}};
  }

  DEVICE static Codes codes_of(const Taken& t, int piece, int v) {
    const KFloats k = k_floats_of(t, piece);
    const auto with = [&](uint32_t bits) { return [=](uint32_t w, int i) { return w | (bits >> (4 * v + i) & 0x01010101u) << 4; }; };
    return {{{for_words(low_nibbles(t.q), with(t.words[0])), k.scale[0], k.min[0]},
             {for_words(high_nibbles(t.q), with(t.words[1])), k.scale[1], k.min[1]}}};
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
    uint32_t q[8], fifths[2];
    KHalves k;
    DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, int, bool) {
      put_vector(q, load16(vectors)), put_vector(q + 4, load16(vectors + 64 * STAGE_ROWS));
      const uint2 f = *reinterpret_cast<const uint2*>(rest + (1 + t / 2) * 16 * STAGE_ROWS + t % 2 * 8);
      fifths[0] = f.x, fifths[1] = f.y;
      KHeader header;
      header.take(rest, t);
      k.take(header);
    }
    DEVICE Four word(int i) const {
      const uint32_t w = q[i], w8 = w >> 8, u = fifths[0], v = fifths[1];
      // Bit i of each byte is the fifth: to bit 4, and for the high half to bit 8.
      const uint32_t u0 = i <= 4 ? u << (4 - i) : u >> (i - 4), u1 = u >> (4 + i), v0 = v << (8 - i), v1 = v >> i;
      const auto low = [&](uint32_t nibbles, uint32_t fifth) {
        return ptx::add_f16(ptx::mask_and_set(fifth, 0x00100010, ptx::mask_and_set(nibbles, 0x000f000f, MAGIC)), 0xe400e400);
      };
      const auto up = [&](uint32_t nibbles, uint32_t fifth) {
        return ptx::fma_f16(ptx::mask_and_set(fifth, 0x01000100, ptx::mask_and_set(nibbles, 0x00f000f0, MAGIC)), 0x2c002c00, 0xd400d400);
      };
      return {{k.weight(0, low(w, u0)), k.weight(0, low(w8, u1))}, {k.weight(1, up(w, v0)), k.weight(1, up(w8, v1))}};
    }
  };
};
