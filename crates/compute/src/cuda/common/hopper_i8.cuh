// PTX instructions of Hopper (sm_90a) for products of 8-bit integers whose first operand is in registers, each wrapped once.
#pragma once
#include "hopper.cuh"
#ifndef REALIZAR_EMULATION

namespace ptx {

// Where rows of bytes are in shared memory, without a swizzle: matrices of 8 rows and 16 columns, a line of 16 bytes to each row. `next_columns`:
// bytes from one to that of the next 16 columns, `next_rows`: to that of the next 8 rows.
__device__ __forceinline__ uint64_t smem_desc_plain(uint32_t shared, uint32_t next_columns, uint32_t next_rows) {
  uint64_t matrix;
  asm("mov.b64 %0, {%1, %2};" : "=l"(matrix) : "r"((shared & 0x3ffff) >> 4 | next_columns >> 4 << 16), "r"(next_rows >> 4));
  return matrix;
}

// d += a bT in the background, or d = a bT where `add` is 0, by 4 warps: a [64, 32] with signs or without, of which each lane of warp w holds of
// rows 16 w to 16 w + 15 what `mma_s8` wants; b [N, 32] with signs. Of d warp w has rows 16 w to 16 w + 15, each 8 columns as in `mma_s8`.
#define MULTIPLY_BYTES(type, columns, eighths, a_names, b_name, add_name) \
  __device__ __forceinline__ void wgmma_rs_##type(int (&d)[eighths][4], const uint32_t (&a)[4], uint64_t b, uint32_t add) { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " add_name ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k32.s32." #type ".s8 {" NAMES_##eighths "}, {" a_names "}, " b_name ", p; }" \
                 : INTEGERS_##eighths(d, 0) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)); \
  }
#define MULTIPLY_BYTES_OF(type) \
  MULTIPLY_BYTES(type, 16, 2, "%8, %9, %10, %11", "%12", "%13") MULTIPLY_BYTES(type, 32, 4, "%16, %17, %18, %19", "%20", "%21") \
  MULTIPLY_BYTES(type, 64, 8, "%32, %33, %34, %35", "%36", "%37") MULTIPLY_BYTES(type, 128, 16, "%64, %65, %66, %67", "%68", "%69")
MULTIPLY_BYTES_OF(s8) MULTIPLY_BYTES_OF(u8)
#undef MULTIPLY_BYTES
#undef MULTIPLY_BYTES_OF

// Arrives at a barrier, which counts it, when all that this thread has asked for with `cp_async_16` is there.
__device__ __forceinline__ void cp_async_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace ptx
#endif
