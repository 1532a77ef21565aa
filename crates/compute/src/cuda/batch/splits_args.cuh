// Arguments of kernels. Written by tools/kernels from splits.rs; do not edit.
#pragma once
#include <cstdint>

// Query heads of a block.
constexpr int HEADS_OF_BLOCK = 8;

// Keys of a tile.
constexpr int KEYS_OF_TILE = 16;

// Least keys of a split, which has whole tiles.
constexpr int MIN_SPLIT = 256;

// Positions `from` to `to` - 1 of a token's sequence.
struct AttentionSplit {
  uint32_t token;
  // where the sequence's block table begins
  uint32_t table_start;
  uint32_t from;
  uint32_t to;
  // the token's position plus 1
  uint32_t end;
  // which of the token's splits it is, and how many there are
  uint32_t index;
  uint32_t n_used;
  // where the results of the token's first split are
  uint32_t first_result;
};
