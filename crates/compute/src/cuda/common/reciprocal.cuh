// Quick reciprocals, for kernels in which each instruction counts.
#pragma once
#include "kernel.cuh"

#ifndef REALIZAR_EMULATION
namespace ptx {

// 1 / x within a unit in the last place; 0 for numbers whose reciprocal is subnormal.
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace ptx
#endif
