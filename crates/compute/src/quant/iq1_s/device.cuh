// IQ1_S on the device; the layout stands in mod.rs, the codebook in grid.rs.
#pragma once

// `scale * (value + shift)` for the eight values of a point.
DEVICE void scale_shifted(float* y, float scale, uint64_t point, float shift) {
#pragma unroll
  for (int j = 0; j < 8; j++) y[j] = scale * (static_cast<float>(static_cast<int8_t>(point >> 8 * j)) + shift);
}

struct IQ1_S {
  static constexpr int LEN = 256, BYTES = 50;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void* codebook) {
    const int g = i / 8;
    const uint32_t word = u16_at(b + 34 + g / 4 * 2);
    const float scale = f16_at(b) * static_cast<float>(2 * (word >> 12 & 7) + 1);
    const uint32_t index = b[2 + g] | (word >> 3 * (g % 4) & 7) << 8;
    scale_shifted(y, scale, static_cast<const uint64_t*>(codebook)[index], word >> 15 ? -0.125f : 0.125f);
  }
};
