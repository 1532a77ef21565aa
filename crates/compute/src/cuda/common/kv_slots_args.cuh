// Arguments of kernels. Written by tools/kernels from kv_slots.rs; do not edit.
#pragma once
#include <cstdint>

// Where queries of 16 bits go, and the keys and values of the same rows in a cache of such.
struct KvSlots {
  // [m, first_key]
  uint8_t* q;
  // [n_blocks, n_kv_heads, block_size, head_dim]
  uint8_t* k;
  uint8_t* v;
  // [m]
  const uint32_t* positions;
  // [m]
  const uint32_t* table_starts;
  const uint32_t* block_tables;
  // outputs before this one are queries
  uint32_t first_key;
  // and from this one on they are values
  uint32_t first_value;
  // column of the first of y's outputs
  uint32_t first_out;
  uint32_t n_kv_heads;
  // a multiple of 8
  uint32_t head_dim;
  uint32_t block_size;
  // a TileNumber of all three, though half precision has no factor here; NO_TILES: all outputs go to y
  uint32_t number;
};
