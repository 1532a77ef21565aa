// Q3_K on the device; the layout stands in mod.rs.
#pragma once

struct Q3_K {
  static constexpr int LEN = 256, BYTES = 110;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void*) {
    const int s = i / 16;
    const int low = b[96 + s % 8] >> s / 8 * 4 & 15, high = b[104 + s % 4] >> s / 4 * 2 & 3;
    const float scale = f16_at(b + 108) * static_cast<float>((low | high << 4) - 32);
    const uint8_t* hmask = b + i % 32;
    const uint8_t* qs = b + 32 + i / 128 * 32 + i % 32;
    const int shift = i / 32 % 4 * 2;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int q = (qs[j] >> shift & 3) | (hmask[j] >> i / 32 & 1) << 2;
      y[j] = scale * (static_cast<float>(q) - 4.0f);
    }
  }
};
