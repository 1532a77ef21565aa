// Q4_0 on the device; the layout stands in mod.rs.
#pragma once

struct Q4_0 {
  static constexpr int LEN = 32, BYTES = 18;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void*) {
    const float d = f16_at(b);
    const uint8_t* qs = b + 2 + i % 16;
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = (static_cast<float>(qs[j] >> i / 16 * 4 & 15) - 8.0f) * d;
  }
};
