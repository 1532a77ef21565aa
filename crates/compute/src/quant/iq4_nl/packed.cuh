// IQ4_NL as kernels read it. Groups: as codebook.cuh says, and the blocks' d as f16.
#pragma once
#include "../../cuda/common/codebook.cuh"
#include "device.cuh"

// Those of mod.rs.
typedef Codebook<-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113> IQ4_Values;

struct IQ4_NL_Scales {
  static constexpr int N = 2, BYTES_OF_4 = 16;
  static constexpr float OF_SMALL_M = 1;
  uint32_t d, bits;
  DEVICE static IQ4_NL_Scales read(const uint8_t* p, int i) { return {load_word(p + 4 * i), 0}; }
  DEVICE float scale(int half) const { return ptx::f16_to_f32(static_cast<uint16_t>(d >> 16 * half)); }
  DEVICE uint32_t halves(int) const { return d; }
  DEVICE static uint32_t source_code(const uint8_t* source, int piece, int l) {
    const uint8_t* block = source + static_cast<size_t>(2 * piece + l / 32) * IQ4_NL::BYTES;
    return block[2 + l % 16] >> l % 32 / 16 * 4 & 15u;
  }
  DEVICE static void pack(uint8_t* p, int at, const uint8_t* source, int piece) {
    for (int i = 0; i < 4; i++) p[4 * at + i] = source[static_cast<size_t>(2 * piece + i / 2) * IQ4_NL::BYTES + i % 2];
  }
};

struct Packed_IQ4_NL : PackedCodebook<IQ4_Values, IQ4_NL_Scales> {
  struct SmallM : SmallMOf32 {
    static constexpr bool UNPACKED = false;
    DEVICE void take(const uint8_t* row0, const uint8_t* row1, unsigned size, unsigned at) {
      words[0] = load_word(row0 + 32 * size + at * 4);
      words[1] = load_word(row1 + 32 * size + at * 4);
    }
    DEVICE static void unpack(uint32_t (&a)[4], const uint32_t (&q)[4], int h, const uint8_t*, const uint8_t*, int, int, int) {
      unpack_bytes(a, q, h);
    }
    DEVICE static float total(float low, float high, float, int) { return low + high; }
  };
};
