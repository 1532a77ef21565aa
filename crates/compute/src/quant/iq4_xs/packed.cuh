// IQ4_XS as kernels read it. Groups: as codebook.cuh says, and 8 bytes of each block of 256: d as f16, then 6 bits for the scale of each 32
// weights, plus 32.
#pragma once
#include "../iq4_nl/packed.cuh"
#include "device.cuh"

struct IQ4_XS_Scales {
  static constexpr int N = 2, BYTES_OF_4 = 8;
  // d; the scales of the first half in the last six bits, those of the second in the next.
  uint32_t d, bits;
  DEVICE static IQ4_XS_Scales read(const uint8_t* p, int i) {
    const uint2 header = load_pair(p + i / 4 * 8);
    const bool front = i % 4 < 2;
    return {header.x, __funnelshift_r(front ? header.x : header.y, front ? header.y : 0u, (16 + 12 * (i % 4)) & 31)};
  }
  DEVICE int integer(int half) const { return static_cast<int>(bits >> 6 * half & 63) - 32; }
  DEVICE float scale(int half) const { return ptx::f16_to_f32(static_cast<uint16_t>(d)) * static_cast<float>(integer(half)); }
  DEVICE uint32_t halves(int) const { return ptx::f32_to_f16_within(scale(0), scale(1)); }
  DEVICE static uint32_t source_code(const uint8_t* source, int piece, int l) {
    const uint8_t* block = source + static_cast<size_t>(piece / 4) * IQ4_XS::BYTES;
    return block[8 + 16 * (piece % 4 * 2 + l / 32) + l % 16] >> l % 32 / 16 * 4 & 15u;
  }
  DEVICE static void pack(uint8_t* p, int at, const uint8_t* source, int piece) {
    if (piece % 4 != 0) return;
    const uint8_t* block = source + static_cast<size_t>(piece / 4) * IQ4_XS::BYTES;
    uint64_t scales = 0;
    for (int s = 0; s < 8; s++) {
      const uint64_t low = block[4 + s / 2] >> 4 * (s % 2) & 15, high = u16_at(block + 2) >> 2 * s & 3;
      scales |= (low | high << 4) << 6 * s;
    }
    uint8_t* header = p + at / 4 * 8;
    header[0] = block[0], header[1] = block[1];
    for (int i = 0; i < 6; i++) header[2 + i] = static_cast<uint8_t>(scales >> 8 * i);
  }
};

struct Packed_IQ4_XS : PackedCodebook<IQ4_Values, IQ4_XS_Scales> {
  DEVICE static Integers integers(const Piece& p, const X& x) {
    int sums[N];
    dot_values(p, x, sums, 0);
    return {p.scales.integer(0) * sums[0] + p.scales.integer(1) * sums[1], 0};
  }
  DEVICE static uint32_t factors(const Piece& p) { return p.scales.d; }
  DEVICE static float total(uint32_t d, int sum, int) { return ptx::f16_to_f32(static_cast<uint16_t>(d)) * static_cast<float>(sum); }
  // Scales as bytes, those of row g and then those of g + 8.
  struct SmallM {
    typedef int Sum;
    static constexpr int WORDS = 1, PARTS = 1, FIRST = 0;
    static constexpr bool MINS = false, MINS_OF_16 = false, UNPACKED = false, OF_32 = false;
    float d[2];
    uint32_t words[1];
    DEVICE void take(const uint8_t* row0, const uint8_t* row1, unsigned size, unsigned at) {
      const IQ4_XS_Scales s0 = IQ4_XS_Scales::read(row0 + 32 * size, static_cast<int>(at));
      const IQ4_XS_Scales s1 = IQ4_XS_Scales::read(row1 + 32 * size, static_cast<int>(at));
      d[0] = ptx::f16_to_f32(static_cast<uint16_t>(s0.d)), d[1] = ptx::f16_to_f32(static_cast<uint16_t>(s1.d));
      words[0] = 0;
#pragma unroll
      for (int h = 0; h < 2; h++) words[0] |= (s0.bits >> 6 * h & 63) << 8 * h | (s1.bits >> 6 * h & 63) << (16 + 8 * h);
    }
    DEVICE static int scale(const uint32_t (&w)[1], int h, int, int r) { return byte_at(w[0], 2 * r + h) - 32; }
    DEVICE static void unpack(uint32_t (&a)[4], const uint32_t (&q)[4], int h, const uint8_t*, const uint8_t*, int, int, int) {
      unpack_bytes(a, q, h);
    }
    DEVICE static void multiply(int (&y)[1][4], const uint32_t (&a)[4], uint2 b, const int (&c)[1][4]) {
      ptx::mma_s8(y[0], a, b, c[0]);
    }
    DEVICE static void add(int& sum, int d, int scale, float) { sum += d * scale; }
    DEVICE float total(int low, int high, float, int r) const { return d[r] * static_cast<float>(low + high); }
  };
};
