// Products of activations with weights of any type: y = x · wᵀ + bias.
//
// gemv: a warp owns one row of weights and up to 8 rows of x; its lanes walk the row 8 weights at a time. A block is 4 warps. An
// output depends only on its own row of x and of w, in an order that does not depend on the batch. Moves: the weights once per tile
// of 8 rows. With several blockIdx.z each has an expert of its own, for its part of the rows of x and y.
//
// gemm: a block owns 128 x 128 outputs, a thread 8 x 8 of them; 8 steps of k at a time pass through shared memory (8 KiB). Its
// weights are floats (dequantized in slabs).
#include "packed.cuh"
#include "simt_args.cuh"

// Rows of x that one pass over an expert's weights serves.
struct Tile {
  uint32_t expert;
  uint32_t first;  // of the rows of y
  uint32_t count;
};

// `load` decodes eight weights of a row.
template <int M, class Load>
DEVICE void gemv(const SimtGemvArgs& a, Load load) {
  ptx::griddepcontrol_wait();
  const int n_in = a.n_in;
  const uint32_t lane = threadIdx.x % 32, out = blockIdx.x * 4 + threadIdx.x / 32;
  Tile tile = {0, blockIdx.y * M, a.m - blockIdx.y * M};
  if (a.tiles) tile = a.tiles[blockIdx.y];
  const int count = tile.count < M ? tile.count : M;
  if (out >= a.n_out || count == 0) return;
  const uint8_t* row = a.w + (tile.expert + blockIdx.z) * a.expert_bytes + out * a.row_bytes;
  float* y = a.y + static_cast<size_t>(blockIdx.z) * a.y_head + out;
  const float* x[M];
#pragma unroll
  for (int j = 0; j < M; j++) {
    const uint32_t r = tile.first + (j < count ? j : 0);
    x[j] = a.x + static_cast<size_t>(a.x_rows ? a.x_rows[r] : r) * a.x_stride + static_cast<size_t>(blockIdx.z) * a.x_head;
  }
  float sum[M] = {};
  for (int k = lane * 8; k < n_in; k += 256) {
    float w[8];
    load(w, row, k, n_in, a.codebook);
#pragma unroll
    for (int j = 0; j < M; j++) {
      if (j < count) {
        float v[8];
        load8_floats(v, x[j], k, n_in);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[j] = fmaf(w[i], v[i], sum[j]);
      }
    }
  }
  const float bias = a.bias ? a.bias[out] : 0.0f;
#pragma unroll
  for (int j = 0; j < M; j++) {
    if (j < count) {
      const float total = warp_sum(sum[j]) + bias;
      if (lane == 0) y[static_cast<size_t>(tile.first + j) * a.y_stride] = total;
    }
  }
}

#define GEMV(Q)                                                  \
  KERNEL(simt_gemv_1_##Q, SimtGemvArgs, 128) { gemv<1>(a, load8<Q>); }    \
  KERNEL(simt_gemv_8_##Q, SimtGemvArgs, 128) { gemv<8>(a, load8<Q>); }
FOR_EACH_QUANT(GEMV)

#define GEMV_PACKED(Q)                                                                                     \
  KERNEL(simt_gemv_8_Packed_##Q, SimtGemvArgs, 128) {                                                                      \
    gemv<8>(a, [](float* y, const uint8_t* row, int k, int n, const void*) { Packed_##Q::load8(y, row, k, n); });   \
  }
FOR_EACH_PACKED(GEMV_PACKED)

// Puts elements k to k + 3 of a row in one column of a tile, zeros where the row or its elements end.
DEVICE void stage4(float (*tile)[132], int column, int k_in_tile, const float* matrix, int row, int n_rows, int k, int n) {
  float v[4] = {};
  if (row < n_rows) {
    const float* p = matrix + static_cast<size_t>(row) * n + k;
    if (n % 4 == 0 && k < n) {
      const float4 f = *reinterpret_cast<const float4*>(p);
      v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    } else {
#pragma unroll
      for (int j = 0; j < 4; j++) v[j] = k + j < n ? p[j] : 0.0f;
    }
  }
#pragma unroll
  for (int j = 0; j < 4; j++) tile[k_in_tile + j][column] = v[j];
}

KERNEL(simt_gemm, SimtGemmArgs, 256) {
  ptx::griddepcontrol_wait();
  __shared__ __align__(16) float xs[8][132], ws[8][132];
  const int n_in = a.n_in, n_out = a.n_out, m = a.m;
  const int first_out = blockIdx.x * 128, first_row = blockIdx.y * 128;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const int column = threadIdx.x / 2, k_in_tile = threadIdx.x % 2 * 4;
  float sum[8][8] = {};
  for (int k = 0; k < n_in; k += 8) {
    __syncthreads();
    stage4(xs, column, k_in_tile, a.x, first_row + column, m, k + k_in_tile, n_in);
    stage4(ws, column, k_in_tile, a.w, first_out + column, n_out, k + k_in_tile, n_in);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++) {
      // Halves of 4 that lie 64 apart, so that a warp's reads fall on different banks.
      const float4 x0 = *reinterpret_cast<const float4*>(&xs[i][ty * 4]);
      const float4 x1 = *reinterpret_cast<const float4*>(&xs[i][ty * 4 + 64]);
      const float4 w0 = *reinterpret_cast<const float4*>(&ws[i][tx * 4]);
      const float4 w1 = *reinterpret_cast<const float4*>(&ws[i][tx * 4 + 64]);
      const float x[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
      const float w[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
      for (int r = 0; r < 8; r++) {
#pragma unroll
        for (int c = 0; c < 8; c++) sum[r][c] = fmaf(x[r], w[c], sum[r][c]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < 8; c++) {
    const int out = first_out + tx * 4 + c % 4 + c / 4 * 64;
    if (out >= n_out) continue;
    const float bias = a.bias ? a.bias[out] : 0.0f;
#pragma unroll
    for (int r = 0; r < 8; r++) {
      const int row = first_row + ty * 4 + r % 4 + r / 4 * 64;
      if (row < m) a.y[static_cast<size_t>(row) * a.y_stride + out] = sum[r][c] + bias;
    }
  }
}
