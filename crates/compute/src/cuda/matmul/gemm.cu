// Products of many rows on the tensor cores: y = x · wᵀ with sums in floats, then bias, the sum with what is there, or gate · up.
//
// A block of 8 warps owns ROWS x OUTS outputs, a warp half of the rows and a quarter of the outputs. Steps of 32 along k pass through
// a ring of four stages in shared memory (at most 96 KiB), filled in the background; in a stage a row is 64 bytes, of which each 16
// lie where `place` says, so that reads of 8 rows fall on all banks. Blocks that run together share their weights.
#include "gemm.cuh"

constexpr int THREADS = 256;
constexpr int STEP = 32;
constexpr int STAGES = 4;

// Element of a stage where 16 bytes of a row are.
DEVICE int place(int row, int chunk) { return row * STEP + (chunk ^ (row >> 1 & 3)) * 8; }

template <class T, int ROWS, int OUTS>
DEVICE void gemm(const ProductArgs& a) {
  constexpr int WARP_ROWS = ROWS / 2, WARP_OUTS = OUTS / 4;
  constexpr int MI = WARP_ROWS / 16, NI = WARP_OUTS / 8;
  constexpr int LOADS = (ROWS + OUTS) * 4 / THREADS, STAGE = (ROWS + OUTS) * STEP;
  ptx::griddepcontrol_wait();
  DYNAMIC_SHARED(shared);
  uint16_t* stages = reinterpret_cast<uint16_t*>(shared);
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int warp_row = warp % 2 * WARP_ROWS, warp_out = warp / 2 * WARP_OUTS;
  const bool gate = a.epilogue == GATE;
  const int m = a.m, k = a.k, n_out = a.n_out;
  const int first_row = blockIdx.x * ROWS, first_out = blockIdx.y * (gate ? OUTS / 2 : OUTS);

  // What this thread copies in each step: one chunk of 16 bytes in each of LOADS rows. A warp's outputs are half gates and half
  // their ups, so that a thread gets both of a pair.
  const uint16_t *x_at = reinterpret_cast<const uint16_t*>(a.x), *w_at = reinterpret_cast<const uint16_t*>(a.w);
  const uint16_t *up_at = reinterpret_cast<const uint16_t*>(a.up), *sources[LOADS];
  const int chunk = tid % 4;
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    const int row = (tid + i * THREADS) / 4;
    if (row < ROWS) {
      sources[i] = first_row + row < m ? x_at + static_cast<size_t>(first_row + row) * k : nullptr;
    } else {
      const int o = row - ROWS, half = WARP_OUTS / 2;
      const bool is_up = gate && o % WARP_OUTS >= half;
      const int out = first_out + (gate ? o / WARP_OUTS * half + o % half : o);
      sources[i] = out < n_out ? (is_up ? up_at : w_at) + static_cast<size_t>(out) * k : nullptr;
    }
  }
  const int n_steps = ceil_div(k, STEP);
  // A warp whose rows or outputs are all past the end only copies.
  const bool is_idle = first_row + warp_row >= m || first_out + (gate ? warp_out / 2 : warp_out) >= n_out;
  const auto fetch = [&](int step) {
    uint16_t* stage = stages + step % STAGES * STAGE;
    const int at = step * STEP + chunk * 8;
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const bool there = sources[i] && at < k;
      ptx::cp_async_16(stage + place((tid + i * THREADS) / 4, chunk), there ? sources[i] + at : x_at, there ? 16 : 0);
    }
  };

  float sums[MI][NI][4] = {};
#pragma unroll
  for (int step = 0; step < STAGES - 1; step++) {
    if (step < n_steps) fetch(step);
    ptx::cp_async_commit();
  }
  for (int step = 0; step < n_steps; step++) {
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();
    // Into the stage that all warps have left.
    if (step + STAGES - 1 < n_steps) fetch(step + STAGES - 1);
    ptx::cp_async_commit();
    if (is_idle) continue;
    const uint16_t* stage = stages + step % STAGES * STAGE;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      uint32_t x[MI][4], w[NI / 2][4];
#pragma unroll
      for (int i = 0; i < MI; i++) {
        ptx::ldmatrix_x4(x[i], stage + place(warp_row + i * 16 + lane % 16, half * 2 + lane / 16));
      }
#pragma unroll
      for (int i = 0; i < NI / 2; i++) {
        const int row = ROWS + warp_out + i * 16 + lane % 8 + lane / 16 * 8;
        ptx::ldmatrix_x4(w[i], stage + place(row, half * 2 + lane / 8 % 2));
      }
#pragma unroll
      for (int i = 0; i < MI; i++) {
#pragma unroll
        for (int j = 0; j < NI; j++) T::multiply(sums[i][j], x[i], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
  ptx::cp_async_wait<0>();

#pragma unroll
  for (int i = 0; i < MI; i++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = first_row + warp_row + i * 16 + h * 8 + lane / 4;
      if (row >= m) continue;
      const float scale = a.x_scales ? a.x_scales[row] : 1.0f;
      if (gate) {
#pragma unroll
        for (int j = 0; j < NI / 2; j++) {
          const float *g = sums[i][j] + h * 2, *u = sums[i][j + NI / 2] + h * 2;
          finish_gate(a, row, scale, first_out + warp_out / 2 + j * 8 + lane % 4 * 2, g[0], g[1], u[0], u[1]);
        }
      } else {
#pragma unroll
        for (int j = 0; j < NI; j++) {
          const float* s = sums[i][j] + h * 2;
          finish(a, row, scale, first_out + warp_out + j * 8 + lane % 4 * 2, s[0], s[1]);
        }
      }
    }
  }
}

#define GEMM(T, ROWS, OUTS) \
  KERNEL(gemm_##T##_##ROWS##x##OUTS, ProductArgs, THREADS) { gemm<T, ROWS, OUTS>(a); }
GEMM(Half, 128, 256) GEMM(Half, 128, 128) GEMM(Half, 64, 128)
GEMM(Bfloat, 128, 256) GEMM(Bfloat, 128, 128) GEMM(Bfloat, 64, 128)
