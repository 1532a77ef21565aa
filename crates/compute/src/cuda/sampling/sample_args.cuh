// Arguments of kernels. Written by tools/kernels from mod.rs; do not edit.
#pragma once
#include <cstdint>

// Logits that a block of argmax, sample_edit and sample_weigh owns.
constexpr int PART = 2048;

// Bins of a row's histogram.
constexpr int N_BINS = 2048;

// Threads of a block of argmax, sample_edit and sample_weigh.
constexpr int THREADS = 256;

// Threads of a block of sample_choose.
constexpr int CHOOSE_THREADS = 512;

struct ArgmaxArgs {
  // [n_rows]
  uint32_t* chosen;
  // Host memory that gets the same.
  uint32_t* const* readback;
  // [n_rows, n]
  const float* logits;
  // [n_rows]: the largest key so far; zero before and after
  unsigned long long* best;
  // [n_rows]: blocks that are done; zero before and after
  uint32_t* arrived;
  uint32_t n;
};

struct SampleArgs {
  // [n_rows]: in, of the logits before; out, of these
  uint32_t* chosen;
  // Host memory that gets the same.
  uint32_t* const* readback;
  // [n_rows, n]
  float* logits;
  // [n_rows]
  const struct SamplerRow* rows;
  // [n_rows, 2, n_parts]: the largest key of a part, and the largest before anything was changed
  unsigned long long* best;
  // [n_rows, n_parts]: weights of a part
  unsigned long long* sums;
  // [n_rows, N_BINS]: weights of a bin
  unsigned long long* weights;
  // [n_rows, N_BINS]: tokens of a bin
  unsigned long long* counts;
  uint32_t n;
  uint32_t n_parts;
};
