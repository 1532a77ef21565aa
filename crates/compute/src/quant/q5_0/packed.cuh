// Q5_0 as kernels read it. Groups: 2 vectors of low nibbles of two blocks, 8 bytes of fifth bits for each piece (FifthBits), and, from a
// multiple of 16 bytes on, the blocks' d as f16.
#pragma once
#include "../../cuda/common/packed.cuh"
#include "device.cuh"

struct Packed_Q5_0 : PackedLayout<176, 1> {
  static constexpr bool WIDE_RING = true;
  // Where the blocks' d begin in a group of `size` pieces.
  DEVICE static constexpr int scales_at(int size) { return 40 * size + 8 & ~15; }
  DEVICE static constexpr int bytes(int size) { return padded(scales_at(size) + 4 * size); }
  struct Piece {
    uint4 q[2];
    FifthBits fifths;
    uint32_t d;
  };
  DEVICE static void take(Piece& p, const uint8_t* group, int size, int at) {
    take_vectors(p.q, group, size, at);
    p.fifths = FifthBits::load(group + 32 * size + at * 8);
    p.d = load_word(group + scales_at(size) + at * 4);
  }
  DEVICE static float scale_of(uint32_t d, int half) { return ptx::f16_to_f32(static_cast<uint16_t>(d >> 16 * half)); }
  DEVICE static float dot(const Piece& p, const X& x) {
    int low, high;
    p.fifths.dot(p.q, x, low, high);
    const float of_low = x.scale(0) * units(low) - 16.0f * x.sum(0), of_high = x.scale(1) * units(high) - 16.0f * x.sum(1);
    return scale_of(p.d, 0) * of_low + scale_of(p.d, 1) * of_high;
  }
  // 8 times the weights' sums, as `SmallM` has them.
  struct Terms : TermsOf32<2> {
    DEVICE Terms(const Piece& p, const X& x) {
      int sums[2];
      p.fifths.dot(p.q, x, sums[0], sums[1], 0);
#pragma unroll
      for (int h = 0; h < 2; h++) set(h, FLOAT_UNITS + 8 * sums[h] - 128 * x.integer_sum(h), scale_of(p.d, h), x.scale(h));
    }
  };
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const Place p(k / 64, n);
    const uint8_t* group = group_of(row, p);
    const uint8_t* nibbles = nibbles_at(group, p, k);
    const uint32_t fifths = load_word(group + 32 * p.size + p.at * 8 + k / 32 % 2 * 4);
    const float d = scale_of(load_word(group + scales_at(p.size) + p.at * 4), k / 32 % 2);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const uint32_t q = nibble(nibbles[j], k) | FifthBits::of_weight(fifths, k % 32 + j);
      y[j] = (static_cast<float>(q) - 16.0f) * d;
    }
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const uint8_t* in[2] = {source + static_cast<size_t>(2 * piece) * Q5_0::BYTES,
                            source + static_cast<size_t>(2 * piece + 1) * Q5_0::BYTES};
    const Place p(piece, n);
    uint8_t* group = group_of(row, p);
    for (int l = 0; l < 32; l++) {
      const int shift = l / 16 * 4;
      group[(l / 16 * p.size + p.at) * 16 + l % 16] =
          static_cast<uint8_t>((in[0][6 + l % 16] >> shift & 15) | (in[1][6 + l % 16] >> shift & 15) << 4);
    }
    for (int half = 0; half < 2; half++) {
      const uint32_t fifths = u32_at(in[half] + 2);
      FifthBits::pack(group + 32 * p.size + 8 * p.at + 4 * half, [=](int l) { return fifths >> l & 1; });
      for (int i = 0; i < 2; i++) group[scales_at(p.size) + 4 * p.at + 2 * half + i] = in[half][i];
    }
  }

  DEVICE static Sixteen unpack16(const uint8_t* row, int piece, int j, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    const uint2 q = bytes_of(group, p, j), fifths = load_pair(group + 32 * p.size + p.at * 8);
    const uint32_t d = load_word(group + scales_at(p.size) + p.at * 4);
    const float d0 = scale_of(d, 0), d1 = scale_of(d, 1);
    Sixteen y;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int bit = 8 * (i % 4) + 2 * j + i / 4;
      y.low[i] = (float_of((byte_of(q, i) & 15) | (fifths.x >> bit & 1) << 4) - 16.0f) * d0;
      y.high[i] = (float_of(byte_of(q, i) >> 4 | (fifths.y >> bit & 1) << 4) - 16.0f) * d1;
    }
    return y;
  }

  static constexpr int ZERO = 16;
  DEVICE static float bound(const Codes::Half& h) { return 16.0f * fabsf(h.scale); }
  DEVICE static Taken take_codes(const uint8_t* row, int piece, int v, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    const uint2 fifths = load_pair(group + 32 * p.size + p.at * 8);
    return {load16(group + (v * p.size + p.at) * 16), {}, {fifths.x, fifths.y, load_word(group + scales_at(p.size) + p.at * 4)}};
  }
  DEVICE static Codes codes_of(const Taken& t, int, int v) {
    return {{{FifthBits::above(low_nibbles(t.q), t.words[0], v), scale_of(t.words[2], 0), 0},
             {FifthBits::above(high_nibbles(t.q), t.words[1], v), scale_of(t.words[2], 1), 0}}};
  }

  // Eight times the weights, less their offset.
  struct SmallM : SmallMOf32 {
    static constexpr bool UNPACKED = false;
    DEVICE void take(const uint8_t* row0, const uint8_t* row1, unsigned size, unsigned at) {
      words[0] = load_word(row0 + scales_at(size) + at * 4);
      words[1] = load_word(row1 + scales_at(size) + at * 4);
    }
    // Lane t wants the fifth bits of weights 4 t to 4 t + 3, and of those 16 further on.
    // Addresses are computed where they are wanted, since registers for all of them are lacking.
    DEVICE static void unpack(uint32_t (&a)[4], const uint32_t (&q)[4], int h, const uint8_t* row0, const uint8_t* row1, int size, int at,
                              int t) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const uint32_t fifths = load_word((i % 2 ? row1 : row0) + 32 * ptx::anew(size) + at * 8 + 4 * h);
        a[i] = ptx::mask_and_set(h ? q[i] >> 1 : q[i] << 3, 0x78787878, 0x80808080) ^ (rotate(fifths, 7 - i / 2 * 4 - t) & 0x80808080);
      }
    }
    DEVICE static float total(float low, float high, float, int) { return (low + high) * 0.125f; }
  };

  // Rows may end within four pieces.
  struct Fragment {
    static constexpr int VECTORS = 2, REST = 3;
    DEVICE static int rest_at(int i, int size, int at) { return i < 2 ? 32 * size + at * 8 + i * 16 : scales_at(size) + at * 4; }
    uint32_t q[8], scale[2];
    uint2 fifths;
    DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, int, bool valid) {
      put_vector(q, load16(vectors)), put_vector(q + 4, load16(vectors + 64 * STAGE_ROWS));
      fifths = load_pair(rest + t / 2 * 16 * STAGE_ROWS + t % 2 * 8);
      const uint32_t d = valid ? load_word(rest + 2 * 16 * STAGE_ROWS + t * 4) : 0;
      scale[0] = twice(d, false), scale[1] = twice(d, true);
    }
    DEVICE Four word(int i) const {
      const Four v = five_bits_f16<0xe410e410, 0xd500d500>(q[i], fifths, i);
      return {{ptx::mul_f16(v.low[0], scale[0]), ptx::mul_f16(v.low[1], scale[0])},
              {ptx::mul_f16(v.high[0], scale[1]), ptx::mul_f16(v.high[1], scale[1])}};
    }
  };
};
