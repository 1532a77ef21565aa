// IQ1_M on the device; the layout stands in mod.rs, the codebook is IQ1_S's.
#pragma once
#include "../iq1_s/device.cuh"

struct IQ1_M {
  static constexpr int LEN = 256, BYTES = 56;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void* codebook) {
    const int g = i / 8;
    const uint8_t* scales = b + 48;
    uint32_t d = 0;
#pragma unroll
    for (int w = 0; w < 4; w++) d |= (u16_at(scales + 2 * w) >> 12) << 4 * w;
    const uint32_t sub_scale = u16_at(scales + g / 8 * 2) >> 3 * (g / 2 % 4) & 7;
    const float scale = ptx::f16_to_f32(static_cast<uint16_t>(d)) * static_cast<float>(2 * sub_scale + 1);
    const uint32_t high = b[32 + g / 2] >> 4 * (g % 2) & 15;
    const uint32_t index = b[g] | (high & 7) << 8;
    scale_shifted(y, scale, static_cast<const uint64_t*>(codebook)[index], high & 8 ? -0.125f : 0.125f);
  }
};
