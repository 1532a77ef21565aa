// Activations of 16 bits as mixed_gemm.cu and stream_k.cu read them: tiles of 64 columns, of which each row is a line of 128 bytes whose 16-byte vectors lie at
// their number xor the row's, modulo 8.
//
// In the order of packed columns tile j of 256 columns has of each piece of 64 the elements 8 j to 8 j + 7 and 32 + 8 j to 32 + 8 j + 7.
// Vector 4 i + 2 h + b of a line has of each piece, one after the other, elements 4 i + b and 4 i + b + 2 of the first of these runs, or of
// the second if h is 1.
#pragma once
#include "halves.cuh"

// Half precision in the order of packed columns or as they are, or bfloat16 as they are.
enum ActivationLayout : uint32_t { PACKED_HALF = 1, PLAIN_HALF, PLAIN_BFLOAT };

// What numbers must be multiplied with that were rounded by the kernel which computed them, so that nobody knew the largest of a row. Half
// precision then reaches to 4.19 million, and its smallest step is 4e-6.
DEVICE float fixed_scale(uint32_t layout) { return layout == PLAIN_BFLOAT ? 1.0f : 64.0f; }

// In half precision, the largest where that is too small.
DEVICE uint32_t half_pair(float low, float high) { return ptx::f32_to_f16_within(low, high); }

// Columns k to k + 3 of a row, k a multiple of 4, in tiles of `n_rows` rows in the order of packed columns.
DEVICE void put_packed(uint16_t* tiles, uint32_t n_rows, uint32_t row, uint32_t k, float v0, float v1, float v2, float v3) {
  const uint32_t tile = k / 256 * 4 + k % 32 / 8, vector = k % 8 + k / 32 % 2 * 2, piece = k / 64 % 4;
  uint16_t* line = tiles + (static_cast<size_t>(tile) * n_rows + row) * 64 + 2 * piece;
  *reinterpret_cast<uint32_t*>(line + ((vector ^ row) & 7) * 8) = half_pair(v0, v2);
  *reinterpret_cast<uint32_t*>(line + (((vector + 1) ^ row) & 7) * 8) = half_pair(v1, v3);
}
