// Q1_0 on the device; the layout stands in mod.rs.
#pragma once

struct Q1_0 {
  static constexpr int LEN = 128, BYTES = 18;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void*) {
    const float d = f16_at(b);
    const uint32_t bits = b[2 + i / 8];
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = bits >> j & 1 ? d : -d;
  }
};
