// What all kernels share: how one is declared, sums over a warp and over a block, unaligned little-endian loads.
//
// A kernel takes one struct, declared alike in the launcher beside it. Where REALIZAR_EMULATION is defined the same source runs on
// the CPU, through cuda-emulation/cuda.hpp.
#pragma once

#ifdef REALIZAR_EMULATION
#include "cuda.hpp"
#else
#include "ptx.cuh"
#include <cmath>
#include <cstdint>
#define KERNEL(name, Args, max_threads) \
  extern "C" __global__ void __launch_bounds__(max_threads) name(const __grid_constant__ Args a)
// Two blocks at a time on a multiprocessor.
#define KERNEL_2(name, Args, max_threads) \
  extern "C" __global__ void __launch_bounds__(max_threads, 2) name(const __grid_constant__ Args a)
// Four blocks.
#define KERNEL_4(name, Args, max_threads) \
  extern "C" __global__ void __launch_bounds__(max_threads, 4) name(const __grid_constant__ Args a)
// With so many registers for a thread.
#define KERNEL_OF(name, Args, registers) \
  extern "C" __global__ void __maxnreg__(registers) name(const __grid_constant__ Args a)
// One block, which may have all registers.
#define KERNEL_1(name, Args, max_threads) \
  extern "C" __global__ void __launch_bounds__(max_threads, 1) name(const __grid_constant__ Args a)
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
// From a multiple of 1024 bytes on, as wgmma's tiles want it.
#define DYNAMIC_SHARED_TILES(name) extern __shared__ __align__(1024) unsigned char name[]
#endif

#define DEVICE __device__ __forceinline__

constexpr unsigned ALL_LANES = 0xffffffffu;

DEVICE float warp_sum(float x) {
#pragma unroll
  for (int d = 16; d; d >>= 1) x += __shfl_xor_sync(ALL_LANES, x, d);
  return x;
}

DEVICE float warp_max(float x) {
#pragma unroll
  for (int d = 16; d; d >>= 1) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, d));
  return x;
}

// Sum over a block of whole warps; every thread gets it. `scratch`: one float per warp, free again after the next barrier.
DEVICE float block_sum(float x, float* scratch) {
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (unsigned w = 0; w < blockDim.x / 32; w++) sum += scratch[w];
  return sum;
}

// Loads from addresses that are multiples of 2, and of 1.
DEVICE uint32_t u16_at(const uint8_t* p) { return *reinterpret_cast<const uint16_t*>(p); }
DEVICE uint32_t u32_at(const uint8_t* p) { return u16_at(p) | u16_at(p + 2) << 16; }
DEVICE float f16_at(const uint8_t* p) { return ptx::f16_to_f32(static_cast<uint16_t>(u16_at(p))); }

// A product and sums that stay separate roundings, as the scalar code has them; the compiler may not fuse these.
DEVICE float mul_then_add(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }

DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
