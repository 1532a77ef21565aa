// Every PTX instruction that the kernels use by name, each wrapped once.
#pragma once
#include <cstdint>

namespace ptx {

// Half precision as its 16 bits, so that the kernels need no CUDA headers.
__device__ __forceinline__ float f16_to_f32(uint16_t bits) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
  return y;
}

__device__ __forceinline__ uint16_t f32_to_f16(float x) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

__device__ __forceinline__ uint16_t f32_to_bf16(float x) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

// Until this returns, what earlier kernels of the stream wrote may not be read. Does nothing in a kernel that was launched without
// the attribute of programmatic launch, and on GPUs before Hopper.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start while this one still runs; it waits for this one's results by itself.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace ptx
