// Q4_K on the device; the layout stands in mod.rs.
#pragma once

// Scale and min of sub-block `s` from the 12 bytes that k_scales.rs describes.
DEVICE void k_scale_min(const uint8_t* bytes, int s, int& scale, int& min) {
  if (s < 4) {
    scale = bytes[s] & 63;
    min = bytes[s + 4] & 63;
  } else {
    scale = (bytes[s + 4] & 15) | (bytes[s - 4] >> 6) << 4;
    min = bytes[s + 4] >> 4 | (bytes[s] >> 6) << 4;
  }
}

struct Q4_K {
  static constexpr int LEN = 256, BYTES = 144;
  DEVICE static void load8(float* y, const uint8_t* b, int i, const void*) {
    int sub_scale, sub_min;
    k_scale_min(b + 4, i / 32, sub_scale, sub_min);
    const float scale = f16_at(b) * static_cast<float>(sub_scale);
    const float min = f16_at(b + 2) * static_cast<float>(sub_min);
    const uint8_t* qs = b + 16 + i / 64 * 32 + i % 32;
    const int shift = i / 32 % 2 * 4;
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = mul_then_add(scale, static_cast<float>(qs[j] >> shift & 15), -min);
  }
};
