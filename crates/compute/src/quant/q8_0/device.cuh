// Q8_0 on the device; the layout stands in mod.rs. Also an element type of the cache, so it is written here too.
#pragma once

struct Q8_0 {
  static constexpr int LEN = 32, BYTES = 34;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void*) {
    const float d = f16_at(b);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint32_t q = u16_at(b + 2 + i + 2 * j);
      y[2 * j] = static_cast<float>(static_cast<int8_t>(q)) * d;
      y[2 * j + 1] = static_cast<float>(static_cast<int8_t>(q >> 8)) * d;
    }
  }
};
