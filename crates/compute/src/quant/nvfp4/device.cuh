// NVFP4 on the device; the layout stands in mod.rs.
#pragma once
#include "../mxfp4/device.cuh"

// Half of the scale of sixteen weights, a number of E4M3.
DEVICE float nvfp4_half_scale(uint32_t e4m3) {
  const uint32_t exponent = e4m3 >> 3 & 15, mantissa = e4m3 & 7;
  const float d = exponent ? __uint_as_float((exponent + 127 - 7 - 1) << 23 | mantissa << 20) : static_cast<float>(mantissa) / 1024.0f;
  return e4m3 == 0x7f ? 0.0f : d;
}

struct NVFP4 {
  static constexpr int LEN = 64, BYTES = 36;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void*) {
    const float d = nvfp4_half_scale(b[i / 16]);
    const uint8_t* qs = b + 4 + i / 16 * 8;
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = fp4_doubled(qs[j] >> i / 8 % 2 * 4 & 15) * d;
  }
};
