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

// Two numbers at once, the first in the low half.
__device__ __forceinline__ uint32_t f32_to_f16(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

// The same; what is out of range becomes the largest number.
__device__ __forceinline__ uint32_t f32_to_f16_within(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

__device__ __forceinline__ uint32_t f32_to_bf16(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

// Two to the power of x, within two units in the last place.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The larger of two; what is not a number is largest.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// c + the products of four unsigned bytes of a with four signed ones of b.
__device__ __forceinline__ int dp4a_unsigned(uint32_t a, int b, int c) {
  int d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// x & mask | bits, in one instruction though both are constants.
__device__ __forceinline__ uint32_t mask_and_set(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
  return y;
}

// Bytes of b (the last four) and a that the nibbles of the low half of `selector` number; a nibble of 8 and more takes only the sign, eight
// times.
__device__ __forceinline__ uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(selector));
  return y;
}

// The highest bit of each byte, eight times.
__device__ __forceinline__ uint32_t sign_bytes(uint32_t x) { return permute(x, 0, 0xba98); }

// Two numbers below 1024, in the halves of a word, in half precision.
__device__ __forceinline__ uint32_t small_f16(uint32_t x) {
  uint32_t y = x | 0x64006400u;
  asm("sub.f16x2 %0, %0, %1;" : "+r"(y) : "r"(0x64006400u));
  return y;
}

// Four numbers of E4M3, a byte each, in half precision. From compute capability 8.9 on.
__device__ __forceinline__ void e4m3_to_f16(uint32_t& low, uint32_t& high, uint32_t bytes) {
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }" : "=r"(low), "=r"(high) : "r"(bytes));
}

// Arithmetic with two numbers of half precision.
__device__ __forceinline__ uint32_t fma_f16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ __forceinline__ uint32_t add_f16(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

__device__ __forceinline__ uint32_t mul_f16(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// The same number, from which the compiler may not know what follows: it computes that where it is wanted, and keeps no registers for it.
__device__ __forceinline__ unsigned anew(unsigned x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Copies by a warp from global to shared memory that go on while it does: each lane calls these alike. On Hopper a copy is one request
// of the first lane's; before, it is many of all lanes'. A barrier counts what has arrived; its phases have parity 0, 1, 0, …
// Addresses and sizes are multiples of 16.
typedef uint32_t SharedAddress;
__device__ __forceinline__ SharedAddress shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// The lane as copies want to know it. On Hopper, where they only ask whether it is the first, another may stand for that: when the whole
// warp asks, the compiler knows that it is one, and keeps addresses where copies want them.
__device__ __forceinline__ int copying_lane(int lane) {
#if __CUDA_ARCH__ >= 900
  uint32_t elected;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
  return elected ? 0 : 1;
#else
  return lane;
#endif
}

// `warps`: how many copy in each phase.
__device__ __forceinline__ void barrier_init(uint64_t* barrier, int lane, int warps = 1) {
#if __CUDA_ARCH__ >= 900
  const int arrivals = warps;
#else
  const int arrivals = 32 * warps;
#endif
  if (lane == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// A barrier that counts warps, in phases like those of copies.
__device__ __forceinline__ void counter_init(uint64_t* barrier, int lane, int warps) {
  if (lane == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(warps) : "memory");
}

// A warp is done, all lanes of which have met.
__device__ __forceinline__ void count(uint64_t* barrier, int lane) {
  if (lane == 0) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(barrier)) : "memory");
  }
}

// Makes new barriers known to copies.
__device__ __forceinline__ void fence_mbarrier_init() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  __syncwarp();
}

// Begins a phase that is over when `bytes` bytes have been copied.
__device__ __forceinline__ void mbarrier_expect_tx(uint64_t* barrier, int lane, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
  }
#endif
}

__device__ __forceinline__ void cp_async_bulk(void* to, const void* from, uint32_t bytes, uint64_t* barrier, int lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
  }
#else
  for (uint32_t i = lane * 16; i < bytes; i += 512) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to) + i), "l"(static_cast<const char*>(from) + i)
                 : "memory");
  }
#endif
}

// The same of what nothing reads again soon: it may leave the second-level cache before all else there, such as instructions.
__device__ __forceinline__ void cp_async_bulk_evict_first(void* to, const void* from, uint32_t bytes, uint64_t* barrier, int lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    // As `createpolicy.fractional.L2::evict_first` makes it.
    constexpr uint64_t EVICT_FIRST = 0x12f0000000000000;
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(EVICT_FIRST)
                 : "memory");
  }
#else
  cp_async_bulk(to, from, bytes, barrier, lane);
#endif
}

// The same for many copies in a row, which find addresses in shared memory as they want them.
__device__ __forceinline__ void cp_async_bulk_evict_first(SharedAddress to, const void* from, uint32_t bytes, SharedAddress barrier, int lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    constexpr uint64_t EVICT_FIRST = 0x12f0000000000000;
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(EVICT_FIRST)
                 : "memory");
  }
#else
  for (uint32_t i = lane * 16; i < bytes; i += 512) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i), "l"(static_cast<const char*>(from) + i) : "memory");
  }
#endif
}

// After the last copy of a phase.
__device__ __forceinline__ void cp_async_mbarrier_arrive(uint64_t* barrier) {
#if __CUDA_ARCH__ < 900
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  do {
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#else
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#endif
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
  } while (!done);
}

// After ordinary writes to shared memory, before TMA or wgmma accesses it.
__device__ __forceinline__ void fence_proxy_async_shared() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Until this returns, what earlier kernels of the stream wrote may not be read. Does nothing in a kernel that was launched without
// the attribute of programmatic launch, and on GPUs before Hopper.
__device__ __forceinline__ void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start while this one still runs; it waits for this one's results by itself.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Copies 16 bytes into shared memory in the background. Only the first `bytes` are read; zeros stand for the rest.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, uint32_t bytes) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}

// The same of memory that is read once: it leaves the L2 cache before what is read again.
__device__ __forceinline__ void cp_async_16_evict_first(void* shared, const void* global, uint32_t bytes) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  constexpr uint64_t EVICT_FIRST = 0x12f0000000000000;
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(global), "r"(bytes), "l"(EVICT_FIRST) : "memory");
}

// Closes a group of this thread's background copies, which may be empty.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until no more than the last N groups of this thread are under way.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Four 8 x 8 matrices of 16-bit numbers from shared memory. Lanes 8 i to 8 i + 7 give the rows of matrix i, 16 bytes each; lane l
// gets elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}

// The same of the matrices with rows and columns exchanged.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}

// An 8 x 8 matrix of 16-bit numbers with rows and columns exchanged: lane l has elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4.
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t r) {
  uint32_t t;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(r));
  return t;
}

// Adds one to a counter of the device and returns what it was. What was written before is seen by those who find it counted.
__device__ __forceinline__ uint32_t count_up(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// d += a b on the tensor cores: a [16, 16] and b [16, 8] of half precision, sums [16, 8] in floats. With g = lane / 4, t = lane % 4 a
// lane holds of a elements 2 t and 2 t + 1 of rows g, g + 8, and 2 t + 8 and 2 t + 9 of these; of b rows 2 t, 2 t + 1, and 2 t + 8,
// 2 t + 9 of column g; of d columns 2 t, 2 t + 1 of rows g, g + 8.
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same of bfloat16.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A float rounded to the 10 bits of mantissa that the tensor cores' TF32 has.
__device__ __forceinline__ uint32_t f32_to_tf32(float x) {
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}

// d += a b of TF32: a [16, 8], b [8, 8]. With g = lane / 4, t = lane % 4 a lane holds of a element t of rows g and g + 8, then element t + 4
// of these; of b rows t and t + 4 of column g; of d columns 2 t, 2 t + 1 of rows g, g + 8.
__device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d = a b + c on the tensor cores' integers: a [16, 32] without signs, b [32, 8] with them, c [16, 8]. With g = lane / 4, t = lane % 4 a
// lane holds of a elements 4 t to 4 t + 3 of rows g, g + 8, and 4 t + 16 to 4 t + 19 of these; of b such rows of column g; of c and d
// columns 2 t, 2 t + 1 of rows g, g + 8.
__device__ __forceinline__ void mma_u8(int (&d)[4], const uint32_t (&a)[4], uint2 b, const int (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// The same of numbers with signs.
__device__ __forceinline__ void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint2 b, const int (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// The same of 16 columns of a: elements 4 t to 4 t + 3 of rows g and g + 8.
__device__ __forceinline__ void mma_s8_k16(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b, const int (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// A barrier of N threads of a block, whole warps; `id` is 1 to 15.
template <int N>
__device__ __forceinline__ void sync_threads(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(N) : "memory");
}

// A packet of a word and a number, or of two words, each followed by the number, to another GPU's memory or from its own, where another
// GPU writes. 8 bytes are written and read at once.
__device__ __forceinline__ void store_packet(uint2* to, uint32_t word, uint32_t number) {
  asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(word), "r"(number) : "memory");
}
__device__ __forceinline__ void store_packet(uint4* to, uint32_t a, uint32_t b, uint32_t number) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %3, %2, %3};" ::"l"(to), "r"(a), "r"(b), "r"(number) : "memory");
}

__device__ __forceinline__ uint4 load_packet(const uint4* from) {
  uint4 p;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(p.x), "=r"(p.y), "=r"(p.z), "=r"(p.w) : "l"(from) : "memory");
  return p;
}

__device__ __forceinline__ uint2 load_packet(const uint2* from) {
  uint2 p;
  asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(p.x), "=r"(p.y) : "l"(from) : "memory");
  return p;
}

// A word that the host may change.
__device__ __forceinline__ uint32_t load_word(const uint32_t* from) {
  uint32_t word;
  asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}

// Between two looks at memory that another GPU or the host writes.
__device__ __forceinline__ void pause() {}

// Two signed bytes times a number in half precision, which stands in both halves of `scale`; the products rounded to half precision.
// A byte under the exponent of 1024 is a number of half precision by itself.
__device__ __forceinline__ uint32_t scale_bytes(uint32_t bytes, uint32_t scale) {
  uint32_t pair = __byte_perm(bytes ^ 0x8080u, 0x64646464u, 0x4140);
  asm("sub.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(0x64806480u));
  asm("mul.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(scale));
  return pair;
}

}  // namespace ptx
