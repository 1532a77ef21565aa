// PTX instructions that only Hopper has (sm_90a), each wrapped once: wgmma, TMA, mbarrier, clusters.
#pragma once
#ifdef REALIZAR_EMULATION
#include "hopper.hpp"
#else
#include "ptx.cuh"

namespace ptx {

// Where a matrix of 16-bit numbers is in shared memory, for `wgmma_ss_f16`: rows of 128 bytes one after the other, of which each 16
// bytes lie at their number xor the row's, modulo 8. It begins at a multiple of 1024 bytes, and 32 bytes further on for each 16
// columns.
__device__ __forceinline__ uint64_t smem_desc(const void* shared) {
  const uint64_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  return (address & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// A barrier in shared memory; a phase is over after `n` arrivals and all bytes that were announced.
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, uint32_t n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(n) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// A shared address that the compiler does not derive anew wherever it is used.
__device__ __forceinline__ uint32_t fixed_address(const void* shared) {
  uint32_t address;
  asm volatile("mov.u32 %0, %1;" : "=r"(address) : "r"(shared_address(shared)));
  return address;
}

// A thread's number in its block, of which the compiler makes nothing before this is reached.
__device__ __forceinline__ uint32_t thread_again() {
  uint32_t tid;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(tid));
  return tid;
}

// The same of a block's numbers.
__device__ __forceinline__ uint2 block_again() {
  uint2 block;
  asm volatile("mov.u32 %0, %%ctaid.x; mov.u32 %1, %%ctaid.y;" : "=r"(block.x), "=r"(block.y));
  return block;
}

// The same, and what ptx.cuh has, by addresses in shared memory.
__device__ __forceinline__ uint64_t smem_desc(uint32_t shared) { return (shared & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62; }

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(n) : "memory");
}

__device__ __forceinline__ void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void cp_async_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
               "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  } while (!done);
}

// Before the first product of a group, and after its sums were touched.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until no more than the last N groups of products are under way.
template <int N>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// The description of a matrix of bytes in global memory, of which the copy engine brings boxes; the driver makes it.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

// Copies the box whose first byte is `column` of row `row`; by one thread. What lies outside the matrix becomes zeros, and counts as
// copied.
__device__ __forceinline__ void tma_load(void* to, const TensorMap* map, int column, int row, uint64_t* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                   shared_address(to)),
               "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
               : "memory");
}

__device__ __forceinline__ void tma_load(uint32_t to, const TensorMap* map, int column, int row, uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
               "l"(map), "r"(column), "r"(row), "r"(barrier)
               : "memory");
}

// The same of a map of five dimensions.
__device__ __forceinline__ void tma_load(uint32_t to, const TensorMap* map, int c0, int c1, int c2, int c3, int c4, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(
          to),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(barrier)
      : "memory");
}

// Copies from shared memory to global memory in the background, by one thread, which later waits until its copies have been read, or have
// been written too.
__device__ __forceinline__ void cp_async_bulk_store(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

__device__ __forceinline__ void cp_async_bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

__device__ __forceinline__ void cp_async_bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Four 8 x 8 matrices of 16-bit numbers as `mma_f16` has them; lane l names the row l % 8 of matrix l / 8.
__device__ __forceinline__ void stmatrix_x4(uint32_t row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// The same of the matrices with rows and columns exchanged.
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]),
               "r"(r[3])
               : "memory");
}

// A matrix `bytes` further on, a multiple of 16, than one whose description begins with the word `first`.
__device__ __forceinline__ uint64_t smem_desc_after(uint32_t first, uint32_t bytes) {
  uint64_t matrix;
  asm("mov.b64 %0, {%1, %2};" : "=l"(matrix) : "r"(first + bytes / 16), "r"(0x40000040));
  return matrix;
}

// A barrier of all threads of a cluster.
__device__ __forceinline__ void cluster_sync_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// The same, which also makes what they wrote to shared memory known to each other.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Where what is at `p` in one's own shared memory is in that of a block of the cluster, and four floats from there.
__device__ __forceinline__ uint32_t mapa(const void* p, uint32_t rank) {
  uint32_t at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(p)), "r"(rank));
  return at;
}

__device__ __forceinline__ float4 ld_shared_cluster(uint32_t at) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
  return v;
}

// As `wgmma_ss_f16`, for a of [64, 16] in registers, which must stay until these products are over: each lane of warp w holds of
// rows 16 w to 16 w + 15 what `mma_f16` wants.
#define FLOATS_1(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define FLOATS_2(d, i) FLOATS_1(d, i), FLOATS_1(d, i + 1)
#define FLOATS_4(d, i) FLOATS_2(d, i), FLOATS_2(d, i + 2)
#define FLOATS_8(d, i) FLOATS_4(d, i), FLOATS_4(d, i + 4)
#define FLOATS_12(d, i) FLOATS_8(d, i), FLOATS_4(d, i + 8)
#define FLOATS_16(d, i) FLOATS_8(d, i), FLOATS_8(d, i + 8)
#define FLOATS_32(d, i) FLOATS_16(d, i), FLOATS_16(d, i + 16)
#define NAMES_1 "%0, %1, %2, %3"
#define NAMES_2 NAMES_1 ", %4, %5, %6, %7"
#define NAMES_4 NAMES_2 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_8 NAMES_4 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_12 NAMES_8 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_16 \
  NAMES_8 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
          "%56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_32 \
  NAMES_16 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, " \
           "%87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, " \
           "%109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define FLOATS_24(d, i) FLOATS_16(d, i), FLOATS_8(d, i + 16)
#define NAMES_24 \
  NAMES_16 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, " \
           "%87, %88, %89, %90, %91, %92, %93, %94, %95"
#define MULTIPLY_ROWS(columns, eighths, operands)                                                                          \
  __device__ __forceinline__ void wgmma_rs_f16(float (&d)[eighths][4], const uint32_t (&a)[4], uint64_t b) {              \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 {" NAMES_##eighths "}, " operands ", 1, 1, 1, 0;" \
                 : FLOATS_##eighths(d, 0)                                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                    \
  }
MULTIPLY_ROWS(8, 1, "{%4, %5, %6, %7}, %8")
MULTIPLY_ROWS(16, 2, "{%8, %9, %10, %11}, %12")
MULTIPLY_ROWS(32, 4, "{%16, %17, %18, %19}, %20")
MULTIPLY_ROWS(64, 8, "{%32, %33, %34, %35}, %36")
MULTIPLY_ROWS(96, 12, "{%48, %49, %50, %51}, %52")
MULTIPLY_ROWS(128, 16, "{%64, %65, %66, %67}, %68")
MULTIPLY_ROWS(256, 32, "{%128, %129, %130, %131}, %132")
#undef MULTIPLY_ROWS

// The same of a and b in shared memory.
#define MULTIPLY_SHARED(type, columns, eighths, operands)                                                                  \
  __device__ __forceinline__ void wgmma_ss_##type(float (&d)[eighths][4], uint64_t a, uint64_t b) {                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #type "." #type " {" NAMES_##eighths "}, " operands \
                 ", 1, 1, 1, 0, 0;"                                                                                        \
                 : FLOATS_##eighths(d, 0)                                                                                  \
                 : "l"(a), "l"(b));                                                                                        \
  }
#define MULTIPLY_SHARED_OF(type)                                                                              \
  MULTIPLY_SHARED(type, 8, 1, "%4, %5") MULTIPLY_SHARED(type, 16, 2, "%8, %9") MULTIPLY_SHARED(type, 32, 4, "%16, %17") \
  MULTIPLY_SHARED(type, 64, 8, "%32, %33") MULTIPLY_SHARED(type, 96, 12, "%48, %49") MULTIPLY_SHARED(type, 128, 16, "%64, %65") MULTIPLY_SHARED(type, 256, 32, "%128, %129")
MULTIPLY_SHARED_OF(f16) MULTIPLY_SHARED_OF(bf16)
#undef MULTIPLY_SHARED
#undef MULTIPLY_SHARED_OF

// d += a bT in the background, or d = a bT where `add` is 0, by 4 warps: a [64, 16], b [N, 16]. Warp w of the four has rows 16 w to
// 16 w + 15 of d, each 8 columns as in `mma_f16`.
#define MULTIPLY_GROUP(type, columns, eighths, a_name, b_name, add_name) \
  __device__ __forceinline__ void wgmma_ss_##type(float (&d)[eighths][4], uint64_t a, uint64_t b, uint32_t add) { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " add_name ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #type "." #type " {" NAMES_##eighths "}, " a_name ", " b_name \
                 ", p, 1, 1, 0, 0; }" \
                 : FLOATS_##eighths(d, 0) \
                 : "l"(a), "l"(b), "r"(add)); \
  }
#define MULTIPLY_GROUPS(type) \
  MULTIPLY_GROUP(type, 64, 8, "%32", "%33", "%34") MULTIPLY_GROUP(type, 128, 16, "%64", "%65", "%66") \
  MULTIPLY_GROUP(type, 192, 24, "%96", "%97", "%98") \
  MULTIPLY_GROUP(type, 256, 32, "%128", "%129", "%130")
MULTIPLY_GROUPS(f16) MULTIPLY_GROUPS(bf16)
#undef MULTIPLY_GROUP
#undef MULTIPLY_GROUPS

// The same of integers of 8 bits: a [64, 32], b [N, 32].
#define INTEGERS_1(d, i) "+r"(d[i][0]), "+r"(d[i][1]), "+r"(d[i][2]), "+r"(d[i][3])
#define INTEGERS_2(d, i) INTEGERS_1(d, i), INTEGERS_1(d, i + 1)
#define INTEGERS_4(d, i) INTEGERS_2(d, i), INTEGERS_2(d, i + 2)
#define INTEGERS_8(d, i) INTEGERS_4(d, i), INTEGERS_4(d, i + 4)
#define INTEGERS_16(d, i) INTEGERS_8(d, i), INTEGERS_8(d, i + 8)
#define INTEGERS_24(d, i) INTEGERS_16(d, i), INTEGERS_8(d, i + 16)
#define MULTIPLY_BYTES(columns, eighths, a_name, b_name, add_name) \
  __device__ __forceinline__ void wgmma_ss_s8(int (&d)[eighths][4], uint64_t a, uint64_t b, uint32_t add) { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " add_name ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k32.s32.s8.s8 {" NAMES_##eighths "}, " a_name ", " b_name ", p; }" \
                 : INTEGERS_##eighths(d, 0) \
                 : "l"(a), "l"(b), "r"(add)); \
  }
MULTIPLY_BYTES(128, 16, "%64", "%65", "%66") MULTIPLY_BYTES(192, 24, "%96", "%97", "%98")
#undef MULTIPLY_BYTES

// After ordinary writes to global memory that the copy engine reads, of this block or, when they are announced, of another.
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Tells another block of the launch that what was written before, by threads that have met, is there.
__device__ __forceinline__ void announce(uint32_t* flag) { asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory"); }

// Waits for that, takes the flag back, and lets the copy engine read what is there.
__device__ __forceinline__ void wait_and_clear(uint32_t* flag) {
  uint32_t is_there;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(is_there) : "l"(flag) : "memory");
  } while (!is_there);
  asm volatile("st.relaxed.gpu.global.u32 [%0], 0;" ::"l"(flag) : "memory");
  fence_proxy_async_global();
}

// Adds to a number in global memory, without waiting for it.
__device__ __forceinline__ void add_to(float* y, float v) { asm volatile("red.global.add.f32 [%0], %1;" ::"l"(y), "f"(v) : "memory"); }

// Floats in shared memory that the copy engine writes.
__device__ __forceinline__ float load_float(uint32_t at) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
  return x;
}

__device__ __forceinline__ float2 load_floats(uint32_t at) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
  return v;
}

__device__ __forceinline__ float4 load_quad(uint32_t at) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
  return v;
}

// The same with a in registers, as `mma_f16` has it. `B_ROWS`: whether b is [N, 16] as above, or 16 rows of N numbers, where
// ptx::smem_desc_mn_major says how they lie.
#define MULTIPLY_REGISTERS(type, columns, eighths, a_names, b_name, add_name, order_name) \
  template <bool B_ROWS> \
  __device__ __forceinline__ void wgmma_rs_##type(float (&d)[eighths][4], const uint32_t (&a)[4], uint64_t b, uint32_t add) { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " add_name ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #type "." #type " {" NAMES_##eighths "}, {" a_names "}, " b_name \
                 ", p, 1, 1, " order_name "; }" \
                 : FLOATS_##eighths(d, 0) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(B_ROWS ? 0 : 1)); \
  }
#define MULTIPLY_REGISTERS_OF(type) \
  MULTIPLY_REGISTERS(type, 16, 2, "%8, %9, %10, %11", "%12", "%13", "%14") \
  MULTIPLY_REGISTERS(type, 32, 4, "%16, %17, %18, %19", "%20", "%21", "%22") \
  MULTIPLY_REGISTERS(type, 64, 8, "%32, %33, %34, %35", "%36", "%37", "%38") \
  MULTIPLY_REGISTERS(type, 128, 16, "%64, %65, %66, %67", "%68", "%69", "%70") \
  MULTIPLY_REGISTERS(type, 256, 32, "%128, %129, %130, %131", "%132", "%133", "%134")
MULTIPLY_REGISTERS_OF(f16) MULTIPLY_REGISTERS_OF(bf16)
#undef MULTIPLY_REGISTERS
#undef MULTIPLY_REGISTERS_OF

// Where rows of 64 numbers are, as `smem_desc`; the next 64 columns of all are `next_columns` bytes further on. 16 rows are 2048 bytes.
__device__ __forceinline__ uint64_t smem_desc_mn_major(uint32_t shared, uint32_t next_columns) {
  return (shared & 0x3ffff) >> 4 | static_cast<uint64_t>(next_columns >> 4) << 16 | 64ull << 32 | 1ull << 62;
}


// Changes how many registers each thread of a group of 4 warps has; a block has no more of them together than at its start.
template <int N>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

}  // namespace ptx
#endif
