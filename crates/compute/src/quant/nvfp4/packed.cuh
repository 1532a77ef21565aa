// NVFP4 as kernels read it. Groups: as codebook.cuh says, and the four scales of each piece, which is a block.
#pragma once
#include "../mxfp4/packed.cuh"
#include "device.cuh"

struct NVFP4_Scales {
  static constexpr int N = 4, BYTES_OF_4 = 16;
  static constexpr float OF_SMALL_M = 1.0f / 128;
  // Four numbers of E4M3.
  uint32_t d, bits;
  DEVICE static NVFP4_Scales read(const uint8_t* p, int i) { return {load_word(p + 4 * i), 0}; }
  DEVICE float scale(int i) const { return nvfp4_half_scale(d >> 8 * i & 255); }
  DEVICE uint32_t halves(int i) const { return ptx::f32_to_f16_within(scale(2 * i) * FP4_Doubled::UNIT, scale(2 * i + 1) * FP4_Doubled::UNIT); }
  DEVICE static uint32_t source_code(const uint8_t* source, int piece, int l) {
    const uint8_t* block = source + static_cast<size_t>(piece) * NVFP4::BYTES;
    return block[4 + l / 16 * 8 + l % 8] >> l / 8 % 2 * 4 & 15u;
  }
  DEVICE static void pack(uint8_t* p, int at, const uint8_t* source, int piece) {
    for (int i = 0; i < 4; i++) p[4 * at + i] = source[static_cast<size_t>(piece) * NVFP4::BYTES + i];
  }
};

struct Packed_NVFP4 : PackedCodebook<FP4_Doubled, NVFP4_Scales> {
  // Scales as bytes, of which those that stand for zero are zeros.
  struct SmallM {
    typedef float Sum;
    static constexpr int WORDS = 2, PARTS = 2, FIRST = FLOAT_UNITS;
    static constexpr bool MINS = false, MINS_OF_16 = false, UNPACKED = false, OF_32 = true;
    uint32_t words[2];
    DEVICE void take(const uint8_t* row0, const uint8_t* row1, unsigned size, unsigned at) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        words[r] = load_word((r ? row1 : row0) + 32 * size + at * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          if ((words[r] >> 8 * i & 255) == 0x7f) words[r] &= ~(255u << 8 * i);
        }
      }
    }
    // E4M3 as the bits of half precision: 2^-8 times the number, and so 2^-7 times half of it.
    DEVICE static float scale(const uint32_t (&w)[2], int h, int part, int r) {
      const int shift = 8 * (2 * h + part) - 7;
      return ptx::f16_to_f32(static_cast<uint16_t>((shift < 0 ? w[r] << 7 : w[r] >> shift) & 0x3f80));
    }
    DEVICE static void unpack(uint32_t (&a)[4], const uint32_t (&q)[4], int h, const uint8_t*, const uint8_t*, int, int, int) {
      unpack_bytes(a, q, h);
    }
    DEVICE static void multiply(int (&y)[2][4], const uint32_t (&a)[4], uint2 b, const int (&c)[2][4]) {
      ptx::mma_s8_k16(y[0], a[0], a[1], b.x, c[0]);
      ptx::mma_s8_k16(y[1], a[2], a[3], b.y, c[1]);
    }
    DEVICE static void add(float& sum, int d, float scale, float x_scale) { SmallMOf32::add(sum, d, scale, x_scale); }
    DEVICE static float total(float low, float high, float, int) { return (low + high) * 128.0f; }
  };
};
