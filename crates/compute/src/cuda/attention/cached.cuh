// Loads from a KV cache into shared memory for the tensor cores: 16-bit elements, whatever the cache's type.
#pragma once
#include "../common/halves.cuh"
#include "../../quant/q8_0/device.cuh"

// Instead of the number of a head of the cache: there is no such key.
constexpr uint32_t NO_HEAD = 0xffffffffu;

// `load8` loads elements i to i + 7 of the head at byte `head` of the cache; zeros unless `there`. `shared` has room for 16 bytes at a
// multiple of 16.
//
// A cache of 16-bit elements (IS_RAW), by cp.async: the caller commits and waits.
struct RawCache {
  static constexpr bool IS_RAW = true;
  static DEVICE size_t head_bytes(int dim) { return 2 * dim; }
  static DEVICE void load8(uint16_t* shared, const uint8_t* cache, size_t head, int i, bool there) {
    ptx::cp_async_16(shared, cache + (there ? head + 2 * i : 0), there ? 16 : 0);
  }
};

// A cache of Q8_0, decoded to half precision by the calling thread.
struct Q8Cache {
  static constexpr bool IS_RAW = false;
  static DEVICE size_t head_bytes(int dim) { return dim / Q8_0::LEN * Q8_0::BYTES; }
  static DEVICE void load8(uint16_t* shared, const uint8_t* cache, size_t head, int i, bool there) {
    uint4 packed = {0, 0, 0, 0};
    if (there) {
      const uint8_t* block = cache + head + i / Q8_0::LEN * Q8_0::BYTES;
      const uint8_t* q = block + 2 + i % Q8_0::LEN;
      const uint32_t scale = u16_at(block) * 0x10001u;
      packed = {ptx::scale_bytes(u16_at(q), scale), ptx::scale_bytes(u16_at(q + 2), scale),
                ptx::scale_bytes(u16_at(q + 4), scale), ptx::scale_bytes(u16_at(q + 6), scale)};
    }
    *reinterpret_cast<uint4*>(shared) = packed;
  }
};
