// Q8_0 as kernels read it. Groups: 4 vectors of pieces of two blocks, the blocks' d as f16.
#pragma once
#include "../../cuda/common/packed.cuh"
#include "device.cuh"

struct Packed_Q8_0 : PackedLayout<272, 1> {
  static constexpr bool WIDE_RING = true;
  struct Piece {
    uint4 q[4];
    uint32_t d;
  };
  DEVICE static void take(Piece& p, const uint8_t* group, int size, int at) {
    take_vectors(p.q, group, size, at);
    p.d = *reinterpret_cast<const uint32_t*>(group + 64 * size + at * 4);
  }
  // Sums of both halves, in units of FLOAT_UNITS.
  DEVICE static void dot(const Piece& p, const X& x, int& low, int& high) {
    low = high = FLOAT_UNITS;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      low = __dp4a(static_cast<int>(word(p.q[i / 4], i % 4)), x.q(i), low);
      high = __dp4a(static_cast<int>(word(p.q[2 + i / 4], i % 4)), x.q(8 + i), high);
    }
  }
  DEVICE static float dot(const Piece& p, const X& x) {
    int low, high;
    dot(p, x, low, high);
    const float d0 = ptx::f16_to_f32(static_cast<uint16_t>(p.d)), d1 = ptx::f16_to_f32(static_cast<uint16_t>(p.d >> 16));
    return d0 * x.scale(0) * units(low) + d1 * x.scale(1) * units(high);
  }
  struct Terms : TermsOf32<2> {
    DEVICE Terms(const Piece& p, const X& x) {
      int sums[2];
      dot(p, x, sums[0], sums[1]);
#pragma unroll
      for (int h = 0; h < 2; h++) set(h, sums[h], ptx::f16_to_f32(static_cast<uint16_t>(p.d >> 16 * h)), x.scale(h));
    }
  };
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const Place p(k / 64, n);
    const uint8_t* group = group_of(row, p);
    const uint8_t* q = group + (k % 64 / 16 * p.size + p.at) * 16 + k % 16;
    const float d = f16_at(group + 64 * p.size + p.at * 4 + k / 32 % 2 * 2);
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = static_cast<float>(static_cast<int8_t>(q[j])) * d;
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const Place p(piece, n);
    uint8_t* group = group_of(row, p);
    for (int half = 0; half < 2; half++) {
      const uint8_t* in = source + static_cast<size_t>(2 * piece + half) * Q8_0::BYTES;
      for (int i = 0; i < 32; i++) group[((2 * half + i / 16) * p.size + p.at) * 16 + i % 16] = in[2 + i];
      for (int i = 0; i < 2; i++) group[64 * p.size + 4 * p.at + 2 * half + i] = in[i];
    }
  }

  DEVICE static Sixteen unpack16(const uint8_t* row, int piece, int j, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    const uint2 q0 = bytes_of(group, p, j), q1 = bytes_of(group + 2 * p.size * 16, p, j);
    const uint32_t d = load_word(group + 64 * p.size + p.at * 4);
    const float d0 = ptx::f16_to_f32(static_cast<uint16_t>(d)), d1 = ptx::f16_to_f32(static_cast<uint16_t>(d >> 16));
    Sixteen y;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      y.low[i] = (float_of(byte_of(q0, i) ^ 128) - 128.0f) * d0;
      y.high[i] = (float_of(byte_of(q1, i) ^ 128) - 128.0f) * d1;
    }
    return y;
  }

  static constexpr int ZERO = 128;
  // No block has -128, unless it was not made by rounding to 127; that may become -128 here, too.
  DEVICE static float bound(const Codes::Half& h) { return 127.0f * fabsf(h.scale); }

  DEVICE static Taken take_codes(const uint8_t* row, int piece, int v, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    const uint8_t* q = group + (v * p.size + p.at) * 16;
    return {load16(q), load16(q + 2 * p.size * 16), {load_word(group + 64 * p.size + p.at * 4)}};
  }

  DEVICE static Codes codes_of(const Taken& t, int, int) {
    const auto codes = [](const uint4& q) { return for_words(q, [](uint32_t w, int) { return w ^ 0x80808080u; }); };
    const uint32_t d = t.words[0];
    const float d0 = ptx::f16_to_f32(static_cast<uint16_t>(d)), d1 = ptx::f16_to_f32(static_cast<uint16_t>(d >> 16));
    return {{{codes(t.q), d0, 0}, {codes(t.more), d1, 0}}};
  }

  struct SmallM : SmallMOf32 {
    static constexpr bool UNPACKED = true;
    DEVICE void take(const uint8_t* row0, const uint8_t* row1, unsigned size, unsigned at) {
      words[0] = *reinterpret_cast<const uint32_t*>(row0 + 64 * size + at * 4);
      words[1] = *reinterpret_cast<const uint32_t*>(row1 + 64 * size + at * 4);
    }
    DEVICE static float total(float low, float high, float, int) { return low + high; }
  };

  // Rows may end within four pieces.
  struct Fragment {
    static constexpr int VECTORS = 4, REST = 1;
    DEVICE static int rest_at(int, int size, int at) { return 64 * size + at * 4; }
    uint32_t q[16], scale[2];
    DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, int, bool valid) {
#pragma unroll
      for (int i = 0; i < 4; i++) put_vector(q + 4 * i, load16(vectors + 64 * STAGE_ROWS * i));
      const uint32_t d = valid ? *reinterpret_cast<const uint32_t*>(rest + t * 4) : 0;
      scale[0] = twice(d, false), scale[1] = twice(d, true);
    }
    // Numbers of 8 bits with a sign become those from 0 on under the exponent of 1024.
    DEVICE static uint32_t bytes(uint32_t w, uint32_t selector) { return ptx::add_f16(__byte_perm(w, 0x64646464, selector), 0xe480e480); }
    DEVICE Four word(int i) const {
      const uint32_t w = q[i] ^ 0x80808080, v = q[8 + i] ^ 0x80808080;
      return {{ptx::mul_f16(bytes(w, 0x4240), scale[0]), ptx::mul_f16(bytes(w, 0x4341), scale[0])},
              {ptx::mul_f16(bytes(v, 0x4240), scale[1]), ptx::mul_f16(bytes(v, 0x4341), scale[1])}};
    }
  };
};
