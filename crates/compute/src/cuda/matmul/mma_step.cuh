// A step of a product on the tensor cores of any GPU: 64 columns of 16-bit numbers in shared memory, of which a warp multiplies 32 rows with
// 32 outputs.
//
// A row of x or of w is a line of 128 bytes, whose 16-byte vectors are swizzled by the line modulo 8, so that reads of 8 lines fall on all
// banks.
#pragma once
#include "../common/halves.cuh"

// Columns of a step, and bytes of a line of them.
constexpr int STEP = 64, LINE = 128;
constexpr int WARP_ROWS = 32, WARP_OUTS = 32, MI = WARP_ROWS / 16, NI = WARP_OUTS / 8;

// Vector `v` of line `row`.
DEVICE uint8_t* vector_at(uint8_t* lines, int row, int v) { return lines + row * LINE + ((v ^ row) & 7) * 16; }

// sums += x · wᵀ of a step, for a warp's rows and outputs.
template <class T>
DEVICE void accumulate(float (&sums)[MI][NI][4], uint8_t* xs, uint8_t* ws, int warp_row, int warp_out, int lane) {
#pragma unroll
  for (int s = 0; s < STEP / 16; s++) {
    uint32_t x[MI][4], w[NI / 2][4];
#pragma unroll
    for (int i = 0; i < MI; i++) ptx::ldmatrix_x4(x[i], vector_at(xs, warp_row + i * 16 + lane % 16, 2 * s + lane / 16));
#pragma unroll
    for (int i = 0; i < NI / 2; i++) {
      ptx::ldmatrix_x4(w[i], vector_at(ws, warp_out + i * 16 + lane % 8 + lane / 16 * 8, 2 * s + lane / 8 % 2));
    }
#pragma unroll
    for (int i = 0; i < MI; i++) {
#pragma unroll
      for (int j = 0; j < NI; j++) T::multiply(sums[i][j], x[i], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
    }
  }
}
