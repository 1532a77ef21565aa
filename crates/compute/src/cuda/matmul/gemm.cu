// GEMM on the tensor cores: y = x · wᵀ with sums in floats, then bias, the sum with what is there, or gate · up.
//
// A block of 8 warps owns ROWS x OUTS outputs, a warp half of the rows and a quarter of the outputs. Steps of 32 along k pass through
// a ring of four stages in shared memory (at most 96 KiB), filled in the background; in a stage a row is 64 bytes, of which each 16
// lie where `swizzled_offset` says, so that reads of 8 rows fall on all banks. Blocks that run together share their weights.
#include "gemm.cuh"

constexpr int THREADS = 256;
constexpr int STEP = 32;
constexpr int STAGES = 4;

// Element of a stage where 16 bytes of a row are.
DEVICE int swizzled_offset(int row, int chunk) { return row * STEP + (chunk ^ (row >> 1 & 3)) * 8; }

// What a block and a warp compute. A warp's outputs are half gates and half their ups, so that a thread gets both of a pair.
template <int ROWS, int OUTS>
struct Shape {
  static constexpr int WARP_ROWS = ROWS / 2, WARP_OUTS = OUTS / 4;
  static constexpr int MI = WARP_ROWS / 16, NI = WARP_OUTS / 8;
  static constexpr int LOADS = (ROWS + OUTS) * 4 / THREADS, STAGE = (ROWS + OUTS) * STEP;
};

// What a thread copies in each step: one chunk of 16 bytes in each of LOADS rows.
template <int ROWS, int OUTS>
struct Sources {
  typedef Shape<ROWS, OUTS> S;
  const uint16_t *x, *rows[S::LOADS];
  int k, chunk;

  DEVICE Sources(const GemmArgs& a, int first_row, int first_out) : k(a.k), chunk(threadIdx.x % 4) {
    const bool gate = a.epilogue == GATE;
    const int m = a.m, n_out = a.n_out;
    const uint16_t *w = reinterpret_cast<const uint16_t*>(a.w), *up = reinterpret_cast<const uint16_t*>(a.up);
    x = reinterpret_cast<const uint16_t*>(a.x);
#pragma unroll
    for (int i = 0; i < S::LOADS; i++) {
      const int row = (threadIdx.x + i * THREADS) / 4;
      if (row < ROWS) {
        rows[i] = first_row + row < m ? x + static_cast<size_t>(first_row + row) * k : nullptr;
      } else {
        const int o = row - ROWS, half = S::WARP_OUTS / 2;
        const bool is_up = gate && o % S::WARP_OUTS >= half;
        const int out = first_out + (gate ? o / S::WARP_OUTS * half + o % half : o);
        rows[i] = out < n_out ? (is_up ? up : w) + static_cast<size_t>(out) * k : nullptr;
      }
    }
  }

  // Begins to copy a step into its stage. Zeros stand in for what is past the end.
  DEVICE void load_stage(uint16_t* stages, int step) const {
    uint16_t* stage = stages + step % STAGES * S::STAGE;
    const int at = step * STEP + chunk * 8;
#pragma unroll
    for (int i = 0; i < S::LOADS; i++) {
      const bool there = rows[i] && at < k;
      ptx::cp_async_16(stage + swizzled_offset((threadIdx.x + i * THREADS) / 4, chunk), there ? rows[i] + at : x, there ? 16 : 0);
    }
  }
};

// sums += x · wᵀ of a stage, for a warp's rows and outputs.
template <class T, int ROWS, int OUTS, int MI, int NI>
DEVICE void accumulate(float (&sums)[MI][NI][4], const uint16_t* stage, int warp_row, int warp_out, int lane) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    uint32_t x[MI][4], w[NI / 2][4];
#pragma unroll
    for (int i = 0; i < MI; i++) {
      ptx::ldmatrix_x4(x[i], stage + swizzled_offset(warp_row + i * 16 + lane % 16, half * 2 + lane / 16));
    }
#pragma unroll
    for (int i = 0; i < NI / 2; i++) {
      const int row = ROWS + warp_out + i * 16 + lane % 8 + lane / 16 * 8;
      ptx::ldmatrix_x4(w[i], stage + swizzled_offset(row, half * 2 + lane / 8 % 2));
    }
#pragma unroll
    for (int i = 0; i < MI; i++) {
#pragma unroll
      for (int j = 0; j < NI; j++) T::multiply(sums[i][j], x[i], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
    }
  }
}

// Stores a warp's sums. `out`: its first output in y.
template <int MI, int NI>
DEVICE void store(const GemmArgs& a, const float (&sums)[MI][NI][4], int first_row, int out, int lane) {
#pragma unroll
  for (int i = 0; i < MI; i++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = first_row + i * 16 + h * 8 + lane / 4;
      if (row >= static_cast<int>(a.m)) continue;
      const float scale = a.x_scales ? a.x_scales[row] : 1.0f;
      if (a.epilogue == GATE) {
#pragma unroll
        for (int j = 0; j < NI / 2; j++) {
          const float *g = sums[i][j] + h * 2, *u = sums[i][j + NI / 2] + h * 2;
          store_gated_sums(a, row, scale, out + j * 8 + lane % 4 * 2, g[0], g[1], u[0], u[1]);
        }
      } else {
#pragma unroll
        for (int j = 0; j < NI; j++) {
          const float* s = sums[i][j] + h * 2;
          store_sums(a, row, scale, out + j * 8 + lane % 4 * 2, s[0], s[1]);
        }
      }
    }
  }
}

template <class T, int ROWS, int OUTS>
DEVICE void gemm(const GemmArgs& a) {
  typedef Shape<ROWS, OUTS> S;
  ptx::griddepcontrol_wait();
  DYNAMIC_SHARED(shared);
  uint16_t* stages = reinterpret_cast<uint16_t*>(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp % 2 * S::WARP_ROWS, warp_out = warp / 2 * S::WARP_OUTS;
  const bool gate = a.epilogue == GATE;
  const int first_row = blockIdx.x * ROWS, first_out = blockIdx.y * (gate ? OUTS / 2 : OUTS);
  const Sources<ROWS, OUTS> sources(a, first_row, first_out);
  const int n_steps = ceil_div(a.k, STEP), out = first_out + (gate ? warp_out / 2 : warp_out);
  // A warp whose rows or outputs are all past the end only copies.
  const bool is_idle = first_row + warp_row >= static_cast<int>(a.m) || out >= static_cast<int>(a.n_out);

  float sums[S::MI][S::NI][4] = {};
#pragma unroll
  for (int step = 0; step < STAGES - 1; step++) {
    if (step < n_steps) sources.load_stage(stages, step);
    ptx::cp_async_commit();
  }
  for (int step = 0; step < n_steps; step++) {
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();
    // Into the stage that all warps have left.
    if (step + STAGES - 1 < n_steps) sources.load_stage(stages, step + STAGES - 1);
    ptx::cp_async_commit();
    if (!is_idle) accumulate<T, ROWS, OUTS>(sums, stages + step % STAGES * S::STAGE, warp_row, warp_out, lane);
  }
  ptx::cp_async_wait<0>();
  store(a, sums, first_row + warp_row, out, lane);
}

#define GEMM(T, ROWS, OUTS) \
  KERNEL(gemm_##T##_##ROWS##x##OUTS, GemmArgs, THREADS) { gemm<T, ROWS, OUTS>(a); }
GEMM(Half, 128, 256) GEMM(Half, 128, 128) GEMM(Half, 64, 128)
GEMM(Bfloat, 128, 256) GEMM(Bfloat, 128, 128) GEMM(Bfloat, 64, 128)
