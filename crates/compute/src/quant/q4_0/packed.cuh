// Q4_0 as kernels read it. Groups: 2 vectors of pieces of two blocks, the blocks' d as f16.
#pragma once
#include "../../cuda/common/packed.cuh"
#include "device.cuh"

struct Packed_Q4_0 : PackedLayout<144, 2> {
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
  // 16 times the weights' sums, as `SmallM` has them.
  struct Terms : TermsOf32<2> {
    DEVICE Terms(const Piece& p, const X& x) {
      int low, high;
      dot_nibbles(p.q, x, low, high, 0);
      const int sums[2] = {low * 16, high};
#pragma unroll
      for (int h = 0; h < 2; h++) {
        set(h, FLOAT_UNITS + sums[h] - 128 * x.integer_sum(h), ptx::f16_to_f32(static_cast<uint16_t>(p.d >> 16 * h)), x.scale(h));
      }
    }
  };
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const Place p(k / 64, n);
    const uint8_t* group = group_of(row, p);
    const uint8_t* q = nibbles_at(group, p, k);
    const float d = f16_at(group + 32 * p.size + p.at * 4 + k / 32 % 2 * 2);
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = (static_cast<float>(nibble(q[j], k)) - 8.0f) * d;
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const uint8_t* in[2] = {source + static_cast<size_t>(2 * piece) * Q4_0::BYTES,
                            source + static_cast<size_t>(2 * piece + 1) * Q4_0::BYTES};
    const Place p(piece, n);
    uint8_t* group = group_of(row, p);
    for (int l = 0; l < 32; l++) {
      const int shift = l / 16 * 4;
      group[(l / 16 * p.size + p.at) * 16 + l % 16] =
          static_cast<uint8_t>((in[0][2 + l % 16] >> shift & 15) | (in[1][2 + l % 16] >> shift & 15) << 4);
    }
    for (int half = 0; half < 2; half++) {
      for (int i = 0; i < 2; i++) group[32 * p.size + 4 * p.at + 2 * half + i] = in[half][i];
    }
  }

  DEVICE static Sixteen unpack16(const uint8_t* row, int piece, int j, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    const uint2 q = bytes_of(group, p, j);
    const uint32_t d = load_word(group + 32 * p.size + p.at * 4);
    const float d0 = ptx::f16_to_f32(static_cast<uint16_t>(d)), d1 = ptx::f16_to_f32(static_cast<uint16_t>(d >> 16));
    Sixteen y;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      y.low[i] = (float_of(byte_of(q, i) & 15) - 8.0f) * d0;
      y.high[i] = (float_of(byte_of(q, i) >> 4) - 8.0f) * d1;
    }
    return y;
  }

  static constexpr int ZERO = 8;
  DEVICE static float bound(const Codes::Half& h) { return 8.0f * fabsf(h.scale); }

  DEVICE static Taken take_codes(const uint8_t* row, int piece, int v, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    return {load16(group + (v * p.size + p.at) * 16), {}, {load_word(group + 32 * p.size + p.at * 4)}};
  }

  DEVICE static Codes codes_of(const Taken& t, int, int) {
    const uint32_t d = t.words[0];
    const float d0 = ptx::f16_to_f32(static_cast<uint16_t>(d)), d1 = ptx::f16_to_f32(static_cast<uint16_t>(d >> 16));
    return {{{low_nibbles(t.q), d0, 0}, {high_nibbles(t.q), d1, 0}}};
  }

  // Sixteen times the weights, less their offset.
  struct SmallM : SmallMOf32 {
    static constexpr bool UNPACKED = false;
    DEVICE void take(const uint8_t* row0, const uint8_t* row1, unsigned size, unsigned at) {
      words[0] = *reinterpret_cast<const uint32_t*>(row0 + 32 * size + at * 4);
      words[1] = *reinterpret_cast<const uint32_t*>(row1 + 32 * size + at * 4);
    }
    DEVICE static void unpack(uint32_t (&a)[4], const uint32_t (&q)[4], int h, const uint8_t*, const uint8_t*, int, int, int) {
#pragma unroll
      for (int i = 0; i < 4; i++) a[i] = ((h ? q[i] : q[i] << 4) & 0xf0f0f0f0) ^ 0x80808080;
    }
    DEVICE static float total(float low, float high, float, int) { return (low + high) * 0.0625f; }
  };

  // Rows may end within four pieces.
  struct Fragment {
    static constexpr int VECTORS = 2, REST = 1;
    DEVICE static int rest_at(int, int size, int at) { return 32 * size + at * 4; }
    uint32_t q[8], scale[2];
    DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, int, bool valid) {
      put_vector(q, load16(vectors)), put_vector(q + 4, load16(vectors + 64 * STAGE_ROWS));
      const uint32_t d = valid ? *reinterpret_cast<const uint32_t*>(rest + t * 4) : 0;
      scale[0] = twice(d, false), scale[1] = twice(d, true);
    }
    DEVICE Four word(int i) const {
      const uint32_t w = q[i], w8 = w >> 8;
      const auto low = [&](uint32_t nibbles) {
        return ptx::mul_f16(ptx::add_f16(ptx::mask_and_set(nibbles, 0x000f000f, MAGIC), 0xe408e408), scale[0]);
      };
      const auto up = [&](uint32_t nibbles) {
        return ptx::mul_f16(ptx::fma_f16(ptx::mask_and_set(nibbles, 0x00f000f0, MAGIC), 0x2c002c00, 0xd480d480), scale[1]);
      };
      return {{low(w), low(w8)}, {up(w), up(w8)}};
    }
  };
};
