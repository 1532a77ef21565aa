// MXFP4 on the device; the layout stands in mod.rs.
#pragma once

// Twice the value of an FP4 code, so that all are integers (fp4.rs).
DEVICE float fp4_doubled(uint32_t code) {
  const uint32_t exponent = code >> 1 & 3, mantissa = code & 1;
  const float magnitude = static_cast<float>(exponent ? (2 + mantissa) << (exponent - 1) : mantissa);
  return code & 8 ? 0.0f - magnitude : magnitude;
}

// Half of a block's scale, 2^(e - 128), of which the first two are subnormal.
DEVICE float mxfp4_half_scale(uint32_t e) { return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

struct MXFP4 {
  static constexpr int LEN = 32, BYTES = 17;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void*) {
    const float d = mxfp4_half_scale(b[0]);
    const uint8_t* qs = b + 1 + i % 16;
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = fp4_doubled(qs[j] >> i / 16 * 4 & 15) * d;
  }
};
