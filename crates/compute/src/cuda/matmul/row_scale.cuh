// Rows of activations in half precision, whose range is small.
#pragma once
#include "../common/kernel.cuh"

// What brings a row's largest magnitude to 2^12 or just above, a power of two, and what its sums are multiplied with after that; exponents of
// both stay normal.
struct RowScale {
  float factor, inverse;
  DEVICE explicit RowScale(float max) {
    const int exponent = __float_as_uint(max) >> 23;
    const int e = 127 + 139 - exponent;
    const uint32_t bounded = exponent == 0 ? 127 : e < 1 ? 1 : e > 253 ? 253 : e;
    factor = __uint_as_float(bounded << 23);
    inverse = __uint_as_float((254 - bounded) << 23);
  }
};
