// The packed types. A type is described in quant/<type>/packed.cuh; what all share is in common/packed.cuh.
#pragma once
#include "../../quant/iq4_nl/packed.cuh"
#include "../../quant/iq4_xs/packed.cuh"
#include "../../quant/mxfp4/packed.cuh"
#include "../../quant/nvfp4/packed.cuh"
#include "../../quant/q4_0/packed.cuh"
#include "../../quant/q4_k/packed.cuh"
#include "../../quant/q5_0/packed.cuh"
#include "../../quant/q5_k/packed.cuh"
#include "../../quant/q6_k/packed.cuh"
#include "../../quant/q8_0/packed.cuh"
#include "layouts.cuh"

// F(Q): type Packed_Q, layout LAYOUT_Q.
#define FOR_EACH_PACKED(F) F(Q4_0) F(Q8_0) F(Q4_K) F(Q5_K) F(Q6_K) F(IQ4_NL) F(IQ4_XS) F(MXFP4) F(Q5_0) F(NVFP4)
