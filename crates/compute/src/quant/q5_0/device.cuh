// Q5_0 on the device; the layout stands in mod.rs.
#pragma once

struct Q5_0 {
  static constexpr int LEN = 32, BYTES = 22;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void*) {
    const float d = f16_at(b);
    const uint32_t high = u32_at(b + 2) >> i;
    const uint8_t* qs = b + 6 + i % 16;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const uint32_t q = (qs[j] >> i / 16 * 4 & 15) | (high >> j & 1) << 4;
      y[j] = (static_cast<float>(q) - 16.0f) * d;
    }
  }
};
