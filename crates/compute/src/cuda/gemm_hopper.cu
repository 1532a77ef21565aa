// The products of gemm.cu for Hopper's tensor cores, which read both operands from shared memory and multiply in the background.
//
// A block owns 128 x OUTS outputs, each of its two groups of 4 warps 64 of the rows. Steps of 64 along k pass through four stages in
// shared memory (at most 192 KiB): one is multiplied, one may still be, two are being filled. All threads copy; a row of a stage is
// 128 bytes, laid out as `ptx::matrix_at` wants it.
#ifndef REALIZAR_EMULATION
#include "gemm.cuh"
#include "ptx_hopper.cuh"

constexpr int THREADS = 256;
constexpr int ROWS = 128;
constexpr int STEP = 64;
constexpr int STAGES = 4;

template <class T, int OUTS>
DEVICE void gemm(const GemmHalvesArgs& a) {
#if __CUDA_ARCH__ == 900
  constexpr int LOADS = (ROWS + OUTS) * 8 / THREADS, STAGE = (ROWS + OUTS) * STEP;
  ptx::wait_for_previous_kernel();
  DYNAMIC_SHARED(shared);
  uint16_t* stages = reinterpret_cast<uint16_t*>((reinterpret_cast<uintptr_t>(shared) + 1023) / 1024 * 1024);
  const int tid = threadIdx.x, lane = tid % 32;
  const int group = __shfl_sync(ALL_LANES, tid / 128, 0);
  const bool gate = a.epilogue == GATE;
  const int m = a.m, k = a.k, n_out = a.n_out;
  const int first_row = blockIdx.x * ROWS, first_out = blockIdx.y * (gate ? OUTS / 2 : OUTS);

  // What this thread copies in each step: one chunk of 16 bytes in each of LOADS rows. Of a gate's outputs the first half are gates
  // and the second their ups, so that a thread gets both of a pair.
  const uint16_t* sources[LOADS];
  const int chunk = tid % 8;
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    const int row = tid / 8 + i * (THREADS / 8);
    if (row < ROWS) {
      sources[i] = first_row + row < m ? a.x + static_cast<size_t>(first_row + row) * k + chunk * 8 : nullptr;
    } else {
      const int o = row - ROWS;
      const bool is_up = gate && o >= OUTS / 2;
      const int out = first_out + (is_up ? o - OUTS / 2 : o);
      sources[i] = out < n_out ? (is_up ? a.up : a.w) + static_cast<size_t>(out) * k + chunk * 8 : nullptr;
    }
  }
  // Rows of one thread are 32 apart, so that their chunks lie alike.
  uint16_t* const to = stages + tid / 8 * STEP + (chunk ^ (tid / 8 & 7)) * 8;
  const int n_steps = ceil_div(k, STEP);
  const auto fetch = [&](int step) {
    if (step < n_steps) {
      uint16_t* stage = to + step % STAGES * STAGE;
      const bool is_inside = step * STEP + chunk * 8 < k;
#pragma unroll
      for (int i = 0; i < LOADS; i++) {
        const bool there = sources[i] && is_inside;
        ptx::copy16_later(stage + i * (THREADS / 8) * STEP, there ? sources[i] + step * STEP : a.x, there ? 16 : 0);
      }
    }
    ptx::end_copies();
  };

  float sums[OUTS / 8][4] = {};
  fetch(0);
  fetch(1);
  for (int step = 0; step < n_steps; step++) {
    ptx::wait_for_copies<1>();
    ptx::show_to_tensor_cores();
    __syncthreads();
    const uint16_t* stage = stages + step % STAGES * STAGE;
    const uint64_t x = ptx::matrix_at(stage + group * 64 * STEP), w = ptx::matrix_at(stage + ROWS * STEP);
    ptx::begin_products();
#pragma unroll
    for (int i = 0; i < STEP / 16; i++) T::multiply_group(sums, x + 2 * i, w + 2 * i);
    ptx::end_products();
    // Into the stage whose products all warps had waited for at the barrier.
    fetch(step + 2);
    ptx::wait_for_products<1>();
  }
  ptx::wait_for_products<0>();
  ptx::wait_for_copies<0>();

#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = first_row + tid / 32 * 16 + h * 8 + lane / 4;
    if (row >= m) continue;
    const float scale = a.x_scales ? a.x_scales[row] : 1.0f;
    if (gate) {
#pragma unroll
      for (int j = 0; j < OUTS / 16; j++) {
        const float *g = sums[j] + h * 2, *u = sums[j + OUTS / 16] + h * 2;
        finish_gate(a, row, scale, first_out + j * 8 + lane % 4 * 2, g[0], g[1], u[0], u[1]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < OUTS / 8; j++) {
        const float* s = sums[j] + h * 2;
        finish(a, row, scale, first_out + j * 8 + lane % 4 * 2, s[0], s[1]);
      }
    }
  }
#endif
}

struct HopperHalf {
  template <int N>
  DEVICE static void multiply_group(float (&d)[N][4], uint64_t a, uint64_t b) { ptx::multiply_group_f16(d, a, b); }
};

struct HopperBfloat {
  template <int N>
  DEVICE static void multiply_group(float (&d)[N][4], uint64_t a, uint64_t b) { ptx::multiply_group_bf16(d, a, b); }
};

#define GEMM(T, OUTS) \
  KERNEL(gemm_hopper_##T##_128x##OUTS, GemmHalvesArgs, THREADS) { gemm<Hopper##T, OUTS>(a); }
GEMM(Half, 256) GEMM(Half, 128) GEMM(Bfloat, 256) GEMM(Bfloat, 128)
#endif
