// Products with narrow matrices of F32, such as routers of experts: sums in floats, in an order that does not depend on other rows.
//
// f32_gemv: a block owns an output of a row, a thread four neighbouring columns in each 1,024. Weights are asked for before the kernel
// before has ended. Moves: the weights once for each row, from the second-level cache after the first.
//
// f32_small_m: a block owns 8 rows x 8 outputs. A thread multiplies four neighbouring columns in each 1,024, all 64 products of them; lanes'
// sums are added by halves, then those of the warps in order. Moves: weights and activations once for each 8 rows or outputs, from the
// second-level cache.
//
// f32_gemm: a block owns 64 rows x 32 outputs. Each of its 8 warps multiplies 8 columns of a step of 64, a lane 8 x 8 outputs, and the
// warps' sums are added in order. Shared memory: 26 KB. Moves: activations once for each 32 outputs, weights once for each 64 rows.
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

constexpr int SMALL_THREADS = 256, SMALL_ROWS = 8, SMALL_OUTS = 8;

// Adds up 2 N numbers of each lane over all lanes, and leaves lane l those at 2 N / 32 l and after. Each step hands half of them over.
template <int N, int STRIDE = 16, int ALL>
DEVICE void sum_over_lanes(float (&v)[ALL]) {
  const bool upper = threadIdx.x & STRIDE;
#pragma unroll
  for (int i = 0; i < N; i++) {
    const float keep = upper ? v[i + N] : v[i], give = upper ? v[i] : v[i + N];
    v[i] = keep + __shfl_xor_sync(ALL_LANES, give, STRIDE);
  }
  if constexpr (STRIDE > 1) sum_over_lanes<N / 2, STRIDE / 2>(v);
}

KERNEL_1(f32_small_m, F32Args, SMALL_THREADS) {
  constexpr int CHUNK = SMALL_THREADS * 4, WARPS = SMALL_THREADS / 32, ALL = SMALL_ROWS * SMALL_OUTS;
  __shared__ float of_warps[WARPS][ALL], squares_of_warps[WARPS][SMALL_ROWS];
  ptx::launch_dependents();
  const int n = a.n_in, lane = threadIdx.x % 32, warp = threadIdx.x / 32, first_out = blockIdx.x * SMALL_OUTS, first_row = blockIdx.y * SMALL_ROWS;
  // Rows and outputs past the end are the last ones again.
  const auto row_of = [](const float* matrix, int i, int n_rows, int n) { return matrix + static_cast<size_t>(min(i, n_rows - 1)) * n; };
  float4 w[SMALL_OUTS], norm;
  const auto load_weights = [&](int k) {
#pragma unroll
    for (int o = 0; o < SMALL_OUTS; o++) w[o] = load_four(row_of(a.w, first_out + o, a.n_out, n), k, n);
    norm = a.norm_weight ? load_four(a.norm_weight, k, n) : float4{1, 1, 1, 1};
  };
  const int first = threadIdx.x * 4;
  load_weights(first);
  ptx::griddepcontrol_wait();
  float sums[ALL] = {}, squares[SMALL_ROWS] = {};
#pragma unroll 1
  for (int k = first; k < n; k += CHUNK) {
    if (k > first) load_weights(k);
#pragma unroll
    for (int r = 0; r < SMALL_ROWS; r++) {
      const float4 x = load_four(row_of(a.x, first_row + r, a.m, n), k, n);
      squares[r] = dot(x, x, squares[r]);
      const float4 v = {x.x * norm.x, x.y * norm.y, x.z * norm.z, x.w * norm.w};
#pragma unroll
      for (int o = 0; o < SMALL_OUTS; o++) sums[r * SMALL_OUTS + o] = dot(v, w[o], sums[r * SMALL_OUTS + o]);
    }
  }
  sum_over_lanes<ALL / 2>(sums);
#pragma unroll
  for (int i = 0; i < ALL / 32; i++) of_warps[warp][lane * (ALL / 32) + i] = sums[i];
  if (a.norm_weight) {
#pragma unroll
    for (int r = 0; r < SMALL_ROWS; r++) {
      const float sum = warp_sum(squares[r]);
      if (lane == 0) squares_of_warps[warp][r] = sum;
    }
  }
  __syncthreads();
  const int r = threadIdx.x / SMALL_OUTS, row = first_row + r, out = first_out + threadIdx.x % SMALL_OUTS;
  if (threadIdx.x >= ALL || row >= static_cast<int>(a.m) || out >= static_cast<int>(a.n_out)) return;
  float sum = 0, all_squares = 0;
#pragma unroll
  for (int i = 0; i < WARPS; i++) sum += of_warps[i][threadIdx.x];
  if (a.norm_weight) {
#pragma unroll
    for (int i = 0; i < WARPS; i++) all_squares += squares_of_warps[i][r];
    sum *= rsqrtf(all_squares / n + a.eps);
  }
  a.y[static_cast<size_t>(row) * a.y_stride + out] = sum + (a.bias ? a.bias[out] : 0.0f);
}

constexpr int GEMM_THREADS = 256, WARPS = GEMM_THREADS / 32;
// Rows and outputs of a block; columns of a step, and of a warp in it; floats from one row of a step to the next, which begin on other banks.
constexpr int ROWS = 64, OUTS = 32, STEP = 64, SLICE = STEP / WARPS, PITCH = STEP + 4;
// Rows and outputs of a lane: every eighth row, every fourth output.
constexpr int OWN_ROWS = ROWS / 8, OWN_OUTS = OUTS / 4;

// A block's N rows of one operand: each thread has as many vectors of a step, from the same column of every 16th row.
template <int N>
struct Operand {
  static constexpr int BETWEEN = GEMM_THREADS * 4 / STEP, EACH = N / BETWEEN;
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
      const bool is_row = row + i * BETWEEN < n_rows;
      held[i] = is_row ? load_four(from + static_cast<size_t>(i) * BETWEEN * n, k + column, n) : float4{0, 0, 0, 0};
    }
  }
  DEVICE void put(float* tile) const {
#pragma unroll
    for (int i = 0; i < EACH; i++) *reinterpret_cast<float4*>(tile + (threadIdx.x / (STEP / 4) + i * BETWEEN) * PITCH + column) = held[i];
  }
};

KERNEL_1(f32_gemm, F32Args, GEMM_THREADS) {
  __shared__ __align__(16) float shared[(ROWS + OUTS) * PITCH];
  float *xs = shared, *ws = shared + ROWS * PITCH;
  ptx::launch_dependents();
  const int n = a.n_in, lane = threadIdx.x % 32, warp = threadIdx.x / 32, first_out = blockIdx.x * OUTS, first_row = blockIdx.y * ROWS;
  Operand<OUTS> w(a.w, first_out, a.n_out, n);
  Operand<ROWS> x(a.x, first_row, a.m, n);
  w.load(0);
  ptx::griddepcontrol_wait();
  x.load(0);
  // Of rows lane / 4 + 8 i and outputs lane % 4 + 4 j.
  float sums[OWN_ROWS][OWN_OUTS] = {};
#pragma unroll 1
  for (int k = 0; k < n; k += STEP) {
    __syncthreads();
    x.put(xs), w.put(ws);
    __syncthreads();
    if (k + STEP < n) x.load(k + STEP), w.load(k + STEP);
#pragma unroll
    for (int c = warp * SLICE; c < (warp + 1) * SLICE; c += 4) {
      float4 v[OWN_OUTS];
#pragma unroll
      for (int j = 0; j < OWN_OUTS; j++) v[j] = *reinterpret_cast<const float4*>(ws + (lane % 4 + 4 * j) * PITCH + c);
#pragma unroll
      for (int i = 0; i < OWN_ROWS; i++) {
        const float4 u = *reinterpret_cast<const float4*>(xs + (lane / 4 + 8 * i) * PITCH + c);
#pragma unroll
        for (int j = 0; j < OWN_OUTS; j++) sums[i][j] = dot(u, v[j], sums[i][j]);
      }
    }
  }
  // The warps' sums, eight rows at a time.
  static_assert(WARPS * 8 * OUTS <= (ROWS + OUTS) * PITCH && GEMM_THREADS == 8 * OUTS, "sums in place of operands, one to a thread");
#pragma unroll
  for (int i = 0; i < OWN_ROWS; i++) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < OWN_OUTS; j++) shared[(warp * 8 + lane / 4) * OUTS + lane % 4 + 4 * j] = sums[i][j];
    __syncthreads();
    const int row = first_row + 8 * i + threadIdx.x / OUTS, out = first_out + threadIdx.x % OUTS;
    float sum = 0;
#pragma unroll
    for (int s = 0; s < WARPS; s++) sum += shared[s * 8 * OUTS + threadIdx.x];
    if (row < static_cast<int>(a.m) && out < static_cast<int>(a.n_out)) {
      a.y[static_cast<size_t>(row) * a.y_stride + out] = sum + (a.bias ? a.bias[out] : 0.0f);
    }
  }
}
