// IQ4_NL on the device; the layout stands in mod.rs. The values of its codes come from there, one byte each.
#pragma once

struct IQ4_NL {
  static constexpr int LEN = 32, BYTES = 18;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void* values) {
    const float d = f16_at(b);
    const uint8_t* qs = b + 2 + i % 16;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      y[j] = d * static_cast<float>(static_cast<const int8_t*>(values)[qs[j] >> i / 16 * 4 & 15]);
    }
  }
};
