// The meaning of common/hopper.cuh for the emulation. Products of wgmma happen when their group is committed or not before it is waited
// for, by turns that look random, and read and write registers and shared memory then.
#pragma once
#include "cuda.hpp"

namespace emulation {

// S8, U8: integers of 8 bits, those of a with signs or without.
enum class Number { F16, BF16, S8, U8 };

// d += a b or d = a b of a group of 4 warps: a [64, K], b [K, 8 * n_eighths]; K is 32 bytes.
struct Product {
  Number number;
  unsigned n_eighths;
  // Whether a is in registers, and whether b has K rows of contiguous columns instead of columns of contiguous rows.
  bool in_registers, b_rows;
  bool adds;
  uint64_t a, b;
};

// A thread's part in a product. `d` [n_eighths, 4] and `a` [4] must stay until it is over.
void start_product(const Product& product, void* d, const uint32_t* a);
void fence_products();
void commit_products();
void wait_for_products(unsigned n_left);

// A barrier of all threads of a cluster.
void sync_cluster();
// The address in block `rank` of the cluster.
uint32_t map_address(uint32_t address, uint32_t rank);

template <class T>
T load_shared(uint32_t address) {
  T v;
  memcpy(&v, at(address, sizeof v), sizeof v);
  return v;
}

}  // namespace emulation

namespace ptx {

inline uint64_t smem_desc(uint32_t shared) { return (shared & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62; }
inline uint64_t smem_desc(const void* shared) { return smem_desc(shared_address(shared)); }
inline uint64_t smem_desc_after(uint32_t first, uint32_t bytes) { return (first + bytes / 16) | 0x40000040ull << 32; }
inline uint64_t smem_desc_mn_major(uint32_t shared, uint32_t next_columns) {
  return (shared & 0x3ffff) >> 4 | static_cast<uint64_t>(next_columns >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

inline uint64_t smem_desc_plain(uint32_t shared, uint32_t next_columns, uint32_t next_rows) {
  return (shared & 0x3ffff) >> 4 | static_cast<uint64_t>(next_columns >> 4) << 16 | static_cast<uint64_t>(next_rows >> 4) << 32;
}

inline uint32_t fixed_address(const void* shared) { return shared_address(shared); }
inline uint32_t thread_again() { return emulation::thread(); }
inline uint2 block_again() { return {blockIdx.x, blockIdx.y}; }

inline void wgmma_fence() { emulation::fence_products(); }
inline void wgmma_commit() { emulation::commit_products(); }
template <int N>
void wgmma_wait() { emulation::wait_for_products(N); }

// Of the sizes that the GPU has.
template <unsigned EIGHTHS>
constexpr bool IS_SIZE = EIGHTHS >= 1 && EIGHTHS <= 32;

template <unsigned EIGHTHS>
void wgmma_ss_f16(float (&d)[EIGHTHS][4], uint64_t a, uint64_t b, uint32_t add = 1) {
  static_assert(IS_SIZE<EIGHTHS>, "columns of wgmma");
  emulation::start_product({emulation::Number::F16, EIGHTHS, false, false, add != 0, a, b}, d, nullptr);
}
template <unsigned EIGHTHS>
void wgmma_ss_bf16(float (&d)[EIGHTHS][4], uint64_t a, uint64_t b, uint32_t add = 1) {
  static_assert(IS_SIZE<EIGHTHS>, "columns of wgmma");
  emulation::start_product({emulation::Number::BF16, EIGHTHS, false, false, add != 0, a, b}, d, nullptr);
}
template <unsigned EIGHTHS>
void wgmma_ss_s8(int (&d)[EIGHTHS][4], uint64_t a, uint64_t b, uint32_t add) {
  static_assert(EIGHTHS <= 4 || (EIGHTHS <= 32 && EIGHTHS % 2 == 0), "columns of wgmma with integers");
  emulation::start_product({emulation::Number::S8, EIGHTHS, false, false, add != 0, a, b}, d, nullptr);
}
template <unsigned EIGHTHS>
void wgmma_rs_s8(int (&d)[EIGHTHS][4], const uint32_t (&a)[4], uint64_t b, uint32_t add) {
  static_assert(EIGHTHS <= 4 || (EIGHTHS <= 32 && EIGHTHS % 2 == 0), "columns of wgmma with integers");
  emulation::start_product({emulation::Number::S8, EIGHTHS, true, false, add != 0, 0, b}, d, a);
}
template <unsigned EIGHTHS>
void wgmma_rs_u8(int (&d)[EIGHTHS][4], const uint32_t (&a)[4], uint64_t b, uint32_t add) {
  static_assert(EIGHTHS <= 4 || (EIGHTHS <= 32 && EIGHTHS % 2 == 0), "columns of wgmma with integers");
  emulation::start_product({emulation::Number::U8, EIGHTHS, true, false, add != 0, 0, b}, d, a);
}
template <unsigned EIGHTHS>
void wgmma_rs_f16(float (&d)[EIGHTHS][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(IS_SIZE<EIGHTHS>, "columns of wgmma");
  emulation::start_product({emulation::Number::F16, EIGHTHS, true, false, true, 0, b}, d, a);
}
template <bool B_ROWS, unsigned EIGHTHS>
void wgmma_rs_f16(float (&d)[EIGHTHS][4], const uint32_t (&a)[4], uint64_t b, uint32_t add) {
  static_assert(IS_SIZE<EIGHTHS>, "columns of wgmma");
  emulation::start_product({emulation::Number::F16, EIGHTHS, true, !B_ROWS, add != 0, 0, b}, d, a);
}
template <bool B_ROWS, unsigned EIGHTHS>
void wgmma_rs_bf16(float (&d)[EIGHTHS][4], const uint32_t (&a)[4], uint64_t b, uint32_t add) {
  static_assert(IS_SIZE<EIGHTHS>, "columns of wgmma");
  emulation::start_product({emulation::Number::BF16, EIGHTHS, true, !B_ROWS, add != 0, 0, b}, d, a);
}

struct alignas(64) TensorMap {
  uint64_t words[16];
};

inline void tma_load(uint32_t to, const TensorMap* map, int c0, int c1, int c2, int c3, int c4, uint32_t barrier) {
  emulation::start_load({to, 5, barrier, nullptr, reinterpret_cast<const emulation::Map*>(map), {c0, c1, c2, c3, c4}});
}
inline void tma_load(uint32_t to, const TensorMap* map, int column, int row, uint32_t barrier) {
  emulation::start_load({to, 2, barrier, nullptr, reinterpret_cast<const emulation::Map*>(map), {column, row}});
}

// What a thread has asked for comes when it arrives.
inline void cp_async_arrive(uint32_t barrier) {
  cp_async_commit();
  cp_async_wait<0>();
  mbarrier_arrive(barrier);
}

inline void cp_async_bulk_store(void* to, uint32_t from, uint32_t bytes) { emulation::start_store(to, from, bytes); }
inline void cp_async_bulk_wait_read() { emulation::finish_stores(); }
inline void cp_async_bulk_wait() { emulation::finish_stores(); }

inline void stmatrix_x4(uint32_t row, const uint32_t (&r)[4]) {
  const uint64_t word = row;
  const auto rows = emulation::give(&word, 1);
  const unsigned g = emulation::lane() / 4, t = emulation::lane() % 4;
  for (unsigned i = 0; i < 4; i++) memcpy(emulation::at(static_cast<uint32_t>(rows(8 * i + g)), 16) + 4 * t, &r[i], 4);
}
inline void stmatrix_x4_trans(uint32_t row, const uint32_t (&r)[4]) {
  const uint64_t word = row;
  const auto rows = emulation::give(&word, 1);
  const unsigned g = emulation::lane() / 4, t = emulation::lane() % 4;
  for (unsigned i = 0; i < 4; i++) {
    for (unsigned h = 0; h < 2; h++) {
      const uint16_t x = static_cast<uint16_t>(r[i] >> 16 * h);
      memcpy(emulation::at(static_cast<uint32_t>(rows(8 * i + 2 * t + h)), 16) + 2 * g, &x, 2);
    }
  }
}

inline void cluster_sync_relaxed() { emulation::sync_cluster(); }
inline void cluster_sync() { emulation::sync_cluster(); }
inline uint32_t mapa(const void* p, uint32_t rank) { return emulation::map_address(shared_address(p), rank); }
inline float4 ld_shared_cluster(uint32_t at) { return emulation::load_shared<float4>(at); }

// Between blocks of a launch, which run by turns.
inline void fence_proxy_async_global() {}
inline void announce(uint32_t* flag) {
  *flag = 1;
  emulation::progress++;
}
inline void wait_and_clear(uint32_t* flag) {
  while (!*static_cast<volatile uint32_t*>(flag)) emulation::yield();
  *flag = 0;
}
inline void add_to(float* y, float v) { *y += v; }

inline float load_float(uint32_t at) { return emulation::load_shared<float>(at); }
inline float2 load_floats(uint32_t at) { return emulation::load_shared<float2>(at); }
inline float4 load_quad(uint32_t at) { return emulation::load_shared<float4>(at); }

template <int N>
void setmaxnreg_inc() { static_assert(N % 8 == 0 && N >= 24 && N <= 256, "registers of a thread"); }
template <int N>
void setmaxnreg_dec() { static_assert(N % 8 == 0 && N >= 24 && N <= 256, "registers of a thread"); }

}  // namespace ptx
