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

// The producer of activations, one thread.
template <int N>
DEVICE void produce_activations(const MixedGemmArgs& a, const Steps& steps, const Stages& stages, Ring ring) {
  typedef Shape<N> S;
  const int n_stages = steps.count() * (STEP / TILE / S::TILES);
  const uint8_t* x = reinterpret_cast<const uint8_t*>(a.x) + static_cast<size_t>(steps.first) * (STEP / TILE) * N * 128;
#pragma unroll 1
  for (int i = 0; i < n_stages; i++, x += S::X_STAGE) copy_activations<N>(stages.x, x, ring);
}

// Adds up the sums of the cluster's blocks, by way of shared memory that was the rings', and stores the block's share of the rows.
template <int N>
DEVICE void reduce_and_store(const MixedGemmArgs& a, const float (&sums)[N / 8][4], uint8_t* shared, const float* scales) {
  // All groups are done with the rings. What is computed anew needed no registers until here.
  ptx::sync_threads<MULTIPLIERS>(1);
  const uint2 block = ptx::block_again();
  const int tid = ptx::thread_again(), rank = block.x, n_ranks = gridDim.x;
  put_sums<N>(sums, shared, tid);
  if (n_ranks > 1) ptx::cluster_sync(); else ptx::sync_threads<MULTIPLIERS>(1);
  const Tile outs = Tile::of(a, a.first_tile + block.y);
  const Sums all(reinterpret_cast<const float*>(shared), scales, rank, n_ranks, a.m);
  const int first_out = outs.part->first_out + outs.row, n_out = outs.part->n_out - outs.row;
  if (a.tiles) store_tile<N>(a, reinterpret_cast<uint16_t*>(a.y), all, outs.row / TILE);
  else if (a.epilogue == GATE) store_floats<true>(a, all, first_out, n_out);
  else store_floats<false>(a, all, first_out, n_out);
  // Others may still read this block's sums.
  if (n_ranks > 1) ptx::cluster_sync_relaxed();
}

// Blocks (rank in the cluster, tile from the launch's first on).
template <int N, Types TYPES>
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
      Ring ring = barriers.weights(a);
      produce_weights<N, Shape<N>::PACKED, TYPES>(a, outs, steps, stages, ring);
    } else if (tid == MULTIPLIERS + 32) {
      ptx::griddepcontrol_wait();
      produce_activations<N>(a, steps, stages, barriers.activations(a));
    }
  } else {
    ptx::setmaxnreg_inc<S::REGISTERS>();
    float sums[N / 8][4] = {};
    ptx::griddepcontrol_wait();
    if (tid < static_cast<int>(a.m)) scales[tid] = a.x_scales ? a.x_scales[tid] : fixed_scale(layout_of(outs.part->layout));
    Ring w = barriers.weights(a), x = barriers.activations(a);
    accumulate<N, Shape<N>::PACKED, TYPES>(a, outs, steps, sums, stages, w, x);
    reduce_and_store<N>(a, sums, shared, scales);
  }
#endif
}

#define MIXED_GEMM(NAME, N, TYPES, OF_AN_SM)                              \
  KERNEL_##OF_AN_SM(NAME, MixedGemmArgs, THREADS) {                       \
    static_assert(Shape<N>::BLOCKS == OF_AN_SM, "registers for as many"); \
    mixed_gemm<N, TYPES>(a);                                              \
  }
MIXED_GEMM(mixed_gemm_8, 8, ALL_TYPES, 2)
MIXED_GEMM(mixed_gemm_16, 16, ALL_TYPES, 2)
MIXED_GEMM(mixed_gemm_32, 32, ALL_TYPES, 2)
MIXED_GEMM(mixed_gemm_64, 64, ALL_TYPES, 2)
MIXED_GEMM(mixed_gemm_128, 128, ALL_TYPES, 1)
MIXED_GEMM(mixed_gemm_256, 256, ALL_TYPES, 1)
MIXED_GEMM(mixed_gemm_8_common, 8, COMMON_TYPES, 2)
MIXED_GEMM(mixed_gemm_16_common, 16, COMMON_TYPES, 2)
MIXED_GEMM(mixed_gemm_32_common, 32, COMMON_TYPES, 2)
MIXED_GEMM(mixed_gemm_64_common, 64, COMMON_TYPES, 2)

// Rows of activations as tiles of 64 columns, normalized where a norm comes before. A block converts a row, and puts it in the places of
// all tiles that want it. It has as many threads as the row has eights, so that an SM has several blocks of short rows.
constexpr int ACTIVATION_THREADS = 512;

// In the order of packed columns a vector has a pair of each of four pieces: lanes l, l + 8, l + 16 and l + 24, which have eight columns of a
// piece each, exchange pairs, and get a vector each. The one that a lane gets is `packed_place()` among the eight of a line.
DEVICE uint4 packed_vector(const float (&v)[8]) {
  const uint32_t pairs[4] = {half_pair(v[0], v[2]), half_pair(v[1], v[3]), half_pair(v[4], v[6]), half_pair(v[5], v[7])};
  const bool odd = threadIdx.x & 8, upper = threadIdx.x & 16;
  const auto swap = [](uint32_t x, int with) { return __shfl_xor_sync(ALL_LANES, x, with); };
  const uint32_t got0 = swap(odd ? pairs[0] : pairs[1], 8), got1 = swap(odd ? pairs[2] : pairs[3], 8);
  const uint2 first = odd ? uint2{got0, pairs[1]} : uint2{pairs[0], got0}, second = odd ? uint2{got1, pairs[3]} : uint2{pairs[2], got1};
  const uint2 give = upper ? first : second, keep = upper ? second : first, got = {swap(give.x, 16), swap(give.y, 16)};
  return upper ? uint4{got.x, got.y, keep.x, keep.y} : uint4{keep.x, keep.y, got.x, got.y};
}

DEVICE int packed_place() {
  const int lane = threadIdx.x % 32, piece = lane / 8;
  return lane / 4 % 2 * 2 + piece % 2 + piece / 2 * 4;
}

KERNEL_2(mixed_gemm_activations, MixedGemmActivationArgs, ACTIVATION_THREADS) {
  constexpr int HELD = 2;
  ptx::launch_dependents();
  __shared__ float scratch[2][ACTIVATION_THREADS / 32];
  const int n = a.n, padded = a.padded, lane = threadIdx.x % 32, chunk = blockDim.x * 8, n_warps = blockDim.x / 32;
  const float* x = a.x;
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
  x += static_cast<size_t>(a.x_rows ? a.x_rows[blockIdx.x] : blockIdx.x) * n;
#pragma unroll
  for (int c = 0; c < HELD; c++) {
    load(held[c], c * chunk + threadIdx.x * 8);
#pragma unroll
    for (int j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(held[c][j]));
  }
  for (int k = HELD * chunk + threadIdx.x * 8; k < n; k += chunk) {
    float v[8];
    load(v, k);
#pragma unroll
    for (int j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(v[j]));
  }
  squares = warp_sum(squares), largest = warp_max(largest);
  if (lane == 0) scratch[0][threadIdx.x / 32] = squares, scratch[1][threadIdx.x / 32] = largest;
  __syncthreads();
  squares = largest = 0;
#pragma unroll 4
  for (int w = 0; w < n_warps; w++) squares += scratch[0][w], largest = fmaxf(largest, scratch[1][w]);
  // The power of two that brings the largest magnitude to 2^12 or just above; exponents of both factors stay normal.
  const int e = 127 + 139 - static_cast<int>(__float_as_uint(largest) >> 23);
  const uint32_t bounded = largest == 0 || a.layout == PLAIN_BFLOAT ? 127 : e < 1 ? 1 : e > 253 ? 253 : e;
  const float factor = __uint_as_float(bounded << 23);
  const float inverse = a.weight ? rsqrtf(squares / n + a.eps) : 1.0f;
  const float scale = __uint_as_float((254 - bounded) << 23) * inverse;
  const bool is_packed = a.layout == PACKED_HALF;
  const auto to_vector = [&](float (&v)[8]) {
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] *= factor;
    return is_packed ? packed_vector(v) : a.layout == PLAIN_HALF ? eight_of<Half>(v) : eight_of<Bfloat>(v);
  };
  const auto store = [&](uint4 vector, int k, uint16_t* tiles, uint32_t row) {
    const int tile = is_packed ? k / 256 * 4 + lane % 4 : k / 64, at = is_packed ? packed_place() : k / 8;
    if (k < padded) *reinterpret_cast<uint4*>(tiles + (static_cast<size_t>(tile) * a.rows + row) * 64 + ((at ^ row) & 7) * 8) = vector;
  };
  uint4 vectors[HELD];
#pragma unroll
  for (int c = 0; c < HELD; c++) vectors[c] = to_vector(held[c]);
  const uint32_t n_places = a.places ? a.n_places : 1;
#pragma unroll 1
  for (uint32_t p = 0; p < n_places; p++) {
    const uint32_t place = a.places ? a.places[blockIdx.x * n_places + p] : blockIdx.x;
    const uint32_t row = place % a.rows;
    uint16_t* tiles = a.y + static_cast<size_t>(place - row) * padded;
    if (threadIdx.x == 0) a.scales[place] = scale;
#pragma unroll
    for (int c = 0; c < HELD; c++) store(vectors[c], c * chunk + threadIdx.x * 8, tiles, row);
    // Of whole warps, since rows are padded to what a warp has.
    for (int k = HELD * chunk + threadIdx.x * 8; k < padded; k += chunk) {
      float v[8];
      load(v, k);
      store(to_vector(v), k, tiles, row);
    }
  }
}
