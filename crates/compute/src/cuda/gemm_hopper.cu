// The products of gemm.cu for Hopper's tensor cores, which read both operands from shared memory and multiply in the background.
//
// A block owns 128 x OUTS outputs, each of two groups of 4 warps 64 of the rows. One more warp keeps four stages in shared memory
// filled (192 KiB at most), each of them 64 columns of the rows and of the weights; these lie in memory as the tensor cores want
// them (halves.cu), so that a stage takes two or three copies. Blocks that run together share their weights.
#ifndef REALIZAR_EMULATION
#include "gemm.cuh"
#include "ptx_hopper.cuh"

constexpr int THREADS = 288;
constexpr int ROWS = 128;
constexpr int STEP = 64;
constexpr int STAGES = 4;

template <class T, int OUTS>
DEVICE void gemm(const GemmHalvesArgs& a) {
#if __CUDA_ARCH__ == 900
  constexpr int STAGE = (ROWS + OUTS) * STEP;
  ptx::wait_for_previous_kernel();
  DYNAMIC_SHARED(shared);
  __shared__ uint64_t filled[STAGES], emptied[STAGES];
  uint16_t* stages = reinterpret_cast<uint16_t*>((reinterpret_cast<uintptr_t>(shared) + 1023) / 1024 * 1024);
  const int tid = threadIdx.x, lane = tid % 32;
  const int warp = __shfl_sync(ALL_LANES, tid / 32, 0);
  const bool gate = a.epilogue == GATE;
  const int m = a.m, n_steps = a.k / STEP;
  const int first_row = blockIdx.x * ROWS, first_out = blockIdx.y * (gate ? OUTS / 2 : OUTS);
  if (warp == 0) {
    if (lane < STAGES) ptx::make_barrier(filled + lane, 1), ptx::make_barrier(emptied + lane, 8);
    ptx::barriers_are_ready();
  }
  __syncthreads();

  if (warp == 8) {
    if (lane != 0) return;
    for (int step = 0; step < n_steps; step++) {
      const int i = step % STAGES;
      if (step >= STAGES) ptx::wait_for_phase(emptied + i, (step / STAGES - 1) & 1);
      uint16_t* stage = stages + i * STAGE;
      ptx::expect_bytes(filled + i, lane, STAGE * 2);
      const uint16_t* x = a.x + (static_cast<size_t>(step) * a.x_rows + first_row) * STEP;
      ptx::copy_bytes(stage, x, ROWS * STEP * 2, filled + i, lane);
      const size_t at = (static_cast<size_t>(step) * a.w_rows + first_out) * STEP;
      if (gate) {
        // The first half of the outputs are gates and the second their ups, so that a thread gets both of a pair.
        ptx::copy_bytes(stage + ROWS * STEP, a.w + at, OUTS * STEP, filled + i, lane);
        ptx::copy_bytes(stage + (ROWS + OUTS / 2) * STEP, a.up + at, OUTS * STEP, filled + i, lane);
      } else {
        ptx::copy_bytes(stage + ROWS * STEP, a.w + at, OUTS * STEP * 2, filled + i, lane);
      }
    }
    return;
  }

  float sums[OUTS / 8][4] = {};
  for (int step = 0; step < n_steps; step++) {
    ptx::wait_for_phase(filled + step % STAGES, step / STAGES & 1);
    const uint16_t* stage = stages + step % STAGES * STAGE;
    const uint64_t x = ptx::matrix_at(stage + warp / 4 * 64 * STEP), w = ptx::matrix_at(stage + ROWS * STEP);
    ptx::begin_products();
#pragma unroll
    for (int i = 0; i < STEP / 16; i++) T::multiply_group(sums, x + 2 * i, w + 2 * i);
    ptx::end_products();
    ptx::wait_for_products<1>();
    if (step > 0 && lane == 0) ptx::arrive(emptied + (step - 1) % STAGES);
  }
  ptx::wait_for_products<0>();

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
