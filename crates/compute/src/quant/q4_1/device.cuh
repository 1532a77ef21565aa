// Q4_1 on the device; the layout stands in mod.rs.
#pragma once

struct Q4_1 {
  static constexpr int LEN = 32, BYTES = 20;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void*) {
    const float d = f16_at(b), m = f16_at(b + 2);
    const uint8_t* qs = b + 4 + i % 16;
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = mul_then_add(static_cast<float>(qs[j] >> i / 16 * 4 & 15), d, m);
  }
};
