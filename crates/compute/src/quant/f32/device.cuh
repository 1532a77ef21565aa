// F32 on the device.
#pragma once

struct F32 {
  static constexpr int LEN = 1, BYTES = 4;
  DEVICE static float load(const uint8_t* p) { return *reinterpret_cast<const float*>(p); }
  DEVICE static void load8_aligned(float* y, const uint8_t* p) {
    const float4* v = reinterpret_cast<const float4*>(p);
    const float4 a = v[0], b = v[1];
    y[0] = a.x, y[1] = a.y, y[2] = a.z, y[3] = a.w;
    y[4] = b.x, y[5] = b.y, y[6] = b.z, y[7] = b.w;
  }
};
