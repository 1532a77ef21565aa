// MXFP4 as kernels read it. Groups: as codebook.cuh says, and the blocks' exponents.
#pragma once
#include "../../cuda/common/codebook.cuh"
#include "device.cuh"

// Twice the values of FP4 (fp4.rs).
struct FP4_Doubled : Codebook<0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12> {
  // In units of `halves` one is so much.
  static constexpr float UNIT = 128;
  // A code is a number of E4M3 with gaps between its bits: the sign, the last two bits of the exponent and the first of the mantissa.
  DEVICE static Four halves(uint32_t codes) {
    const uint32_t even = codes << 4 & 0x80808080 | codes << 2 & 0x1c1c1c1c, odd = codes & 0x80808080 | codes >> 2 & 0x1c1c1c1c;
    Four v;
    ptx::e4m3_to_f16(v.low[0], v.high[0], even), ptx::e4m3_to_f16(v.low[1], v.high[1], odd);
    return v;
  }
};

struct MXFP4_Scales {
  static constexpr int N = 2, BYTES_OF_4 = 8;
  static constexpr float OF_SMALL_M = 1;
  // Two exponents.
  uint32_t d, bits;
  DEVICE static MXFP4_Scales read(const uint8_t* p, int i) { return {u16_at(p + 2 * i), 0}; }
  DEVICE float scale(int half) const { return mxfp4_half_scale(d >> 8 * half & 255); }
  DEVICE uint32_t halves(int) const { return ptx::f32_to_f16_within(scale(0) * FP4_Doubled::UNIT, scale(1) * FP4_Doubled::UNIT); }
  DEVICE static uint32_t source_code(const uint8_t* source, int piece, int l) {
    const uint8_t* block = source + static_cast<size_t>(2 * piece + l / 32) * MXFP4::BYTES;
    return block[1 + l % 16] >> l % 32 / 16 * 4 & 15u;
  }
  DEVICE static void pack(uint8_t* p, int at, const uint8_t* source, int piece) {
    for (int half = 0; half < 2; half++) p[2 * at + half] = source[static_cast<size_t>(2 * piece + half) * MXFP4::BYTES];
  }
};

struct Packed_MXFP4 : PackedCodebook<FP4_Doubled, MXFP4_Scales> {
  struct SmallM : SmallMOf32 {
    static constexpr bool UNPACKED = false;
    DEVICE void take(const uint8_t* row0, const uint8_t* row1, unsigned size, unsigned at) {
      words[0] = u16_at(row0 + 32 * size + at * 2);
      words[1] = u16_at(row1 + 32 * size + at * 2);
    }
    DEVICE static float scale(const uint32_t (&w)[2], int h, int, int r) { return mxfp4_half_scale(w[r] >> 8 * h & 255); }
    DEVICE static void unpack(uint32_t (&a)[4], const uint32_t (&q)[4], int h, const uint8_t*, const uint8_t*, int, int, int) {
      unpack_bytes(a, q, h);
    }
    DEVICE static float total(float low, float high, float, int) { return low + high; }
  };
};
