// The products of gemm.cu for Hopper's tensor cores, which read both operands from shared memory and multiply in the background.
//
// A block goes through tiles of 128 x OUTS outputs, of which each of two groups of 4 warps owns 64 rows. A thread of a third group keeps
// a ring of stages in shared memory filled (200 KiB at most), also while the others write a tile; a stage is 64 columns of the rows and of
// the weights, which lie in memory as the tensor cores want them (halves.cu), so that it takes three copies. Tiles that run together share
// 2048 rows at most, which stay in the second-level cache.
//
// Between the end of one step's products and the start of those after the next there are half a step's 512 cycles, so that path is short:
// addresses are made once.
#ifndef REALIZAR_EMULATION
#include "gemm.cuh"
#include "ptx_hopper.cuh"

constexpr int THREADS = 384;
constexpr int ROWS = 128;
constexpr int STEP = 64;
// Tiles of rows that are gone through before the outputs move on.
constexpr int GROUP_ROWS = 2048 / ROWS;

// Four neighbouring outputs of a row from the pairs that two lanes hold for 8 outputs each, `a` and `b`: the even lane's are of `a`.
DEVICE float4 four_of_pairs(bool is_odd, const float* a, const float* b) {
  const float x = __shfl_xor_sync(ALL_LANES, is_odd ? a[0] : b[0], 1), y = __shfl_xor_sync(ALL_LANES, is_odd ? a[1] : b[1], 1);
  return is_odd ? float4{x, y, b[0], b[1]} : float4{a[0], a[1], x, y};
}

// The finished outputs of a group's rows, of which `first_row` is the warp's first. `four(j, h)` gives four outputs from 8 * j on, or
// from 8 * j + 8 on in odd lanes, of row 8 * h + lane / 4.
template <int OUTS, class Four>
DEVICE void write_outputs(const GemmHalvesArgs& a, int first_row, int first_out, int lane, Four four) {
  constexpr int BATCH = 8;
  const int m = a.m, n_out = a.n_out;
  const bool is_whole = first_out + OUTS <= n_out && a.y_stride % 4 == 0 && reinterpret_cast<uintptr_t>(a.y) % 16 == 0;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = first_row + h * 8 + lane / 4, out = first_out + lane % 2 * 8 + lane % 4 / 2 * 4;
    float* y = a.y + static_cast<size_t>(row) * a.y_stride + out;
#pragma unroll
    for (int i = 0; i < OUTS / 8; i += 2 * BATCH) {
      // All reads of what is added come before the first write.
      float4 before[BATCH];
      if (a.epilogue == ADD && is_whole && row < m) {
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
          if (i + 2 * b < OUTS / 8) before[b] = *reinterpret_cast<const float4*>(y + (i + 2 * b) * 8);
        }
      }
#pragma unroll
      for (int b = 0; b < BATCH; b++) {
        const int j = i + 2 * b;
        if (j >= OUTS / 8) continue;
        float4 v = four(j, h);
        if (row >= m) continue;
        if (is_whole) {
          if (a.epilogue == ADD) v.x += before[b].x, v.y += before[b].y, v.z += before[b].z, v.w += before[b].w;
          *reinterpret_cast<float4*>(y + j * 8) = v;
        } else {
          put_pair(a, row, out + j * 8, v.x, v.y), put_pair(a, row, out + j * 8 + 2, v.z, v.w);
        }
      }
    }
  }
}

// `activate` is for what a row's factor makes of a gate.
template <int HALF, class Activate>
DEVICE void write_gated(const GemmHalvesArgs& a, int row, int out, int lane, const float (&scale)[2], const float (&sums)[HALF / 4][4],
                        Activate activate) {
  write_outputs<HALF>(a, row, out, lane, [&](int j, int h) {
    float v[2][2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
#pragma unroll
      for (int c = 0; c < 2; c++) v[p][c] = activate(sums[j + p][2 * h + c] * scale[h]) * (sums[HALF / 8 + j + p][2 * h + c] * scale[h]);
    }
    return four_of_pairs(lane % 2, v[0], v[1]);
  });
}

// What becomes of a warp's sums of 16 rows from `row` on.
template <int OUTS>
DEVICE void finish_tile(const GemmHalvesArgs& a, int row, int out, int lane, const float (&sums)[OUTS / 8][4]) {
  float scale[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int at = row + h * 8 + lane / 4;
    scale[h] = a.x_scales && at < static_cast<int>(a.m) ? a.x_scales[at] : 1.0f;
  }
  if (a.epilogue != GATE) {
    write_outputs<OUTS>(a, row, out, lane, [&](int j, int h) {
      float4 v = four_of_pairs(lane % 2, sums[j] + 2 * h, sums[j + 1] + 2 * h);
      v.x *= scale[h], v.y *= scale[h], v.z *= scale[h], v.w *= scale[h];
      if (a.bias) {
        const int at = out + (j + lane % 2) * 8 + lane % 4 / 2 * 4, n_out = a.n_out;
        if (at < n_out) v.x += a.bias[at];
        if (at + 1 < n_out) v.y += a.bias[at + 1];
        if (at + 2 < n_out) v.z += a.bias[at + 2];
        if (at + 3 < n_out) v.w += a.bias[at + 3];
      }
      return v;
    });
  } else if (a.activation <= GELU_TANH) {
    const GateSigmoid sigmoid(a.activation);
    write_gated<OUTS / 2>(a, row, out, lane, scale, sums, [&](float x) { return sigmoid(x); });
  } else {
    write_gated<OUTS / 2>(a, row, out, lane, scale, sums, [&](float x) { return activate_one(a.activation, x); });
  }
}

template <class T, int OUTS>
DEVICE void gemm(const GemmHalvesArgs& a) {
#if __CUDA_ARCH__ == 900
  constexpr int HALF = OUTS / 2, ROWS_BYTES = ROWS * STEP * 2, HALF_BYTES = HALF * STEP * 2;
  constexpr int STAGE_BYTES = ROWS_BYTES + 2 * HALF_BYTES, STAGES = (200 << 10) / STAGE_BYTES;
  DYNAMIC_SHARED(shared);
  __shared__ uint64_t barriers[2 * STAGES];
  const uint32_t stages = (ptx::fixed_address(shared) + 1023) / 1024 * 1024;
  const uint32_t filled = ptx::fixed_address(barriers), emptied = filled + 8 * STAGES;
  const int tid = threadIdx.x, lane = tid % 32;
  const int warp = __shfl_sync(ALL_LANES, tid / 32, 0), group = warp / 4;
  if (warp == 0) {
    if (lane < STAGES) ptx::make_barrier(filled + 8 * lane, 1), ptx::make_barrier(emptied + 8 * lane, 2);
    ptx::barriers_are_ready();
  }
  __syncthreads();
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();

  const bool gate = a.epilogue == GATE;
  const int tile_outs = gate ? HALF : OUTS, n_steps = a.k / STEP;
  const int row_tiles = ceil_div(a.m, ROWS), out_tiles = ceil_div(a.n_out, tile_outs), n_tiles = row_tiles * out_tiles;
  const auto locate = [&](int tile, int& row, int& out) {
    const int group_tiles = GROUP_ROWS * out_tiles, rows_at = tile / group_tiles * GROUP_ROWS;
    const int within = tile % group_tiles, rows = min(row_tiles - rows_at, GROUP_ROWS);
    row = (rows_at + within % rows) * ROWS;
    out = within / rows * tile_outs;
  };
  // The stage that is next, and how often the ring was gone through.
  int i = 0;
  uint32_t round = 0;
  const auto advance = [&] {
    if (++i == STAGES) i = 0, round++;
  };

  if (group == 2) {
    ptx::fewer_registers<40>();
    for (int tile = blockIdx.x; tile < n_tiles && tid == 256; tile += gridDim.x) {
      int row, out;
      locate(tile, row, out);
      const uint16_t* x = a.x + static_cast<size_t>(row) * STEP;
      // The first half of the outputs are gates and the second their ups, so that a thread gets both of a pair.
      const uint16_t* w0 = a.w + static_cast<size_t>(out) * STEP;
      const uint16_t* w1 = gate ? a.up + static_cast<size_t>(out) * STEP : w0 + HALF * STEP;
      for (int step = 0; step < n_steps; step++, advance()) {
        if (round > 0) ptx::wait_at(emptied + 8 * i, (round - 1) & 1);
        const uint32_t stage = stages + i * STAGE_BYTES, barrier = filled + 8 * i;
        ptx::expect_bytes(barrier, STAGE_BYTES);
        ptx::copy_bytes(stage, x, ROWS_BYTES, barrier);
        ptx::copy_bytes(stage + ROWS_BYTES, w0, HALF_BYTES, barrier);
        ptx::copy_bytes(stage + ROWS_BYTES + HALF_BYTES, w1, HALF_BYTES, barrier);
        x += static_cast<size_t>(a.x_rows) * STEP;
        w0 += static_cast<size_t>(a.w_rows) * STEP, w1 += static_cast<size_t>(a.w_rows) * STEP;
      }
    }
    return;
  }
  ptx::more_registers<232>();

  const bool tells = tid % 128 == 0;
  const uint64_t first_x = ptx::matrix_at(stages + group * 64 * STEP * 2), first_w = ptx::matrix_at(stages + ROWS_BYTES);
  for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
    float sums[OUTS / 8][4];
    int before = 0;
    for (int step = 0; step < n_steps; step++, advance()) {
      ptx::wait_at(filled + 8 * i, round & 1);
      const uint64_t x = first_x + i * (STAGE_BYTES / 16), w = first_w + i * (STAGE_BYTES / 16);
      ptx::begin_products();
#pragma unroll
      for (int k = 0; k < STEP / 16; k++) T::multiply_group(sums, x + 2 * k, w + 2 * k, k > 0 ? 1 : step);
      ptx::end_products();
      ptx::wait_for_products<1>();
      if (step > 0 && tells) ptx::arrive_at(emptied + 8 * before);
      before = i;
    }
    ptx::wait_for_products<0>();
    if (tells) ptx::arrive_at(emptied + 8 * before);
    int row, out;
    locate(tile, row, out);
    finish_tile<OUTS>(a, row + warp * 16, out, lane, sums);
  }
#endif
}

struct HopperHalf {
  template <int N>
  DEVICE static void multiply_group(float (&d)[N][4], uint64_t a, uint64_t b, uint32_t add) { ptx::multiply_group_f16(d, a, b, add); }
};

struct HopperBfloat {
  template <int N>
  DEVICE static void multiply_group(float (&d)[N][4], uint64_t a, uint64_t b, uint32_t add) { ptx::multiply_group_bf16(d, a, b, add); }
};

#define GEMM(T, OUTS) \
  KERNEL_1(gemm_hopper_##T##_128x##OUTS, GemmHalvesArgs, THREADS) { gemm<Hopper##T, OUTS>(a); }
GEMM(Half, 256) GEMM(Half, 192) GEMM(Half, 128) GEMM(Bfloat, 256) GEMM(Bfloat, 192) GEMM(Bfloat, 128)
#endif
