// Q5_K on the device; the layout stands in mod.rs.
#pragma once
#include "../q4_k/device.cuh"

struct Q5_K {
  static constexpr int LEN = 256, BYTES = 176;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void*) {
    int sub_scale, sub_min;
    k_scale_min(b + 4, i / 32, sub_scale, sub_min);
    const float scale = f16_at(b) * static_cast<float>(sub_scale);
    const float min = f16_at(b + 2) * static_cast<float>(sub_min);
    const uint8_t* qh = b + 16 + i % 32;
    const uint8_t* qs = b + 48 + i / 64 * 32 + i % 32;
    const int shift = i / 32 % 2 * 4;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int q = (qs[j] >> shift & 15) | (qh[j] >> i / 32 & 1) << 4;
      y[j] = mul_then_add(scale, static_cast<float>(q), -min);
    }
  }
};
