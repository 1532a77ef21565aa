// NVFP4 on the device; the layout stands in mod.rs.
#pragma once
#include "../mxfp4/device.cuh"

struct NVFP4 {
  static constexpr int LEN = 64, BYTES = 36;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void*) {
    const uint32_t e4m3 = b[i / 16], exponent = e4m3 >> 3 & 15, mantissa = e4m3 & 7;
    float d = exponent ? __uint_as_float((exponent + 127 - 7 - 1) << 23 | mantissa << 20)
                       : static_cast<float>(mantissa) / 1024.0f;
    if (e4m3 == 0x7f) d = 0.0f;
    const uint8_t* qs = b + 4 + i / 16 * 8;
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = fp4_doubled(qs[j] >> i / 8 % 2 * 4 & 15) * d;
  }
};
