// Arguments of kernels. Written by tools/kernels from ranks.rs; do not edit.
#pragma once
#include <cstdint>

// GPUs that can work together.
constexpr int MAX_RANKS = 8;

// Numbers of a round of an exchange at most.
constexpr int PLACES = 1 << 17;

// Blocks at most of a kernel that takes part in a round.
constexpr int MAX_BLOCKS = 1024;

// A GPU's place among the others.
struct RanksArgs {
  // [2, n_ranks, PLACES] each
  uint2* mailboxes[MAX_RANKS];
  // [MAX_BLOCKS] times the number of rounds so far, one for each block to read
  uint32_t* rounds;
  // Not 0 when a GPU will not answer any more.
  const uint32_t* cut;
  uint32_t rank;
  uint32_t n_ranks;
};
