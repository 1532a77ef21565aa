// IQ3_S on the device; the layout stands in mod.rs, the codebook in grid.rs.
#pragma once
#include "../iq2_xxs/device.cuh"

struct IQ3_S {
  static constexpr int LEN = 256, BYTES = 110;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void* codebook) {
    const uint32_t sub_scale = b[106 + i / 64] >> 4 * (i / 32 % 2) & 15;
    const float scale = f16_at(b) * static_cast<float>(1 + 2 * sub_scale);
    const uint32_t signs = b[74 + i / 8];
    const uint32_t* points = static_cast<const uint32_t*>(codebook);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int g = i / 4 + half;
      const uint32_t index = b[2 + g] | (b[66 + g / 8] >> g % 8 & 1) << 8;
      scale_signed4(y + 4 * half, scale, points[index], signs >> 4 * half);
    }
  }
};
