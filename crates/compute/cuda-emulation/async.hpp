// mbarriers, and copies by the copy engine (TMA), for the emulation.
//
// On Hopper a copy comes at once or not before a thread waits for its mbarrier, by turns that look random: so a kernel that does not wait
// reads what was there before, and one that asks for a copy too soon overwrites what is still read. On other GPUs, where the lanes of a
// warp copy, it comes at once.
#pragma once

namespace emulation {

// An mbarrier: arrivals that its phase lacks, and of how many; bytes that were announced and have not come; the phase's parity.
struct PhaseBarrier {
  uint16_t missing, arrivals;
  int32_t bytes : 31;
  uint32_t parity : 1;
};
static_assert(sizeof(PhaseBarrier) == 8, "an mbarrier has 64 bits");

inline PhaseBarrier& phase_barrier(uint32_t barrier) {
  if (barrier % 8) die("an mbarrier whose address is not a multiple of 8");
  return *reinterpret_cast<PhaseBarrier*>(at(barrier, 8));
}

inline void settle(PhaseBarrier& b) {
  progress++;
  if (b.missing == 0 && b.bytes == 0) b.missing = b.arrivals, b.parity ^= 1;
}

inline void arrive(uint32_t barrier) {
  PhaseBarrier& b = phase_barrier(barrier);
  if (b.missing == 0) die("more arrivals at an mbarrier than it counts");
  b.missing--;
  settle(b);
}

inline void complete(uint32_t barrier, uint32_t bytes) {
  PhaseBarrier& b = phase_barrier(barrier);
  b.bytes -= static_cast<int32_t>(bytes);
  settle(b);
}

// What cuTensorMapEncodeTiled describes, of elements of a byte: `emulation.rs` fills it in the same order.
struct Map {
  uint64_t base;
  uint64_t lens[5], strides[4], box_lens[5];  // strides in bytes, of all dimensions but the first
  uint64_t rank_and_swizzle;                  // 256 * rank + whether each 16 bytes go to their number xor that of the line of 128 bytes
  unsigned rank() const { return static_cast<unsigned>(rank_and_swizzle >> 8); }
  bool is_swizzled() const { return rank_and_swizzle & 1; }
};
static_assert(sizeof(Map) == 128, "a tensor map has 128 bytes");

// A copy to shared memory: `size` bytes from `from` on, or a box of a map of `size` dimensions.
struct Load {
  uint32_t to, size, barrier;
  const void* from;
  const Map* map;
  int coordinates[5];
};

// Copies at once or later.
void start_load(const Load& load);

// Brings what is to come to this barrier.
void finish_loads(uint32_t barrier);

// From shared to global memory, at once or when the thread waits for it.
void start_store(void* to, uint32_t from, uint32_t bytes);
void finish_stores();

inline void wait_for_phase(uint32_t barrier, uint32_t parity) {
  const PhaseBarrier& b = phase_barrier(barrier);
  for (;;) {
    finish_loads(barrier);
    if (b.parity != parity) return;
    yield();
  }
}

}  // namespace emulation

namespace ptx {

inline void mbarrier_init(uint32_t barrier, uint32_t n) {
  const uint16_t arrivals = static_cast<uint16_t>(n);
  emulation::phase_barrier(barrier) = {arrivals, arrivals, 0, 0};
}
inline void mbarrier_init(uint64_t* barrier, uint32_t n) { mbarrier_init(shared_address(barrier), n); }
inline void mbarrier_arrive(uint32_t barrier) { emulation::arrive(barrier); }
inline void mbarrier_arrive(uint64_t* barrier) { emulation::arrive(shared_address(barrier)); }
inline void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes) {
  emulation::phase_barrier(barrier).bytes += static_cast<int32_t>(bytes);
  emulation::arrive(barrier);
}
inline void mbarrier_wait(uint32_t barrier, uint32_t parity) { emulation::wait_for_phase(barrier, parity); }
inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) { mbarrier_wait(shared_address(barrier), parity); }

inline void counter_init(uint64_t* barrier, int lane, int warps) {
  if (lane == 0) mbarrier_init(barrier, static_cast<uint32_t>(warps));
}
inline void count(uint64_t* barrier, int lane) {
  if (lane == 0) mbarrier_arrive(barrier);
}
inline void barrier_init(uint64_t* barrier, int lane, int warps = 1) { counter_init(barrier, lane, warps); }
inline void fence_mbarrier_init() { __syncwarp(); }
inline int copying_lane(int lane) { return lane; }
inline void fence_proxy_async_shared() {}

inline void cp_async_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  emulation::start_load({to, bytes, barrier, from, nullptr, {}});
}

// By a warp: on Hopper the first lane announces bytes and copies them; on other GPUs all lanes copy, and arrive after the last copy.
inline void mbarrier_expect_tx(uint64_t* barrier, int lane, uint32_t bytes) {
  if (emulation::HOPPER && lane == 0) mbarrier_expect_tx(shared_address(barrier), bytes);
}
inline void cp_async_bulk_evict_first(SharedAddress to, const void* from, uint32_t bytes, SharedAddress barrier, int lane) {
  if (lane != 0) return;
  if (emulation::HOPPER) cp_async_bulk(to, from, bytes, barrier);
  else memcpy(emulation::at(to, bytes), from, bytes);
}
inline void cp_async_bulk(void* to, const void* from, uint32_t bytes, uint64_t* barrier, int lane) {
  cp_async_bulk_evict_first(shared_address(to), from, bytes, shared_address(barrier), lane);
}
inline void cp_async_bulk_evict_first(void* to, const void* from, uint32_t bytes, uint64_t* barrier, int lane) {
  cp_async_bulk(to, from, bytes, barrier, lane);
}
inline void cp_async_mbarrier_arrive(uint64_t* barrier) {
  if (!emulation::HOPPER) count(barrier, static_cast<int>(emulation::lane()));
}

}  // namespace ptx
