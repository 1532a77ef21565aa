// Every element type on the device, from its block as it stands in a file.
//
// A type gives LEN (weights in a block), BYTES (of a block) and `load8`, which decodes the eight weights from `i` on (a multiple of
// 8) of a block, bit for bit as the scalar code does. Plain numbers have LEN = 1 and give `load` and `load8_aligned` instead.
// Codebooks come from the Rust tables as a pointer.
#pragma once
#include "kernel.cuh"

#include "../../quant/bf16/device.cuh"
#include "../../quant/f16/device.cuh"
#include "../../quant/f32/device.cuh"
#include "../../quant/iq1_m/device.cuh"
#include "../../quant/iq1_s/device.cuh"
#include "../../quant/iq2_s/device.cuh"
#include "../../quant/iq2_xs/device.cuh"
#include "../../quant/iq2_xxs/device.cuh"
#include "../../quant/iq3_s/device.cuh"
#include "../../quant/iq3_xxs/device.cuh"
#include "../../quant/iq4_nl/device.cuh"
#include "../../quant/iq4_xs/device.cuh"
#include "../../quant/mxfp4/device.cuh"
#include "../../quant/nvfp4/device.cuh"
#include "../../quant/q1_0/device.cuh"
#include "../../quant/q2_k/device.cuh"
#include "../../quant/q3_k/device.cuh"
#include "../../quant/q4_0/device.cuh"
#include "../../quant/q4_1/device.cuh"
#include "../../quant/q4_k/device.cuh"
#include "../../quant/q5_0/device.cuh"
#include "../../quant/q5_1/device.cuh"
#include "../../quant/q5_k/device.cuh"
#include "../../quant/q6_k/device.cuh"
#include "../../quant/q8_0/device.cuh"
#include "../../quant/tq1_0/device.cuh"
#include "../../quant/tq2_0/device.cuh"

#define FOR_EACH_QUANT(F)                                                                                             \
  F(F32) F(F16) F(BF16) F(Q4_0) F(Q4_1) F(Q5_0) F(Q5_1) F(Q8_0) F(Q2_K) F(Q3_K) F(Q4_K) F(Q5_K) F(Q6_K) F(IQ1_S)      \
  F(IQ1_M) F(IQ2_XXS) F(IQ2_XS) F(IQ2_S) F(IQ3_XXS) F(IQ3_S) F(IQ4_NL) F(IQ4_XS) F(TQ1_0) F(TQ2_0) F(MXFP4) F(NVFP4)  \
  F(Q1_0)

// Weights k to k + 7 of a row of n, with zeros past its end. Rows of plain numbers may have any length; those of blocks are whole.
template <class Q>
DEVICE void load8(float* y, const uint8_t* row, int k, int n, const void* codebook) {
  if constexpr (Q::LEN == 1) {
    if (n % 8 == 0) {
      Q::load8_aligned(y, row + static_cast<size_t>(k) * Q::BYTES);
    } else {
#pragma unroll
      for (int j = 0; j < 8; j++) y[j] = k + j < n ? Q::load(row + static_cast<size_t>(k + j) * Q::BYTES) : 0.0f;
    }
  } else {
    Q::load8(y, row + static_cast<size_t>(k / Q::LEN) * Q::BYTES, k % Q::LEN, codebook);
  }
}

// Activations k to k + 7 of a row of n, with zeros past its end.
DEVICE void load8_floats(float* y, const float* row, int k, int n) {
  load8<F32>(y, reinterpret_cast<const uint8_t*>(row), k, n, nullptr);
}
