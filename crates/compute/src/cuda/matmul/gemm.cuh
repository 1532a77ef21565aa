// What the GEMMs of gemm.cu and gemm_hopper.cu share: their arguments, and their epilogue.
#pragma once
#include "../common/activation.cuh"
#include "../common/halves.cuh"
#include "gemm_args.cuh"

// ACTIVATE is for the kernels that write tiles.
enum Epilogue : uint32_t { STORE, ADD, GATE, ADD_RANKS, ACTIVATE };

// Operands have 16 bits and lie in rows, or for Hopper 16 or 8 in tiles (operands.cu), of which those of 8 bits have a scale for each row
// of two tiles.

// Stores outputs `out` and `out` + 1 of a row, or adds them to what is there.
DEVICE void store_pair(const GemmArgs& a, int row, int out, float v0, float v1) {
  const int n_out = a.n_out;
  if (out >= n_out) return;
  float* y = a.y + static_cast<size_t>(row) * a.y_stride + out;
  if (out + 1 < n_out && reinterpret_cast<uintptr_t>(y) % 8 == 0) {
    float2 v = {v0, v1};
    if (a.epilogue == ADD) {
      const float2 before = *reinterpret_cast<const float2*>(y);
      v.x += before.x, v.y += before.y;
    }
    *reinterpret_cast<float2*>(y) = v;
  } else {
    y[0] = a.epilogue == ADD ? y[0] + v0 : v0;
    if (out + 1 < n_out) y[1] = a.epilogue == ADD ? y[1] + v1 : v1;
  }
}

// From the sums of two outputs of a row.
DEVICE void store_sums(const GemmArgs& a, int row, float scale, int out, float s0, float s1) {
  const int n_out = a.n_out;
  const float b0 = a.bias && out < n_out ? a.bias[out] : 0.0f, b1 = a.bias && out + 1 < n_out ? a.bias[out + 1] : 0.0f;
  store_pair(a, row, out, s0 * scale + b0, s1 * scale + b1);
}

// As `activate_one` within a few units in the last place, by one formula for the functions that models gate with, without branches: GELU
// by tanh is a sigmoid, too.
struct GateSigmoid {
  float slope, cubic;
  DEVICE explicit GateSigmoid(uint32_t f) : slope(f == SILU ? 1.0f : 1.5957691216057308f), cubic(f == SILU ? 0.0f : 0.044715f) {}
  DEVICE float operator()(float x) const {
    const float z = slope * x * fmaf(cubic * x, x, 1.0f);
    return __fdividef(x, 1.0f + __expf(-z));
  }
};

DEVICE float activate_gate(uint32_t f, float x) { return f > GELU_TANH ? activate_one(f, x) : GateSigmoid(f)(x); }

// From the sums of two gates of a row and those of their ups.
DEVICE void store_gated_sums(const GemmArgs& a, int row, float scale, int out, float g0, float g1, float u0, float u1) {
  store_pair(a, row, out, activate_gate(a.activation, g0 * scale) * (u0 * scale), activate_gate(a.activation, g1 * scale) * (u1 * scale));
}
