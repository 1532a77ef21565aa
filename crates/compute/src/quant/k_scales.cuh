// Scales and mins of six bits as packed types have them; those of a file's blocks are in k_scales.rs.
#pragma once
#include "../cuda/common/packed.cuh"
#include "q4_k/device.cuh"

// Scales and mins of six bits, packed by sub-block: scale s in bits 12 s to 12 s + 5 of 12 bytes, its min in the next six.
// Source block: k_scales.rs.
DEVICE void pack_k_scales(uint8_t* out, const uint8_t* in, int piece) {
  int s0, m0, s1, m1;
  k_scale_min(in, 2 * piece, s0, m0);
  k_scale_min(in, 2 * piece + 1, s1, m1);
  const uint32_t bits = s0 | m0 << 6 | s1 << 12 | m1 << 18;
#pragma unroll
  for (int i = 0; i < 3; i++) out[3 * piece + i] = static_cast<uint8_t>(bits >> 8 * i);
}

// A block's header: d and dmin as f16, then 12 bytes of scales and mins. Of it, what one piece wants: the 24 bits of its two scales
// and mins.
struct KHeader {
  uint32_t d, bits;
  DEVICE void take(const uint8_t* header, int piece_of_block) {
    const uint4 words = load16(header);
    const bool front = piece_of_block < 2;
    d = words.x;
    bits = __funnelshift_r(front ? words.y : piece_of_block == 2 ? words.z : words.w, front ? words.z : words.w, 24 * piece_of_block & 31);
  }
  // d * (scales · sums of products) - dmin * (mins · sums of activations)
  DEVICE float apply(float low, float high, const X& x) const {
    const float scaled =
        times_six_bits(bits, x.scale(0), x.offsets[0]) * low + times_six_bits(bits >> 12, x.scale(1), x.offsets[1]) * high;
    const float mins = times_six_bits(bits >> 6, x.sum(0), x.offsets[2]) + times_six_bits(bits >> 18, x.sum(1), x.offsets[3]);
    return ptx::f16_to_f32(static_cast<uint16_t>(d)) * scaled - ptx::f16_to_f32(static_cast<uint16_t>(d >> 16)) * mins;
  }
  // Sums of the integers of both halves by scale, and the mins' part.
  DEVICE Integers integers(int low, int high, const X& x) const {
    const auto six = [&](int shift) { return static_cast<int>(bits >> shift & 63); };
    return {low * six(0) + high * six(12), six(6) * x.integer_sum(0) + six(18) * x.integer_sum(1)};
  }
  // As `SmallMK::total` of sums of which `unit` is a weight's 1.
  DEVICE static float total(uint32_t d, float unit, int sum, int mins) {
    const float dmin = ptx::f16_to_f32(static_cast<uint16_t>(d >> 16));
    return fmaf(unit * ptx::f16_to_f32(static_cast<uint16_t>(d)), static_cast<float>(sum), -__fmul_rn(dmin, static_cast<float>(mins)));
  }
  // The floats of weights of one half of a piece, as the scalar code rounds them.
  DEVICE static void load8(float* y, const uint8_t* header, int piece_of_block, int half, const int (&q)[8]) {
    const uint8_t* p = header + 4 + piece_of_block * 3;
    const uint32_t bits = (p[0] | p[1] << 8 | p[2] << 16) >> 12 * half;
    const float scale = f16_at(header) * static_cast<float>(bits & 63);
    const float min = f16_at(header + 2) * static_cast<float>(bits >> 6 & 63);
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = mul_then_add(scale, static_cast<float>(q[j]), -min);
  }
};

// The scale and the min of both halves of a piece.
struct KFloats {
  float scale[2], min[2];
  DEVICE explicit KFloats(const KHeader& header) {
    const float d = ptx::f16_to_f32(static_cast<uint16_t>(header.d)), dmin = ptx::f16_to_f32(static_cast<uint16_t>(header.d >> 16));
#pragma unroll
    for (int h = 0; h < 2; h++) scale[h] = d * six_bits(header.bits >> 12 * h), min[h] = dmin * six_bits(header.bits >> (12 * h + 6));
  }
  DEVICE float weight(int h, uint32_t q) const { return mul_then_add(scale[h], float_of(q), -min[h]); }
};

DEVICE KFloats k_floats_of(const Taken& t, int piece) {
  KHeader header;
  header.take(reinterpret_cast<const uint8_t*>(&t.more), piece % 4);
  return KFloats(header);
}

// Scales as bytes, those of row g and then those of g + 8; mins as two of half precision.
struct SmallMK {
  typedef int Sum;
  static constexpr int WORDS = 1, PARTS = 1, FIRST = 0;
  static constexpr bool MINS = true, MINS_OF_16 = false, UNPACKED = false, OF_32 = false;
  float d[2], dmin[2];
  uint32_t words[1], mins[2];
  DEVICE void take(const uint8_t* row0, const uint8_t* row1, unsigned size, unsigned at) {
    uint32_t bits[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      KHeader header;
      header.take((r ? row1 : row0) + 32 * size + at / 4 * 16, static_cast<int>(at % 4));
      bits[r] = header.bits;
      d[r] = ptx::f16_to_f32(static_cast<uint16_t>(header.d));
      dmin[r] = ptx::f16_to_f32(static_cast<uint16_t>(header.d >> 16));
      mins[r] = ptx::small_f16((header.bits >> 6 & 0x3f) | (header.bits >> 2 & 0x3f0000));
    }
    const uint32_t low = (bits[0] & 63) | (bits[0] >> 4 & 0x3f00), high = (bits[1] & 63) | (bits[1] >> 4 & 0x3f00);
    words[0] = low | high << 16;
  }
  DEVICE static int scale(const uint32_t (&w)[1], int h, int, int r) { return byte_at(w[0], 2 * r + h); }
  DEVICE static void multiply(int (&y)[1][4], const uint32_t (&a)[4], uint2 b, const int (&c)[1][4]) { ptx::mma_u8(y[0], a, b, c[0]); }
  DEVICE static void add(int& sum, int d, int scale, float) { sum += d * scale; }
  DEVICE float total(int sum, float of_mins, int r) const { return fmaf(d[r], static_cast<float>(sum), -__fmul_rn(dmin[r], of_mins)); }
};

// The scales and the mins of a piece in half precision, each twice.
struct KHalves {
  uint32_t scale[2], min[2];
  DEVICE void take(const KHeader& header) {
    const uint32_t bits = header.bits;
    const uint32_t s = ptx::mask_and_set(bits << 4, 0x3f0000, ptx::mask_and_set(bits, 0x3f, MAGIC));
    const uint32_t m = ptx::mask_and_set(bits >> 2, 0x3f0000, ptx::mask_and_set(bits >> 6, 0x3f, MAGIC));
    const uint32_t s2 = ptx::mul_f16(ptx::add_f16(s, 0xe400e400), twice(header.d, false));
    const uint32_t m2 = ptx::mul_f16(ptx::add_f16(m, 0xe400e400), twice(header.d, true) ^ 0x80008000);
    scale[0] = twice(s2, false), scale[1] = twice(s2, true), min[0] = twice(m2, false), min[1] = twice(m2, true);
  }
  DEVICE uint32_t weight(int half, uint32_t q) const { return ptx::fma_f16(q, scale[half], min[half]); }
};
