// The packed types. A type is described in quant/<type>/packed.cuh; what all share is in common/packed.cuh.
// Written by tools/kernels from packed_types.rs; do not edit.
#pragma once
#include "../../quant/iq2_xs/packed.cuh"
#include "../../quant/iq3_s/packed.cuh"
#include "../../quant/iq4_nl/packed.cuh"
#include "../../quant/iq4_xs/packed.cuh"
#include "../../quant/mxfp4/packed.cuh"
#include "../../quant/nvfp4/packed.cuh"
#include "../../quant/q2_k/packed.cuh"
#include "../../quant/q3_k/packed.cuh"
#include "../../quant/q4_0/packed.cuh"
#include "../../quant/q4_k/packed.cuh"
#include "../../quant/q5_0/packed.cuh"
#include "../../quant/q5_k/packed.cuh"
#include "../../quant/q6_k/packed.cuh"
#include "../../quant/q8_0/packed.cuh"
#include "layouts.cuh"

constexpr int LAYOUT_Q4_0 = FIRST_PACKED + 0;
constexpr int LAYOUT_Q8_0 = FIRST_PACKED + 1;
constexpr int LAYOUT_Q4_K = FIRST_PACKED + 2;
constexpr int LAYOUT_Q5_K = FIRST_PACKED + 3;
constexpr int LAYOUT_Q6_K = FIRST_PACKED + 4;
constexpr int LAYOUT_IQ4_NL = FIRST_PACKED + 5;
constexpr int LAYOUT_IQ4_XS = FIRST_PACKED + 6;
constexpr int LAYOUT_MXFP4 = FIRST_PACKED + 7;
constexpr int LAYOUT_Q5_0 = FIRST_PACKED + 8;
constexpr int LAYOUT_NVFP4 = FIRST_PACKED + 9;
constexpr int LAYOUT_Q3_K = FIRST_PACKED + 10;
constexpr int LAYOUT_Q2_K = FIRST_PACKED + 11;
constexpr int LAYOUT_IQ3_S = FIRST_PACKED + 12;
constexpr int LAYOUT_IQ2_XS = FIRST_PACKED + 13;

// F(Q): type Packed_Q, layout LAYOUT_Q.
#define FOR_EACH_PACKED(F) \
  F(Q4_0) \
  F(Q8_0) \
  F(Q4_K) \
  F(Q5_K) \
  F(Q6_K) \
  F(IQ4_NL) \
  F(IQ4_XS) \
  F(MXFP4) \
  F(Q5_0) \
  F(NVFP4) \
  F(Q3_K) \
  F(Q2_K) \
  F(IQ3_S) \
  F(IQ2_XS)
