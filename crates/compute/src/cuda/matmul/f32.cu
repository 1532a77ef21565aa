// Products with narrow matrices of F32, such as routers of experts: sums in floats, in an order that does not depend on other rows.
//
// f32_gemv: a block owns an output of a row, a thread four neighbouring columns in each 1,024. Weights are asked for before the kernel
// before has ended. Moves: the weights once for each row, from the second-level cache after the first.
//
// f32_gemm: a block owns 32 rows x 32 outputs. Each of its 8 warps multiplies 16 columns of a step of 128, a lane 8 x 4 outputs, and the
// warps' sums are added in order. Shared memory: 33 KiB. Moves: weights and activations once for each 32 rows or outputs.
#include "../common/kernel.cuh"
#include "f32_args.cuh"

DEVICE float4 load_four(const float* row, int k, int n) {
  return k < n ? *reinterpret_cast<const float4*>(row + k) : float4{0, 0, 0, 0};
}

DEVICE float dot(float4 a, float4 b, float sum) { return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum)))); }

constexpr int GEMV_THREADS = 256;
KERNEL(f32_gemv, F32Args, GEMV_THREADS) {
  // Vectors of a thread that are under way at once.
  constexpr int HELD = 2, CHUNK = GEMV_THREADS * 4;
  __shared__ float scratch[GEMV_THREADS / 32];
  ptx::launch_dependents();
  const int n = a.n_in, out = blockIdx.x, row = blockIdx.y, first = threadIdx.x * 4;
  const float *w = a.w + static_cast<size_t>(out) * n, *x = a.x + static_cast<size_t>(row) * n;
  float4 held[HELD], norm[HELD];
  const auto load = [&](int k) {
#pragma unroll
    for (int c = 0; c < HELD; c++) {
      held[c] = load_four(w, k + c * CHUNK, n);
      norm[c] = a.norm_weight ? load_four(a.norm_weight, k + c * CHUNK, n) : float4{1, 1, 1, 1};
    }
  };
  load(first);
  ptx::griddepcontrol_wait();
  float sum = 0, squares = 0;
#pragma unroll 1
  for (int k = first; k < n; k += HELD * CHUNK) {
    if (k > first) load(k);
#pragma unroll
    for (int c = 0; c < HELD; c++) {
      const float4 v = load_four(x, k + c * CHUNK, n);
      squares = dot(v, v, squares);
      sum = dot(float4{v.x * norm[c].x, v.y * norm[c].y, v.z * norm[c].z, v.w * norm[c].w}, held[c], sum);
    }
  }
  sum = block_sum(sum, scratch);
  if (a.norm_weight) sum *= rsqrtf(block_sum(squares, scratch) / n + a.eps);
  if (threadIdx.x == 0) a.y[static_cast<size_t>(row) * a.y_stride + out] = sum + (a.bias ? a.bias[out] : 0.0f);
}

constexpr int GEMM_THREADS = 256, WARPS = GEMM_THREADS / 32;
// Rows and outputs of a block; columns of a step, and of a warp in it; floats from one row of a step to the next, which begin on other banks.
constexpr int TILE = 32, STEP = 128, SLICE = STEP / WARPS, PITCH = STEP + 4;

// A block's rows of one operand: each thread has as many vectors of a step, from the same column of every eighth row.
struct Operand {
  static constexpr int EACH = TILE * STEP / 4 / GEMM_THREADS;
  float4 held[EACH];
  const float* from;
  int row, n_rows, n, column;
  DEVICE Operand(const float* matrix, int first, int n_rows, int n) : n_rows(n_rows), n(n) {
    row = first + threadIdx.x / (STEP / 4), column = threadIdx.x % (STEP / 4) * 4;
    from = matrix + static_cast<size_t>(row) * n;
  }
  DEVICE void load(int k) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      held[i] = row + i * WARPS < n_rows ? load_four(from + static_cast<size_t>(i) * WARPS * n, k + column, n) : float4{0, 0, 0, 0};
    }
  }
  DEVICE void put(float* tile) const {
#pragma unroll
    for (int i = 0; i < EACH; i++) *reinterpret_cast<float4*>(tile + (threadIdx.x / (STEP / 4) + i * WARPS) * PITCH + column) = held[i];
  }
};

KERNEL(f32_gemm, F32Args, GEMM_THREADS) {
  __shared__ __align__(16) float shared[2 * TILE * PITCH];
  float *xs = shared, *ws = shared + TILE * PITCH;
  ptx::launch_dependents();
  const int n = a.n_in, lane = threadIdx.x % 32, warp = threadIdx.x / 32, first_out = blockIdx.x * TILE, first_row = blockIdx.y * TILE;
  Operand w(a.w, first_out, a.n_out, n), x(a.x, first_row, a.m, n);
  w.load(0);
  ptx::griddepcontrol_wait();
  x.load(0);
  // Of rows lane / 8 + 4 i and outputs lane % 8 + 8 j.
  float sums[8][4] = {};
#pragma unroll 1
  for (int k = 0; k < n; k += STEP) {
    __syncthreads();
    x.put(xs), w.put(ws);
    __syncthreads();
    if (k + STEP < n) x.load(k + STEP), w.load(k + STEP);
#pragma unroll
    for (int c = warp * SLICE; c < (warp + 1) * SLICE; c += 4) {
      float4 u[8], v[4];
#pragma unroll
      for (int i = 0; i < 8; i++) u[i] = *reinterpret_cast<const float4*>(xs + (lane / 8 + 4 * i) * PITCH + c);
#pragma unroll
      for (int j = 0; j < 4; j++) v[j] = *reinterpret_cast<const float4*>(ws + (lane % 8 + 8 * j) * PITCH + c);
#pragma unroll
      for (int i = 0; i < 8; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) sums[i][j] = dot(u[i], v[j], sums[i][j]);
      }
    }
  }
  __syncthreads();
  static_assert(WARPS * TILE * TILE <= 2 * TILE * PITCH, "sums in place of operands");
#pragma unroll
  for (int i = 0; i < 8; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) shared[warp * TILE * TILE + (lane / 8 + 4 * i) * TILE + lane % 8 + 8 * j] = sums[i][j];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < TILE * TILE; i += GEMM_THREADS) {
    const int row = first_row + i / TILE, out = first_out + i % TILE;
    float sum = 0;
#pragma unroll
    for (int s = 0; s < WARPS; s++) sum += shared[s * TILE * TILE + i];
    if (row < static_cast<int>(a.m) && out < static_cast<int>(a.n_out)) {
      a.y[static_cast<size_t>(row) * a.y_stride + out] = sum + (a.bias ? a.bias[out] : 0.0f);
    }
  }
}
