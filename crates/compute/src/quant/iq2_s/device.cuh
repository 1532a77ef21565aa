// IQ2_S on the device; the layout stands in mod.rs, the codebook in grid.rs.
#pragma once
#include "../iq2_xxs/device.cuh"

struct IQ2_S {
  static constexpr int LEN = 256, BYTES = 82;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void* codebook) {
    const int g = i / 8;
    const uint32_t sub_scale = b[74 + g / 4] >> 4 * (g / 2 % 2) & 15;
    const float scale = f16_at(b) * (0.5f + static_cast<float>(sub_scale)) * 0.25f;
    const uint32_t high = b[66 + g / 4] >> 2 * (g % 4) & 3;
    scale_signed8(y, scale, static_cast<const uint64_t*>(codebook)[b[2 + g] | high << 8], b[34 + g]);
  }
};
