// BF16 on the device: the upper half of an F32.
#pragma once

struct BF16 {
  static constexpr int LEN = 1, BYTES = 2;
  DEVICE static float load(const uint8_t* p) { return __uint_as_float(u16_at(p) << 16); }
  DEVICE static void load8_aligned(float* y, const uint8_t* p) {
    const uint4 v = *reinterpret_cast<const uint4*>(p);
    const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      y[2 * j] = __uint_as_float(pairs[j] << 16);
      y[2 * j + 1] = __uint_as_float(pairs[j] & 0xffff0000u);
    }
  }
};
