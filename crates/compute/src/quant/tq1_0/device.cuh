// TQ1_0 on the device; the layout stands in mod.rs.
#pragma once

struct TQ1_0 {
  static constexpr int LEN = 256, BYTES = 54;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void*) {
    const float d = f16_at(b + 52);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int k = i + j;
      int byte, n;
      if (k < 160) {
        byte = b[k % 32], n = k / 32;
      } else if (k < 240) {
        byte = b[32 + k % 16], n = (k - 160) / 16;
      } else {
        byte = b[48 + k % 4], n = (k - 240) / 4;
      }
      const int power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
      const int trit = (byte * power & 255) * 3 >> 8;
      y[j] = (static_cast<float>(trit) - 1.0f) * d;
    }
  }
};
