// Arguments of kernels. Written by tools/kernels from short_conv.rs; do not edit.
#pragma once
#include <cstdint>

struct ShortConvArgs {
  // [n_tokens, n_channels]
  float* y;
  // [n_tokens] rows of `x_len`: inputs, or b, c and x where gated
  const float* x;
  // [width, n_channels]
  const float* weight;
  // [n_channels] or null
  const float* bias;
  // [n_slots, width - 1, n_channels], oldest first
  float* state;
  // [n_seqs + 1]: first token of each sequence, and the number of tokens
  const uint32_t* seq_starts;
  // [n_seqs, 3], see `SeqState`
  const uint32_t* states;
  const uint32_t* batch;
  uint32_t n_tokens;
  uint32_t n_seqs;
  uint32_t n_channels;
  uint32_t x_len;
  uint32_t tile_tokens;
  // 1: y is c times the convolution of b times x; 0: its SiLU
  uint32_t gated;
};
