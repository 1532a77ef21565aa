// Rows of a weight matrix as floats: for the embedding, and for products that read a slab of weights many times.
//
// A block writes 1024 elements of one row, a thread 8 of them. Moves: the row's bytes in, 4 bytes per element out.
#include "packed.cuh"
#include "dequantize_args.cuh"

constexpr uint32_t NONE = 0xffffffffu;

// `load` decodes eight weights of a row.
template <class Load>
DEVICE void dequantize(const DequantizeArgs& a, Load load) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const int n = a.n, k = (blockIdx.y * 128 + threadIdx.x) * 8;
  if (k >= n) return;
  uint32_t row = a.rows ? a.rows[blockIdx.x] : blockIdx.x;
  if (a.sources && a.sources[blockIdx.x] != NONE) row = a.chosen[a.sources[blockIdx.x]];
  if (row >= a.n_w_rows) row = a.n_w_rows - 1;
  float w[8];
  load(w, a.w + row * a.row_bytes, k, n, a.codebook);
  float* y = a.y + static_cast<size_t>(blockIdx.x) * n + k;
  if (n % 8 == 0) {
    *reinterpret_cast<float4*>(y) = float4{w[0] * a.scale, w[1] * a.scale, w[2] * a.scale, w[3] * a.scale};
    *reinterpret_cast<float4*>(y + 4) = float4{w[4] * a.scale, w[5] * a.scale, w[6] * a.scale, w[7] * a.scale};
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; j++) {
    if (k + j < n) y[j] = w[j] * a.scale;
  }
}

#define DEQUANTIZE(Q) \
  KERNEL(dequantize_##Q, DequantizeArgs, 128) { dequantize(a, load8<Q>); }
FOR_EACH_QUANT(DEQUANTIZE)

#define DEQUANTIZE_PACKED(Q)                                                                    \
  KERNEL(dequantize_Packed_##Q, DequantizeArgs, 128) {                                                 \
    dequantize(a, [](float* y, const uint8_t* row, int k, int n, const void*) { Packed_##Q::load8(y, row, k, n); }); \
  }
FOR_EACH_PACKED(DEQUANTIZE_PACKED)
