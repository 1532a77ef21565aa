// The functions between the products of a feed-forward network.
#pragma once
#include "kernel.cuh"

enum Activation : uint32_t { SILU, GELU_TANH, GELU_ERF, RELU_SQUARED, RELU, CLAMPED_SWIGLU };

DEVICE float activate_one(uint32_t f, float x) {
  switch (f) {
    case SILU: return x / (1.0f + expf(-x));
    case GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456080286535588f * (x + 0.044715f * x * x * x)));
    case GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f));
    case RELU_SQUARED: return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    default: return fmaxf(x, 0.0f);
  }
}

// A gate and its up.
DEVICE float gate_one(uint32_t f, float gate, float up) {
  if (f != CLAMPED_SWIGLU) return activate_one(f, gate) * up;
  // What is not a number passes through the comparisons.
  gate = gate > 7.0f ? 7.0f : gate;
  up = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
  return gate / (1.0f + expf(-1.702f * gate)) * (up + 1.0f);
}
