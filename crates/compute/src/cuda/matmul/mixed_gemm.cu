// Mixed-precision GEMM for Hopper: M in 1..=256 rows of activations in 16 bits with packed weights, or plain ones of 16 bits. It computes
// y^T = w x^T, so that a weight is decoded once, in the registers of the thread that gives it to the tensor cores, whatever M.
//
// A block owns 128 outputs and a part of their columns; the blocks of a cluster share the columns of the same outputs, and add their sums
// by way of each other's shared memory. Each of two groups of 4 warps owns 64 outputs. Two more threads keep rings in shared memory
// filled: one of weights, as they lie in memory, 256 columns of packed ones or 64 of plain ones to a stage, and one of activations, which
// lie in memory as tiles that the tensor cores can read, as plain weights do in shared memory. Weights are on their way before the
// kernel before this one has ended.
//
// Half of a block's outputs may be a gate's, and half its up's. The results can be a tile of activations for the next matmul (tiles.cuh),
// whose rows of weights lie apart, so that TMA gathers them.
//
// Moves: the weights once, and the activations, 2 bytes each, once for each block's outputs.
#include "mixed_gemm.cuh"

// Floats from one row's sums to the next one's.
constexpr int PITCH = ROWS + 4;

// As `copy_weights` and `multiply`, for plain weights.
template <bool INTERLEAVED>
DEVICE void copy_plain_weights(const MixedGemmArgs& a, const Tile& outs, const Steps& steps, const uint8_t* stages, Ring ring) {
  constexpr int BOX = OUTS * TILE * 2;
#pragma unroll 1
  for (int tile = steps.first * (STEP / TILE); tile < steps.last * (STEP / TILE); tile++) {
    ring.wait_empty();
    ring.expect(2 * BOX);
    const uint32_t to = ptx::shared_address(stages + ring.stage * a.w_stage_bytes);
    copy_rows<INTERLEAVED>(to, &outs.part->vectors, tile * TILE * 2, outs.row, ring.full());
    copy_rows<INTERLEAVED>(to + BOX, &outs.other->vectors, tile * TILE * 2, outs.other_row, ring.full());
    ring.next();
  }
}

struct PlainHalf {
  template <int N>
  DEVICE static void multiply(float (&d)[N][4], uint64_t a, uint64_t b) { ptx::wgmma_ss_f16(d, a, b); }
};

struct PlainBfloat {
  template <int N>
  DEVICE static void multiply(float (&d)[N][4], uint64_t a, uint64_t b) { ptx::wgmma_ss_bf16(d, a, b); }
};

template <class T, int N>
DEVICE void multiply_plain(const MixedGemmArgs& a, const Steps& steps, float (&sums)[N / 8][4], const Stages& stages, Ring w, Ring x) {
  typedef Shape<N> S;
  const int lane = threadIdx.x % 32, n_tiles = steps.count() * (STEP / TILE);
  const uint32_t w_first = static_cast<uint32_t>(ptx::smem_desc(stages.w + threadIdx.x / 128 * OUTS * TILE * 2));
  const uint32_t x_first = static_cast<uint32_t>(ptx::smem_desc(stages.x));
  Barrier w_done = {0}, x_done = {0};
#pragma unroll 1
  for (int tile = 0; tile < n_tiles; tile++) {
    const int of_stage = tile % S::TILES;
    w.wait_full();
    if (of_stage == 0) x.wait_full();
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < TILE / 16; s++) {
      T::multiply(sums, ptx::smem_desc_after(w_first, w.stage * a.w_stage_bytes + 32 * s),
                  ptx::smem_desc_after(x_first, x.stage * S::X_STAGE + of_stage * N * 128 + 32 * s));
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    // What was multiplied before this tile is over.
    if (lane == 0) {
      if (w_done.at) w_done.arrive();
      if (of_stage == 0 && x_done.at) x_done.arrive();
    }
    w_done = w.empty();
    w.next();
    if (of_stage == 0) x_done = x.empty();
    if (of_stage == S::TILES - 1) x.next();
  }
  ptx::wgmma_wait<0>();
}

// What the blocks of a cluster have of their outputs, and a block's share of the rows. The code from here on runs once, so it is short.
struct Sums {
  const float *own, *scales;
  int n_ranks, first_row, n_rows;
  DEVICE Sums(const float* own, const float* scales, int rank, int n_ranks, int m) : own(own), scales(scales), n_ranks(n_ranks) {
    first_row = m * rank / n_ranks, n_rows = m * (rank + 1) / n_ranks - first_row;
  }
  // Adds up the first n of the vectors that begin at `at`, in the blocks' order. What three blocks have is under way at once.
  template <int T>
  DEVICE void take(float4 (&v)[T], const int (&at)[T], int n = T) const {
    if (n_ranks == 1) {
#pragma unroll
      for (int c = 0; c < T; c++) v[c] = *reinterpret_cast<const float4*>(own + at[c]);
      return;
    }
#pragma unroll
    for (int c = 0; c < T; c++) v[c] = float4{0, 0, 0, 0};
#pragma unroll 1
    for (int r = 0; r < n_ranks; r += 3) {
      float4 u[3][T];
#pragma unroll
      for (int j = 0; j < 3; j++) {
        const uint32_t from = ptx::mapa(own, min(r + j, n_ranks - 1));
#pragma unroll
        for (int c = 0; c < T; c++) {
          u[j][c] = float4{0, 0, 0, 0};
          if (r + j < n_ranks && c < n) u[j][c] = ptx::ld_shared_cluster(from + at[c] * 4);
        }
      }
#pragma unroll
      for (int j = 0; j < 3; j++) {
#pragma unroll
        for (int c = 0; c < T; c++) v[c].x += u[j][c].x, v[c].y += u[j][c].y, v[c].z += u[j][c].z, v[c].w += u[j][c].w;
      }
    }
  }
};

DEVICE float4 times(float4 v, float f) { return float4{v.x * f, v.y * f, v.z * f, v.w * f}; }

// Writes the results as floats. `n_out`: outputs from the block's first on.
template <bool GATED>
DEVICE void store_floats(const MixedGemmArgs& a, const Sums& sums, int first_out, int n_out) {
  // Rows of a thread that are under way at once, and from one of its rows to the next.
  constexpr int TOGETHER = GATED ? 1 : 4, QUADS = ROWS / (GATED ? 8 : 4), STRIDE = MULTIPLIERS / QUADS;
  const int local = threadIdx.x % QUADS * 4, out = first_out + local;
  if (local >= n_out) return;
  const bool whole = local + 4 <= n_out && (reinterpret_cast<uintptr_t>(a.y + out) | a.y_stride * 4) % 16 == 0;
  float bias[4] = {};
#pragma unroll
  for (int j = 0; j < 4; j++) {
    if (a.bias && local + j < n_out) bias[j] = a.bias[out + j];
  }
#pragma unroll 1
  for (int first = threadIdx.x / QUADS; first < sums.n_rows; first += TOGETHER * STRIDE) {
    const auto row = [&](int c) { return sums.first_row + min(first + c * STRIDE, sums.n_rows - 1); };
    const auto y = [&](int c) { return a.y + static_cast<size_t>(row(c)) * a.y_stride + out; };
    int at[TOGETHER];
    float4 v[TOGETHER], before[TOGETHER];
#pragma unroll
    for (int c = 0; c < TOGETHER; c++) {
      at[c] = row(c) * PITCH + local;
      before[c] = a.epilogue == ADD && whole ? *reinterpret_cast<const float4*>(y(c)) : float4{0, 0, 0, 0};
    }
    sums.take(v, at, ceil_div(sums.n_rows - first, STRIDE));
    if (GATED) {
      float4 u[TOGETHER];
      at[0] += ROWS / 2;
      sums.take(u, at);
      v[0] = times(v[0], sums.scales[row(0)]);
      v[0] = float4{activate_gate(a.activation, v[0].x) * u[0].x, activate_gate(a.activation, v[0].y) * u[0].y,
                    activate_gate(a.activation, v[0].z) * u[0].z, activate_gate(a.activation, v[0].w) * u[0].w};
    }
#pragma unroll
    for (int c = 0; c < TOGETHER; c++) {
      if (first + c * STRIDE >= sums.n_rows) break;
      const float4 w = times(v[c], sums.scales[row(c)]);
      const float each[4] = {w.x + bias[0], w.y + bias[1], w.z + bias[2], w.w + bias[3]};
      if (whole) {
        *reinterpret_cast<float4*>(y(c)) =
            float4{each[0] + before[c].x, each[1] + before[c].y, each[2] + before[c].z, each[3] + before[c].w};
      } else {
#pragma unroll
        for (int j = 0; j < 4; j++) {
          if (local + j < n_out) y(c)[j] = each[j] + (a.epilogue == ADD ? y(c)[j] : 0.0f);
        }
      }
    }
  }
}

// Writes gated results as the tile of activations that the next matmul reads: 16 outputs of a row to a thread at a time, which are 32 bytes
// of its line. Lanes take rows in an order in which their reads fall on all banks.
template <int N>
DEVICE void store_tile(const MixedGemmArgs& a, const Sums& sums, int tile) {
  const GateSigmoid activate(a.activation);
  const int eights = ceil_div(sums.n_rows, 8), q = threadIdx.x % 4;
  const bool packed = a.tiles == PACKED_HALF;
  const float factor = 1.0f / fixed_scale(a.tiles);
#pragma unroll 1
  for (int i = threadIdx.x / 32; i < eights; i += MULTIPLIERS / 32) {
    const int in_share = i * 8 + threadIdx.x / 4 % 2 * 4 + threadIdx.x % 32 / 8, row = sums.first_row + in_share;
    if (in_share >= sums.n_rows) continue;
    const float scale = sums.scales[row];
    int at[4];
    float4 v[4], u[4];
#pragma unroll
    for (int c = 0; c < 4; c++) at[c] = row * PITCH + (packed ? c * 16 + q * 4 : q * 16 + c * 4);
    sums.take(v, at);
#pragma unroll
    for (int c = 0; c < 4; c++) at[c] += ROWS / 2;
    sums.take(u, at);
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const float4 g = times(v[c], scale), by = times(u[c], scale * factor);
      v[c] = float4{activate(g.x) * by.x, activate(g.y) * by.y, activate(g.z) * by.z, activate(g.w) * by.w};
    }
    uint16_t* line = reinterpret_cast<uint16_t*>(a.y) + (static_cast<size_t>(tile) * N + row) * TILE;
    const auto put = [&](int vector, uint4 numbers) { *reinterpret_cast<uint4*>(line + ((vector ^ row) & 7) * 8) = numbers; };
    if (packed) {
      const int vector = q % 2 * 4 + q / 2 * 2;
      put(vector, uint4{half_pair(v[0].x, v[0].z), half_pair(v[1].x, v[1].z), half_pair(v[2].x, v[2].z), half_pair(v[3].x, v[3].z)});
      put(vector + 1, uint4{half_pair(v[0].y, v[0].w), half_pair(v[1].y, v[1].w), half_pair(v[2].y, v[2].w), half_pair(v[3].y, v[3].w)});
    } else {
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const float4 w = v[2 * c], z = v[2 * c + 1];
        put(2 * q + c, a.tiles == PLAIN_HALF ? uint4{half_pair(w.x, w.y), half_pair(w.z, w.w), half_pair(z.x, z.y), half_pair(z.z, z.w)}
                                             : eight_of<Bfloat>({w.x, w.y, w.z, w.w, z.x, z.y, z.z, z.w}));
      }
    }
  }
}

// The producer of weights, one thread.
template <int N>
DEVICE void produce_weights(const MixedGemmArgs& a, const Tile& outs, const Steps& steps, const Stages& stages, Ring ring) {
  if (layout_of(outs.part->layout) != PACKED_HALF) {
    if (gathers(a)) copy_plain_weights<true>(a, outs, steps, stages.w, ring);
    else copy_plain_weights<false>(a, outs, steps, stages.w, ring);
  } else if constexpr (Shape<N>::PACKED) {
    copy_packed_weights(a, outs, steps, stages.w, ring, 0);
  }
}

// The producer of activations, one thread.
template <int N>
DEVICE void produce_activations(const MixedGemmArgs& a, const Steps& steps, const Stages& stages, Ring ring) {
  typedef Shape<N> S;
  const int n_stages = steps.count() * (STEP / TILE / S::TILES);
  const uint8_t* x = reinterpret_cast<const uint8_t*>(a.x) + static_cast<size_t>(steps.first) * (STEP / TILE) * N * 128;
#pragma unroll 1
  for (int i = 0; i < n_stages; i++, x += S::X_STAGE) copy_activations<N>(stages.x, x, ring);
}

// The consumers: sums of the block's outputs over its steps.
template <int N>
DEVICE void accumulate(const MixedGemmArgs& a, const Tile& outs, const Steps& steps, float (&sums)[N / 8][4], const Stages& stages, Ring w,
                       Ring x) {
  switch (outs.part->layout) {
    case LAYOUT_F16: multiply_plain<PlainHalf, N>(a, steps, sums, stages, w, x); break;
    case LAYOUT_BF16: multiply_plain<PlainBfloat, N>(a, steps, sums, stages, w, x); break;
    default:
      if constexpr (Shape<N>::PACKED) multiply_packed<N>(a, outs, steps, Rows::in_order(), sums, stages, w, x);
  }
}

// Adds up the sums of the cluster's blocks, by way of shared memory that was the rings', and stores the block's share of the rows.
template <int N>
DEVICE void reduce_and_store(const MixedGemmArgs& a, const float (&sums)[N / 8][4], uint8_t* shared, const float* scales) {
  // All groups are done with the rings. What is computed anew needed no registers until here.
  ptx::sync_threads<MULTIPLIERS>(1);
  const uint2 block = ptx::block_again();
  const int tid = ptx::thread_again(), rank = block.x, n_ranks = gridDim.x;
  float* to = reinterpret_cast<float*>(shared) + tid / 32 * 16 + tid % 32 / 4 + tid % 4 * 2 * PITCH;
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    float* at = to + j * 8 * PITCH;
    at[0] = sums[j][0], at[PITCH] = sums[j][1], at[8] = sums[j][2], at[PITCH + 8] = sums[j][3];
  }
  if (n_ranks > 1) ptx::cluster_sync(); else ptx::sync_threads<MULTIPLIERS>(1);
  const Tile outs = Tile::of(a, a.first_tile + block.y);
  const Sums all(reinterpret_cast<const float*>(shared), scales, rank, n_ranks, a.m);
  const int first_out = outs.part->first_out + outs.row, n_out = outs.part->n_out - outs.row;
  if (a.tiles) store_tile<N>(a, all, outs.row / TILE);
  else if (a.epilogue == GATE) store_floats<true>(a, all, first_out, n_out);
  else store_floats<false>(a, all, first_out, n_out);
  // Others may still read this block's sums.
  if (n_ranks > 1) ptx::cluster_sync_relaxed();
}

// Blocks (rank in the cluster, tile from the launch's first on).
template <int N>
DEVICE void mixed_gemm(const MixedGemmArgs& a) {
#if __CUDA_ARCH__ == 900
  typedef Shape<N> S;
  DYNAMIC_SHARED_TILES(shared);
  __shared__ RingBarriers barriers;
  __shared__ float scales[N];
  ptx::launch_dependents();
  const int tid = threadIdx.x, warp = __shfl_sync(ALL_LANES, tid / 32, 0);
  const Tile outs = Tile::of(a, a.first_tile + blockIdx.y);
  const int first_step = a.steps[blockIdx.x];
  const Steps steps = {first_step, static_cast<int>(a.steps[blockIdx.x + 1]), first_step};
  barriers.init(a);
  const Stages stages(a, shared);
  if (warp >= MULTIPLIERS / 32) {
    ptx::setmaxnreg_dec<S::COPY_REGISTERS>();
    if (tid == MULTIPLIERS) {
      produce_weights<N>(a, outs, steps, stages, barriers.weights(a));
    } else if (tid == MULTIPLIERS + 32) {
      ptx::griddepcontrol_wait();
      produce_activations<N>(a, steps, stages, barriers.activations(a));
    }
  } else {
    ptx::setmaxnreg_inc<S::REGISTERS>();
    float sums[N / 8][4] = {};
    ptx::griddepcontrol_wait();
    if (tid < static_cast<int>(a.m)) scales[tid] = a.x_scales ? a.x_scales[tid] : fixed_scale(layout_of(outs.part->layout));
    accumulate<N>(a, outs, steps, sums, stages, barriers.weights(a), barriers.activations(a));
    reduce_and_store<N>(a, sums, shared, scales);
  }
#endif
}

#define MIXED_GEMM(N, OF_AN_SM)                                      \
  KERNEL_##OF_AN_SM(mixed_gemm_##N, MixedGemmArgs, THREADS) {        \
    static_assert(Shape<N>::BLOCKS == OF_AN_SM, "registers for as many"); \
    mixed_gemm<N>(a);                                                \
  }
MIXED_GEMM(8, 2) MIXED_GEMM(16, 2) MIXED_GEMM(32, 2) MIXED_GEMM(64, 2) MIXED_GEMM(128, 1) MIXED_GEMM(256, 1)

// Rows of activations as tiles of 64 columns, normalized where a norm comes before. A block converts a row.
constexpr int ACTIVATION_THREADS = 512;

KERNEL(mixed_gemm_activations, MixedGemmActivationArgs, ACTIVATION_THREADS) {
  constexpr int HELD = 4, CHUNK = ACTIVATION_THREADS * 8;
  ptx::launch_dependents();
  __shared__ float scratch[2][ACTIVATION_THREADS / 32];
  const int n = a.n, padded = a.padded, row = blockIdx.x, lane = threadIdx.x % 32;
  const float* x = a.x + static_cast<size_t>(row) * n;
  float held[HELD][8];
  float squares = 0, largest = 0;
  const auto load = [&](float (&v)[8], int k) {
    if (k < n) {
      load8_floats(v, x, k, n);
    } else {
#pragma unroll
      for (int j = 0; j < 8; j++) v[j] = 0;
    }
    if (a.weight && k < n) {
      float w[8];
      load8_floats(w, a.weight, k, n);
#pragma unroll
      for (int j = 0; j < 8; j++) squares += v[j] * v[j], v[j] *= w[j];
    }
  };
  ptx::griddepcontrol_wait();
#pragma unroll
  for (int c = 0; c < HELD; c++) {
    load(held[c], c * CHUNK + threadIdx.x * 8);
#pragma unroll
    for (int j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(held[c][j]));
  }
  for (int k = HELD * CHUNK + threadIdx.x * 8; k < n; k += CHUNK) {
    float v[8];
    load(v, k);
#pragma unroll
    for (int j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(v[j]));
  }
  squares = warp_sum(squares), largest = warp_max(largest);
  if (lane == 0) scratch[0][threadIdx.x / 32] = squares, scratch[1][threadIdx.x / 32] = largest;
  __syncthreads();
  squares = largest = 0;
#pragma unroll
  for (int w = 0; w < ACTIVATION_THREADS / 32; w++) squares += scratch[0][w], largest = fmaxf(largest, scratch[1][w]);
  // The power of two that brings the largest magnitude to 2^12 or just above; exponents of both factors stay normal.
  const int e = 127 + 139 - static_cast<int>(__float_as_uint(largest) >> 23);
  const uint32_t bounded = largest == 0 || a.layout == PLAIN_BFLOAT ? 127 : e < 1 ? 1 : e > 253 ? 253 : e;
  const float factor = __uint_as_float(bounded << 23);
  const float inverse = a.weight ? rsqrtf(squares / n + a.eps) : 1.0f;
  if (threadIdx.x == 0) a.scales[row] = __uint_as_float((254 - bounded) << 23) * inverse;
  const auto store = [&](const float (&v)[8], int k) {
    if (k >= padded) return;
    float u[8];
#pragma unroll
    for (int j = 0; j < 8; j++) u[j] = v[j] * factor;
    if (a.layout != PACKED_HALF) {
      uint16_t* to = a.y + (static_cast<size_t>(k / 64) * a.rows + row) * 64 + ((k / 8 ^ row) & 7) * 8;
      *reinterpret_cast<uint4*>(to) = a.layout == PLAIN_HALF ? eight_of<Half>(u) : eight_of<Bfloat>(u);
      return;
    }
    put_packed(a.y, a.rows, row, k, u[0], u[1], u[2], u[3]);
    put_packed(a.y, a.rows, row, k + 4, u[4], u[5], u[6], u[7]);
  };
#pragma unroll
  for (int c = 0; c < HELD; c++) store(held[c], c * CHUNK + threadIdx.x * 8);
  for (int k = HELD * CHUNK + threadIdx.x * 8; k < padded; k += CHUNK) {
    float v[8];
    load(v, k);
    store(v, k);
  }
}
