// Q5_1 on the device; the layout stands in mod.rs.
#pragma once

struct Q5_1 {
  static constexpr int LEN = 32, BYTES = 24;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void*) {
    const float d = f16_at(b), m = f16_at(b + 2);
    const uint32_t high = u32_at(b + 4) >> i;
    const uint8_t* qs = b + 8 + i % 16;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const uint32_t q = (qs[j] >> i / 16 * 4 & 15) | (high >> j & 1) << 4;
      y[j] = mul_then_add(static_cast<float>(q), d, m);
    }
  }
};
