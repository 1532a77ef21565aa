// Q6_K on the device; the layout stands in mod.rs.
#pragma once

struct Q6_K {
  static constexpr int LEN = 256, BYTES = 210;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void*) {
    const float scale = f16_at(b + 208) * static_cast<float>(static_cast<int8_t>(b[192 + i / 16]));
    const uint8_t* ql = b + i / 128 * 64 + i % 64;
    const uint8_t* qh = b + 128 + i / 128 * 32 + i % 32;
    const int low_shift = i / 64 % 2 * 4, high_shift = i / 32 % 4 * 2;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int q = (ql[j] >> low_shift & 15) | (qh[j] >> high_shift & 3) << 4;
      y[j] = scale * (static_cast<float>(q) - 32.0f);
    }
  }
};
