// IQ2_XXS on the device; the layout stands in mod.rs, the codebook in grid.rs.
#pragma once

// All eight signs of a code of seven: the number of minus signs is even.
DEVICE uint32_t even_signs(uint32_t code) { return code | (__popc(code) & 1) << 7; }

// `scale * magnitude` of four bytes, negative where the bit in `signs` is set.
DEVICE void scale_signed4(float* y, float scale, uint32_t magnitudes, uint32_t signs) {
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const float v = scale * static_cast<float>(magnitudes >> 8 * j & 255);
    y[j] = signs >> j & 1 ? -v : v;
  }
}

DEVICE void scale_signed8(float* y, float scale, uint64_t magnitudes, uint32_t signs) {
  scale_signed4(y, scale, static_cast<uint32_t>(magnitudes), signs);
  scale_signed4(y + 4, scale, static_cast<uint32_t>(magnitudes >> 32), signs >> 4);
}

struct IQ2_XXS {
  static constexpr int LEN = 256, BYTES = 66;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void* codebook) {
    const uint8_t* qs = b + 2 + i / 32 * 8;
    const int l = i / 8 % 4;
    const uint32_t word = u32_at(qs + 4);
    const float scale = f16_at(b) * (0.5f + static_cast<float>(word >> 28)) * 0.25f;
    scale_signed8(y, scale, static_cast<const uint64_t*>(codebook)[qs[l]], even_signs(word >> 7 * l & 127));
  }
};
