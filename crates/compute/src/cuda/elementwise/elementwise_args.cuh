// Arguments of kernels. Written by tools/kernels from mod.rs; do not edit.
#pragma once
#include <cstdint>

struct ElementwiseArgs {
  float* y;
  const float* x;
  // Which row of x each row of y reads, or null.
  const uint32_t* rows;
  // Elements of y.
  uint64_t len;
  // Of y.
  uint32_t row_len;
  // An index past them reads the last row.
  uint32_t n_x_rows;
  uint32_t activation;
  float factor;
};

struct GateColumnsArgs {
  float* y;
  // The first of the columns to multiply with.
  const float* x;
  // Elements of y.
  uint64_t len;
  // Of y.
  uint32_t row_len;
  uint32_t x_row_len;
  uint32_t activation;
};

struct PoolArgs {
  // [n_seqs, row_len]
  float* y;
  // [n_tokens, row_len]
  const float* x;
  // [n_seqs + 1]: first token of each sequence, and the number of tokens
  const uint32_t* seq_starts;
  uint32_t row_len;
  // 0: the mean of all tokens, 1: the first, 2: the last
  uint32_t pooling;
};

struct SelectPreviousArgs {
  // [n_tokens, row_len]
  float* y;
  // [n_before, row_len]
  const float* before;
  // [n_tokens, row_len]
  const float* here;
  // Of each row of y: a row of here + `HERE`, a row of before, or all bits for zeros.
  const uint32_t* rows;
  // Elements of y.
  uint64_t len;
  uint32_t row_len;
  // An index past them reads the last row.
  uint32_t n_before;
};

struct PositionScaleArgs {
  float* x;
  // Of each row.
  const uint32_t* positions;
  // Elements to multiply, in all rows together.
  uint64_t len;
  uint32_t row_len;
  // Elements to multiply in a row, the first.
  uint32_t n;
  uint32_t period;
  float beta;
};
