// IQ4_XS on the device; the layout stands in mod.rs. The values of its codes are IQ4_NL's.
#pragma once

struct IQ4_XS {
  static constexpr int LEN = 256, BYTES = 136;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void* values) {
    const int s = i / 32;
    const int low = b[4 + s / 2] >> 4 * (s % 2) & 15, high = u16_at(b + 2) >> 2 * s & 3;
    const float scale = f16_at(b) * static_cast<float>((low | high << 4) - 32);
    const uint8_t* qs = b + 8 + 16 * s + i % 16;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      y[j] = scale * static_cast<float>(static_cast<const int8_t*>(values)[qs[j] >> i % 32 / 16 * 4 & 15]);
    }
  }
};
