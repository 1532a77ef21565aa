// Numbers of 8 bits: the nearest of 255 multiples of a scale, which 256 columns of a row share: the largest magnitude over 127.
#pragma once
#include "common.cuh"

// Columns that share a scale.
constexpr int SCALED = 256;

// The larger of two magnitudes, as integers, which compare alike: what is not a number is largest, and stays in the scale.
DEVICE uint32_t larger_magnitude(uint32_t bits, float x) { return max(bits, __float_as_uint(x) & 0x7fffffffu); }

// The largest magnitude that LANES neighbouring lanes have, and what brings it to 127. Numbers too small for a factor become zeros.
template <int LANES>
struct Range {
  float max, factor;
  DEVICE explicit Range(uint32_t bits) {
#pragma unroll
    for (int d = 1; d < LANES; d *= 2) bits = ::max(bits, __shfl_xor_sync(ALL_LANES, bits, d));
    max = __uint_as_float(bits);
    factor = max > 1e-36f ? 127.0f * ptx::reciprocal(max) : 0.0f;
  }
  DEVICE float scale() const { return max * (1.0f / 127.0f); }
};

// The bytes of four numbers up to 127 in magnitude, to the nearest: the last ones of sums with a float whose last bit counts ones.
DEVICE uint32_t four_bytes(float a, float b, float c, float d) {
  const auto bits = [](float x) { return __float_as_uint(x + 12582912.0f); };
  return __byte_perm(__byte_perm(bits(a), bits(b), 0x40), __byte_perm(bits(c), bits(d), 0x40), 0x5410);
}
