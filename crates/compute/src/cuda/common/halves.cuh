// Numbers of 16 bits that the tensor cores multiply.
#pragma once
#include "kernel.cuh"

// Half precision. Its range is small, so rows of activations come with a power of two; no weight of a model is out of it.
struct Half {
  static constexpr bool SCALED = true;
  DEVICE static uint16_t from(float x) { return ptx::f32_to_f16(x); }
  DEVICE static uint32_t pair(float low, float high) { return ptx::f32_to_f16(low, high); }
  DEVICE static void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { ptx::mma_f16(d, a, b0, b1); }
};

struct Bfloat {
  static constexpr bool SCALED = false;
  DEVICE static uint16_t from(float x) { return ptx::f32_to_bf16(x); }
  DEVICE static uint32_t pair(float low, float high) { return ptx::f32_to_bf16(low, high); }
  DEVICE static void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { ptx::mma_bf16(d, a, b0, b1); }
};

template <class T>
DEVICE uint32_t pair_of(float low, float high) {
  return T::pair(low, high);
}

// Numbers of tiles that one kernel writes for the next. In half precision they are multiplied by HALF_TILE_FACTOR, so that up to a million
// is in range; below a thousandth they have fewer bits.
enum TileNumber : uint32_t { NO_TILES, BFLOAT_TILES, HALF_TILES };
constexpr float HALF_TILE_FACTOR = 0.0625f;

DEVICE uint32_t tile_pair(uint32_t number, float low, float high) {
  return number == HALF_TILES ? pair_of<Half>(low * HALF_TILE_FACTOR, high * HALF_TILE_FACTOR) : pair_of<Bfloat>(low, high);
}

// Where byte `byte` of a row is in tiles, as Hopper's tensor cores read them: of each 128 bytes of the rows all `n_rows` rows, of which
// each 16 bytes lie at their number xor the row's, modulo 8.
DEVICE size_t byte_in_tiles(uint32_t row, uint32_t byte, uint32_t n_rows) {
  return (static_cast<size_t>(byte / 128) * n_rows + row) * 128 + ((byte / 16 ^ row) & 7) * 16 + byte % 16;
}

template <class T>
DEVICE uint4 eight_of(const float (&v)[8]) {
  return uint4{pair_of<T>(v[0], v[1]), pair_of<T>(v[2], v[3]), pair_of<T>(v[4], v[5]), pair_of<T>(v[6], v[7])};
}
