// F16 on the device.
#pragma once

struct F16 {
  static constexpr int LEN = 1, BYTES = 2;
  DEVICE static float load(const uint8_t* p) { return f16_at(p); }
  DEVICE static void load8_aligned(float* y, const uint8_t* p) {
    const uint4 v = *reinterpret_cast<const uint4*>(p);
    const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      y[2 * j] = ptx::f16_to_f32(static_cast<uint16_t>(pairs[j]));
      y[2 * j + 1] = ptx::f16_to_f32(static_cast<uint16_t>(pairs[j] >> 16));
    }
  }
};
