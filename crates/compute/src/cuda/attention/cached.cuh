// Heads of a cache on their way to the tensor cores: how each type of cache comes to shared memory, as numbers of 16 bits.
#pragma once
#include "../common/halves.cuh"
#include "../../quant/q8_0/device.cuh"

// Of a key that is not there: the row of the cache where it would be.
constexpr uint32_t NOWHERE = 0xffffffffu;

// How eight elements of a cache, from `i` on of the head at byte `row`, come to shared memory; `there`: else zeros stand for them.
// AS_IS: as they are, in the background.
struct Plain {
  static constexpr bool AS_IS = true;
  static DEVICE size_t row_bytes(int dim) { return 2 * dim; }
  static DEVICE void bring(uint16_t* shared, const uint8_t* cache, size_t row, int i, bool there) {
    ptx::cp_async_16(shared, cache + (there ? row + 2 * i : 0), there ? 16 : 0);
  }
};

struct Blocks8 {
  static constexpr bool AS_IS = false;
  static DEVICE size_t row_bytes(int dim) { return dim / Q8_0::LEN * Q8_0::BYTES; }
  static DEVICE void bring(uint16_t* shared, const uint8_t* cache, size_t row, int i, bool there) {
    uint4 packed = {0, 0, 0, 0};
    if (there) {
      const uint8_t* block = cache + row + i / Q8_0::LEN * Q8_0::BYTES;
      const uint8_t* q = block + 2 + i % Q8_0::LEN;
      const uint32_t scale = u16_at(block) * 0x10001u;
      packed = {ptx::scale_bytes(u16_at(q), scale), ptx::scale_bytes(u16_at(q + 2), scale),
                ptx::scale_bytes(u16_at(q + 4), scale), ptx::scale_bytes(u16_at(q + 6), scale)};
    }
    *reinterpret_cast<uint4*>(shared) = packed;
  }
};
