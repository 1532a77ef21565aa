// IQ3_XXS on the device; the layout stands in mod.rs, the codebook in grid.rs.
#pragma once
#include "../iq2_xxs/device.cuh"

struct IQ3_XXS {
  static constexpr int LEN = 256, BYTES = 98;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void* codebook) {
    const int g = i / 8;
    const uint32_t word = u32_at(b + 66 + g / 4 * 4);
    const float scale = f16_at(b) * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
    const uint32_t signs = even_signs(word >> 7 * (g % 4) & 127);
    const uint32_t* points = static_cast<const uint32_t*>(codebook);
    scale_signed4(y, scale, points[b[2 + 2 * g]], signs);
    scale_signed4(y + 4, scale, points[b[3 + 2 * g]], signs >> 4);
  }
};
