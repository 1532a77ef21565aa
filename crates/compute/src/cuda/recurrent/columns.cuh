// The state of a head in registers, by columns: how a warp holds 4 of them, and how they lie in slots.
#pragma once
#include "states.cuh"

// A head's states: a column's elements are adjacent, [n_slots, n_heads, n_columns, n_rows].
struct HeadSlots {
  float* state;
  uint32_t n_heads, n_columns, n_rows;
  int head;

  DEVICE float* column(uint32_t slot, int column) const {
    return state + ((static_cast<size_t>(slot) * n_heads + head) * n_columns + column) * n_rows;
  }
};

// The sums over 16 lanes of two numbers: lanes whose bit 3 is set get the second's, others the first's.
DEVICE float sum_of_one(const float (&x)[2], int lane) {
  const bool second = lane & 8;
  float sum = (second ? x[1] : x[0]) + __shfl_xor_sync(ALL_LANES, second ? x[0] : x[1], 8);
#pragma unroll
  for (int d = 4; d; d /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, d);
  return sum;
}

// A lane's part of the state of a head: ROWS / 64 times 4 rows of two columns.
template <int ROWS>
struct ColumnState {
  static constexpr int PIECES = ROWS / 64;
  float4 s[2][PIECES];
  int column;  // of the head, the first of the lane's two

  // `first_column`: of the warp.
  DEVICE ColumnState(int first_column, int lane) : column(first_column + lane / 16 * 2) {}

  // Rows 4 lanes hold piece `i` from; n_rows and more where there are none.
  DEVICE static int row_of(int i, int lane) { return 64 * i + lane % 16 * 4; }

  DEVICE void load(const HeadSlots& slots, uint32_t slot, int lane) {
    const int n_rows = slots.n_rows, n_columns = slots.n_columns;
#pragma unroll
    for (int j = 0; j < 2; j++) {
      const float* from = slots.column(slot, column) + j * static_cast<size_t>(n_rows);
#pragma unroll
      for (int i = 0; i < PIECES; i++) {
        const int row = row_of(i, lane);
        s[j][i] = float4{0, 0, 0, 0};
        if (slot == NO_SLOT || column + j >= n_columns) continue;
        if (n_rows % 4 == 0) {
          if (row < n_rows) s[j][i] = *reinterpret_cast<const float4*>(from + row);
        } else {
          if (row < n_rows) s[j][i].x = from[row];
          if (row + 1 < n_rows) s[j][i].y = from[row + 1];
          if (row + 2 < n_rows) s[j][i].z = from[row + 2];
          if (row + 3 < n_rows) s[j][i].w = from[row + 3];
        }
      }
    }
  }

  DEVICE void store(const HeadSlots& slots, uint32_t slot, int lane) const {
    const int n_rows = slots.n_rows, n_columns = slots.n_columns;
#pragma unroll
    for (int j = 0; j < 2; j++) {
      float* to = slots.column(slot, column) + j * static_cast<size_t>(n_rows);
#pragma unroll
      for (int i = 0; i < PIECES; i++) {
        const int row = row_of(i, lane);
        if (column + j >= n_columns) continue;
        if (n_rows % 4 == 0) {
          if (row < n_rows) *reinterpret_cast<float4*>(to + row) = s[j][i];
        } else {
          if (row < n_rows) to[row] = s[j][i].x;
          if (row + 1 < n_rows) to[row + 1] = s[j][i].y;
          if (row + 2 < n_rows) to[row + 2] = s[j][i].z;
          if (row + 3 < n_rows) to[row + 3] = s[j][i].w;
        }
      }
    }
  }
};
