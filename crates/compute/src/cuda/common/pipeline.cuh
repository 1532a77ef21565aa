// What the kernels for Hopper share: mbarriers, and rings of stages in shared memory between a thread that issues TMA copies, the
// producer, and warps that multiply, the consumers.
//
//   producer:  ring.wait_empty()   ring.expect(bytes)   copies that arrive at ring.full()   ring.next()
//   consumer:  ring.wait_full()    d += a * b           ring.release(lane)                  ring.next()
#pragma once
#include "hopper.cuh"
#include "kernel.cuh"

// An mbarrier in shared memory, by its address. Its phases have parity 0, 1, 0, ...; waiting for parity 1 on a fresh one returns at once.
struct Barrier {
  uint32_t at;
  // A phase ends after `n` arrivals and all bytes that were announced.
  DEVICE void init(uint32_t n) const { ptx::mbarrier_init(at, n); }
  DEVICE void wait(uint32_t parity) const { ptx::mbarrier_wait(at, parity); }
  // Arrives, and announces bytes that TMA brings.
  DEVICE void expect(uint32_t bytes) const { ptx::mbarrier_expect_tx(at, bytes); }
  DEVICE void arrive() const { ptx::mbarrier_arrive(at); }
};

// One side's position in a ring of `n` stages. Each stage has a barrier that says it is full, and one that says it is empty.
struct Ring {
  uint32_t full_at, empty_at, n;
  uint32_t stage = 0, parity = 0;
  DEVICE Ring(uint32_t full_at, uint32_t empty_at, uint32_t n) : full_at(full_at), empty_at(empty_at), n(n) {}
  DEVICE Ring(const uint64_t* full, const uint64_t* empty, uint32_t n) : Ring(ptx::shared_address(full), ptx::shared_address(empty), n) {}
  DEVICE Barrier full() const { return {full_at + 8 * stage}; }
  DEVICE Barrier empty() const { return {empty_at + 8 * stage}; }
  DEVICE void wait_full() const { full().wait(parity); }
  // Returns at once in the first round.
  DEVICE void wait_empty() const { empty().wait(parity ^ 1); }
  DEVICE void expect(uint32_t bytes) const { full().expect(bytes); }
  // By all lanes of a warp that is done with the stage.
  DEVICE void release(int lane) const {
    if (lane == 0) empty().arrive();
  }
  DEVICE void next() {
    if (++stage == n) stage = 0, parity ^= 1;
  }
};
