// Q2_K on the device; the layout stands in mod.rs.
#pragma once

struct Q2_K {
  static constexpr int LEN = 256, BYTES = 84;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void*) {
    const uint8_t sub = b[i / 16];
    const float scale = f16_at(b + 80) * static_cast<float>(sub & 15);
    const float min = f16_at(b + 82) * static_cast<float>(sub >> 4);
    const uint8_t* qs = b + 16 + i / 128 * 32 + i % 32;
    const int shift = i / 32 % 4 * 2;
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = mul_then_add(scale, static_cast<float>(qs[j] >> shift & 3), -min);
  }
};
