// TQ2_0 on the device; the layout stands in mod.rs.
#pragma once

struct TQ2_0 {
  static constexpr int LEN = 256, BYTES = 66;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void*) {
    const float d = f16_at(b + 64);
    const uint8_t* qs = b + i / 128 * 32 + i % 32;
    const int shift = i / 32 % 4 * 2;
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = (static_cast<float>(qs[j] >> shift & 3) - 1.0f) * d;
  }
};
