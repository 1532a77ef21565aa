// Runs CUDA C++ kernels on the CPU, for tests: one fiber per CUDA thread.
//
// A fiber runs until it waits: at __syncthreads for its block, at a warp collective for its warp, at an mbarrier for a phase. A block runs
// until all of its fibers wait for other blocks; then others run, as many at once as the device has multiprocessors. So results are those
// of a legal schedule, always the same one; races do not show. Warp collectives count the lanes that have not returned, and do not look
// at their masks. Shared memory keeps what an earlier block left there (static) or holds NaN (dynamic).
//
// REALIZAR_EMULATION is the architecture: 800 or 900.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sched.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))
// A block that waits for others is put aside with all variables of the thread that runs it (emulation.cpp).
#define __shared__ static thread_local
#define __CUDA_ARCH__ REALIZAR_EMULATION

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct Dim3 { unsigned x, y, z; };

namespace emulation {

constexpr unsigned MAX_THREADS = 1024;

// Whether the emulated GPU is Hopper.
constexpr bool HOPPER = REALIZAR_EMULATION >= 900;

// Ends the process with what a kernel did wrong.
[[noreturn]] void die(const char* what);

// A barrier of `live` fibers: the last to arrive starts the next round.
struct Barrier {
  unsigned live, arrived, round;
};

struct Fiber {
  void* stack_pointer;
  // What the lane gives to a collective; two, so that one round may be read while the next is written.
  uint64_t given[2][8];
};

struct Cluster;
struct Async;
struct Copies;

// A block of threads that runs, or waits for others.
struct Block {
  Fiber fibers[MAX_THREADS];
  // Of each fiber: the round of a barrier, and the value that it has while the fiber waits for its end. What a fiber that may run waits for is
  // `NOTHING`, what one that is done waits for is `NEVER`.
  const unsigned* rounds[MAX_THREADS];
  unsigned waited[MAX_THREADS];
  Barrier all, warps[MAX_THREADS / 32], named[16];
  Dim3 index;
  // The fiber that runs, and how many are not done.
  unsigned current, n_live;
  unsigned char *dynamic_shared, *dynamic_end;
  Cluster* cluster;
  Async* async;
  Copies* copies;
  // Shared memory that is not dynamic, and stacks.
  unsigned char *saved_shared, *stacks;
  bool has_saved;
};

extern Block* block;
extern Dim3 thread_index, block_index, block_dim, grid_dim;
extern unsigned dynamic_bytes;

// Counts what other fibers may wait for. A block in which it stands still over a whole round of fibers waits for another block.
extern uint64_t progress;

// Rounds that have ended and that never end.
constexpr unsigned NOTHING = 1, NEVER = 0;

// Runs other fibers, and returns when this one's turn comes again.
void yield();

// Runs other fibers until a barrier has left a round.
void await(const Barrier& b, unsigned round);

// Saves the registers that a called function must keep and goes on with another stack.
extern "C" void emulation_switch(void** save, void* load);

inline bool may_run(unsigned i) { return *block->rounds[i] != block->waited[i]; }

inline void switch_to(unsigned next) {
  Block& b = *block;
  void** save = &b.fibers[b.current].stack_pointer;
  b.current = next;
  thread_index.x = next;
  emulation_switch(save, b.fibers[next].stack_pointer);
}

// `last` is called by the last to arrive, before the others go on.
template <class F>
void wait(Barrier& b, F last) {
  progress++;
  const unsigned round = b.round;
  if (++b.arrived == b.live) {
    last();
    b.arrived = 0;
    b.round++;
    return;
  }
  await(b, round);
}
inline void wait(Barrier& b) {
  wait(b, [] {});
}

inline unsigned thread() { return block->current; }
inline unsigned lane() { return thread() % 32; }
inline Barrier& warp() { return block->warps[thread() / 32]; }
void wait_for_warp();

// Shared memory has addresses of 32 bits, as on the GPU: dynamic shared memory lies within the 256 KiB that descriptions of matrices reach.
constexpr uint32_t DYNAMIC_AT = 1024, STATIC_AT = 1 << 20;
// Dynamic shared memory begins this much after a multiple of 1024 bytes, unless the kernel asks for such a multiple.
constexpr uint32_t DYNAMIC_OFFSET = 16;
uint32_t address_of(const void* p);
// Where `bytes` bytes from an address on are; only shared memory has one.
unsigned char* at(uint32_t address, uint32_t bytes);

// Hands `n` words to the warp and returns a function-like view of what each lane gave.
struct Given {
  unsigned first, side;
  uint64_t operator()(unsigned lane, unsigned word = 0) const { return block->fibers[first + lane].given[side][word]; }
  template <class T>
  void copy(T& out, unsigned lane) const { memcpy(&out, block->fibers[first + lane].given[side], sizeof out); }
};

inline Given give(const uint64_t* words, unsigned n) {
  const unsigned side = warp().round & 1;
  memcpy(block->fibers[thread()].given[side], words, n * sizeof *words);
  wait_for_warp();
  return Given{thread() / 32 * 32, side};
}

template <class T>
T from_lane(T value, unsigned source) {
  static_assert(sizeof(T) <= 8, "a shuffle moves one word");
  uint64_t word = 0;
  memcpy(&word, &value, sizeof value);
  word = give(&word, 1)(source % 32);
  memcpy(&value, &word, sizeof value);
  return value;
}

// A kernel by its name; they register themselves before main.
struct Kernel {
  const char* name;
  size_t args_bytes;
  void (*run)(const void* args);
  Kernel* next;
  Kernel(const char* name, size_t args_bytes, void (*run)(const void*));
};

}  // namespace emulation

#define threadIdx (emulation::thread_index)
#define blockIdx (emulation::block_index)
#define blockDim (emulation::block_dim)
#define gridDim (emulation::grid_dim)

#define KERNEL(name, Args, max_threads)                                                              \
  static void name(const Args&);                                                                     \
  static emulation::Kernel name##_kernel(#name, sizeof(Args), [](const void* args) { name(*static_cast<const Args*>(args)); }); \
  static void name(const Args& a)

#define KERNEL_1(name, Args, max_threads) KERNEL(name, Args, max_threads)
#define KERNEL_2(name, Args, max_threads) KERNEL(name, Args, max_threads)
#define KERNEL_4(name, Args, max_threads) KERNEL(name, Args, max_threads)
#define KERNEL_OF(name, Args, registers) KERNEL(name, Args, 0)
#define DYNAMIC_SHARED(name) unsigned char* name = emulation::block->dynamic_shared + emulation::DYNAMIC_OFFSET
#define DYNAMIC_SHARED_TILES(name) unsigned char* name = emulation::block->dynamic_shared

inline void __syncthreads() { emulation::wait(emulation::block->all); }
inline void __syncwarp(unsigned = ~0u) { emulation::wait_for_warp(); }
inline void __threadfence() {}
template <class T> T __shfl_xor_sync(unsigned, T v, int mask) { return emulation::from_lane(v, emulation::lane() ^ mask); }
template <class T> T __shfl_sync(unsigned, T v, int source) { return emulation::from_lane(v, source); }
template <class T> T __shfl_up_sync(unsigned, T v, unsigned d) {
  const unsigned lane = emulation::lane();
  return emulation::from_lane(v, lane >= d ? lane - d : lane);
}
template <class T> T __shfl_down_sync(unsigned, T v, unsigned d) {
  const unsigned lane = emulation::lane();
  return emulation::from_lane(v, lane + d < 32 ? lane + d : lane);
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  const uint64_t word = predicate != 0;
  const auto given = emulation::give(&word, 1);
  unsigned bits = 0;
  for (unsigned l = 0; l < 32; l++) bits |= static_cast<unsigned>(given(l)) << l;
  return bits;
}

inline unsigned __match_any_sync(unsigned, unsigned v) {
  const uint64_t word = v;
  const auto given = emulation::give(&word, 1);
  unsigned bits = 0;
  for (unsigned l = 0; l < 32; l++) bits |= static_cast<unsigned>(given(l) == word) << l;
  return bits;
}
inline unsigned __reduce_max_sync(unsigned, unsigned v) {
  const uint64_t word = v;
  const auto given = emulation::give(&word, 1);
  for (unsigned l = 0; l < 32; l++) v = std::max(v, static_cast<unsigned>(given(l)));
  return v;
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned v) { return ~__reduce_max_sync(mask, ~v); }

using std::max;
using std::min;
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(unsigned x) { return __builtin_ffs(static_cast<int>(x)); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
inline int __float_as_int(float x) { return static_cast<int>(__float_as_uint(x)); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(rintf(x)); }
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (n & 31));
}
inline double cospi(double x) { return cos(3.14159265358979323846 * (x - 2 * rint(x / 2))); }
inline double sinpi(double x) { return sin(3.14159265358979323846 * (x - 2 * rint(x / 2))); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  const uint64_t bytes = a | static_cast<uint64_t>(b) << 32;
  unsigned y = 0;
  for (int i = 0; i < 4; i++) y |= static_cast<unsigned>(bytes >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
  return y;
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return c;
}
// c + the products of two halves of a with the first or the last two bytes of b.
inline int __dp2a_lo(int a, int b, int c) {
  for (int i = 0; i < 2; i++) c += static_cast<int16_t>(a >> 16 * i) * static_cast<int8_t>(b >> 8 * i);
  return c;
}
inline int __dp2a_hi(int a, int b, int c) { return __dp2a_lo(a, b >> 16, c); }
template <class T> T atomicAdd(T* p, T x) { const T before = *p; *p += x; return before; }
template <class T> T atomicOr(T* p, T x) { const T before = *p; *p |= x; return before; }
template <class T> T atomicMax(T* p, T x) { const T before = *p; *p = x > before ? x : before; return before; }
template <class T> T atomicExch(T* p, T x) { const T before = *p; *p = x; return before; }
template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> T __ldcg(const T* p) { return *p; }

namespace ptx {

// Written with integers, so that any compiler will do. Exact, and to the nearest, ties to even.
inline float f16_to_f32(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) return __uint_as_float(sign | __float_as_uint(static_cast<float>(mantissa) * 0x1p-24f));
  return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

inline uint16_t f32_to_f16(float x) {
  const uint32_t bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Adding 2^-1 puts the last bit of a half-precision subnormal (2^-24) at the last bit of the sum.
    return static_cast<uint16_t>(sign | (__float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u));
  }
  const uint32_t odd = magnitude >> 13 & 1;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

inline uint16_t f32_to_bf16(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

inline uint32_t f32_to_f16(float low, float high) { return f32_to_f16(low) | static_cast<uint32_t>(f32_to_f16(high)) << 16; }
inline uint32_t f32_to_f16_within(float low, float high) {
  const auto within = [](float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; };
  return f32_to_f16(within(low), within(high));
}
inline uint32_t f32_to_bf16(float low, float high) { return f32_to_bf16(low) | static_cast<uint32_t>(f32_to_bf16(high)) << 16; }
// But for what is not a number, E4M3 is half precision with fewer bits and an exponent that is larger by 8.
inline void e4m3_to_f16(uint32_t& low, uint32_t& high, uint32_t bytes) {
  const auto number = [=](int i) {
    const uint32_t b = bytes >> 8 * i & 255;
    if ((b & 0x7f) == 0x7f) return uint32_t{0x7fff};
    return (b << 8 & 0x8000u) | f32_to_f16(f16_to_f32(static_cast<uint16_t>((b & 0x7f) << 7)) * 256.0f);
  };
  low = number(0) | number(1) << 16, high = number(2) | number(3) << 16;
}
inline uint32_t small_f16(uint32_t x) { return f32_to_f16(static_cast<float>(x & 0xffff), static_cast<float>(x >> 16)); }

// Of two numbers of half precision each. A sum or a product of two is rounded to a float without changing how it is rounded to half
// precision.
template <class F>
uint32_t halves_of(F f) {
  return f32_to_f16(f(0), f(16));
}
inline float half_of(uint32_t x, int shift) { return f16_to_f32(static_cast<uint16_t>(x >> shift)); }
inline uint32_t add_f16(uint32_t a, uint32_t b) {
  return halves_of([=](int h) { return half_of(a, h) + half_of(b, h); });
}
inline uint32_t mul_f16(uint32_t a, uint32_t b) {
  return halves_of([=](int h) { return half_of(a, h) * half_of(b, h); });
}
inline uint32_t fma_f16(uint32_t a, uint32_t b, uint32_t c) {
  return halves_of([=](int h) { return half_of(a, h) * half_of(b, h) + half_of(c, h); });
}
inline float exp2_fast(float x) { return exp2f(x); }
inline float reciprocal_fast(float x) { return 1.0f / x; }
inline float max_or_nan(float a, float b) { return a != a || b != b ? NAN : a > b ? a : b; }

inline uint32_t mask_and_set(uint32_t x, uint32_t mask, uint32_t bits) { return (x & mask) | bits; }

inline uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = a | static_cast<uint64_t>(b) << 32;
  uint32_t y = 0;
  for (int i = 0; i < 4; i++) {
    const uint32_t nibble = selector >> 4 * i & 15, byte = bytes >> 8 * (nibble & 7) & 255;
    y |= (nibble < 8 ? byte : byte >> 7 ? 255u : 0u) << 8 * i;
  }
  return y;
}

inline uint32_t sign_bytes(uint32_t x) { return permute(x, 0, 0xba98); }

inline int dp4a_unsigned(uint32_t a, int b, int c) {
  for (int i = 0; i < 4; i++) c += static_cast<uint8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return c;
}

template <int N>
void sync_threads(int id) {
  emulation::Barrier& b = emulation::block->named[id];
  if (N % 32 || id < 1 || id > 15 || (b.arrived && b.live != N)) emulation::die("a barrier of other threads");
  b.live = N;
  emulation::wait(b);
}

typedef uint32_t SharedAddress;
inline SharedAddress shared_address(const void* p) { return emulation::address_of(p); }
inline unsigned anew(unsigned x) { return x; }

}  // namespace ptx

#include "async.hpp"

namespace ptx {

inline uint32_t scale_bytes(uint32_t bytes, uint32_t scale) {
  const float d = f16_to_f32(static_cast<uint16_t>(scale));
  const uint32_t low = f32_to_f16(static_cast<int8_t>(bytes) * d), high = f32_to_f16(static_cast<int8_t>(bytes >> 8) * d);
  return low | high << 16;
}

// Devices that are emulated side by side run on threads of their own.
inline void store_packet(uint2* to, uint32_t word, uint32_t number) {
  __atomic_store_n(reinterpret_cast<uint64_t*>(to), word | static_cast<uint64_t>(number) << 32, __ATOMIC_RELEASE);
}
inline uint2 load_packet(const uint2* from) {
  const uint64_t p = __atomic_load_n(reinterpret_cast<const uint64_t*>(from), __ATOMIC_ACQUIRE);
  return {static_cast<unsigned>(p), static_cast<unsigned>(p >> 32)};
}
inline void store_packet(uint4* to, uint32_t a, uint32_t b, uint32_t number) {
  uint64_t* halves = reinterpret_cast<uint64_t*>(to);
  __atomic_store_n(halves, a | static_cast<uint64_t>(number) << 32, __ATOMIC_RELEASE);
  __atomic_store_n(halves + 1, b | static_cast<uint64_t>(number) << 32, __ATOMIC_RELEASE);
}
inline uint4 load_packet(const uint4* from) {
  const uint64_t* halves = reinterpret_cast<const uint64_t*>(from);
  const uint64_t a = __atomic_load_n(halves, __ATOMIC_ACQUIRE), b = __atomic_load_n(halves + 1, __ATOMIC_ACQUIRE);
  return {static_cast<unsigned>(a), static_cast<unsigned>(a >> 32), static_cast<unsigned>(b), static_cast<unsigned>(b >> 32)};
}
inline uint32_t load_word(const uint32_t* from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
inline void pause() { sched_yield(); }

inline uint32_t count_up(uint32_t* counter) { return (*counter)++; }
inline void griddepcontrol_wait() {}
inline void launch_dependents() {}

}  // namespace ptx

#include "tensor.hpp"
