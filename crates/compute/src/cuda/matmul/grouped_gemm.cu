// Grouped GEMM for Hopper: rows of activations in 16 bits, sorted by the experts that they use, with the weights of these, packed or plain.
//
// A block owns 128 outputs of up to N rows of one expert and multiplies all their columns as a block of mixed_gemm.cu does. Blocks (tile of
// outputs, tile of rows): those that run together share activations, and then weights, in the second-level cache. There are as many tiles
// of rows as there may be at most; those without rows end at once. Which expert a tile belongs to is known when the kernel before has
// ended, so nothing is asked for before.
//
// Moves: the weights of an expert once for each tile of its rows, and the activations, 2 bytes each, once for each 128 outputs.
#include "mixed_gemm.cuh"
#include "grouped_gemm_args.cuh"

// As moe_group writes it.
struct RowTile {
  uint32_t expert;
  uint32_t first;
  uint32_t count;
};

// A tile of outputs of an expert, whose rows of weights begin at `expert_row`. The matrix has one part, or a gate's and its up's.
DEVICE Tile tile_of(const MixedGemmArgs& a, int tile, int expert_row) {
  const bool gate = a.epilogue == GATE;
  const int row = expert_row + tile * (gate ? ROWS / 2 : ROWS), other_row = gate ? a.up_row + row : row + ROWS / 2;
  return {&a.parts[0], gate ? &a.parts[1] : &a.parts[0], row, other_row};
}

// The producer of activations, one thread: the tile's rows, in eights as the tensor cores take them.
template <int N>
DEVICE void produce_rows(const uint8_t* x, int n_rows, int n_stages, const uint8_t* stages, Ring ring) {
  typedef Shape<N> S;
  const uint32_t bytes = min(ceil_div(n_rows, 8) * 8, N) * 128;
#pragma unroll 1
  for (int i = 0; i < n_stages; i++) {
    ring.wait_empty();
    ring.expect(S::TILES * bytes);
    const uint32_t to = ptx::shared_address(stages + ring.stage * S::X_STAGE);
#pragma unroll
    for (int t = 0; t < S::TILES; t++, x += N * 128) ptx::cp_async_bulk(to + t * N * 128, x, bytes, ring.full().at);
    ring.next();
  }
}

// Writes the results of a tile of rows as floats. `n_out`: outputs from the block's first on.
template <bool GATED>
DEVICE void store_rows(const GroupedGemmArgs& args, const RowTile& rows, const Sums& sums, int first_out, int n_out) {
  constexpr int QUADS = ROWS / (GATED ? 8 : 4), STRIDE = MULTIPLIERS / QUADS;
  const MixedGemmArgs& a = args.product;
  const int tid = ptx::thread_again(), local = tid % QUADS * 4, out = first_out + local;
  if (local >= n_out) return;
  const int n_own = min(n_out - local, 4);
  float bias[2][4] = {};
  if (GATED && args.bias) {
    const float* from = args.bias + static_cast<size_t>(rows.expert) * 2 * a.y_stride + out;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (j < n_own) bias[0][j] = from[j], bias[1][j] = from[a.y_stride + j];
    }
  }
#pragma unroll 1
  for (int row = tid / QUADS; row < sums.n_rows; row += STRIDE) {
    const float scale = sums.scales[row];
    const float4 v = *reinterpret_cast<const float4*>(sums.own + row * PITCH + local);
    float each[4] = {v.x * scale + bias[0][0], v.y * scale + bias[0][1], v.z * scale + bias[0][2], v.w * scale + bias[0][3]};
    if (GATED) {
      const float4 u = *reinterpret_cast<const float4*>(sums.own + row * PITCH + ROWS / 2 + local);
      const float ups[4] = {u.x * scale + bias[1][0], u.y * scale + bias[1][1], u.z * scale + bias[1][2], u.w * scale + bias[1][3]};
#pragma unroll
      for (int j = 0; j < 4; j++) each[j] = gate_one(a.activation, each[j], ups[j]);
    }
    float* y = a.y + static_cast<size_t>(rows.first + row) * a.y_stride + out;
    if (n_own == 4 && reinterpret_cast<uintptr_t>(y) % 16 == 0) {
      *reinterpret_cast<float4*>(y) = float4{each[0], each[1], each[2], each[3]};
    } else {
#pragma unroll
      for (int j = 0; j < 4; j++) {
        if (j < n_own) y[j] = each[j];
      }
    }
  }
}

template <int N>
DEVICE void store_group(const GroupedGemmArgs& args, const float (&sums)[N / 8][4], uint8_t* shared, const float* scales) {
  const MixedGemmArgs& a = args.product;
  // All groups are done with the rings. What is computed or read anew needed no registers until here.
  ptx::sync_threads<MULTIPLIERS>(1);
  put_sums<N>(sums, shared, ptx::thread_again());
  ptx::sync_threads<MULTIPLIERS>(1);
  const uint2 block = ptx::block_again();
  const RowTile rows = args.tiles[block.y];
  const Tile outs = tile_of(a, block.x, 0);
  const Sums all(reinterpret_cast<const float*>(shared), scales, 0, 1, rows.count);
  const int n_out = outs.part->n_out - outs.row;
  if (a.tiles) {
    uint16_t* y = reinterpret_cast<uint16_t*>(a.y) + static_cast<size_t>(block.y) * N * a.y_stride;
    store_tile<N>(a, y, all, outs.row / TILE);
  } else if (a.epilogue == GATE) {
    store_rows<true>(args, rows, all, outs.row, n_out);
  } else {
    store_rows<false>(args, rows, all, outs.row, n_out);
  }
}

template <int N>
DEVICE void grouped_gemm(const GroupedGemmArgs& args) {
#if __CUDA_ARCH__ == 900
  typedef Shape<N> S;
  DYNAMIC_SHARED_TILES(shared);
  __shared__ RingBarriers barriers;
  __shared__ float scales[N];
  const MixedGemmArgs& a = args.product;
  ptx::launch_dependents();
  barriers.init(a);
  ptx::griddepcontrol_wait();
  if (args.tiles[blockIdx.y].count == 0) return;
  const int tid = threadIdx.x, warp = __shfl_sync(ALL_LANES, tid / 32, 0), first_step = a.steps[0], n_steps = a.steps[1];
  const Steps steps = {first_step, n_steps, first_step};
  const Stages stages(a, shared);
  if (warp >= MULTIPLIERS / 32) {
    ptx::setmaxnreg_dec<S::COPY_REGISTERS>();
    if (tid == MULTIPLIERS) {
      const Tile outs = tile_of(a, blockIdx.x, args.tiles[blockIdx.y].expert * args.expert_rows);
      produce_weights<N, true, true>(a, outs, steps, stages, barriers.weights(a));
    } else if (tid == MULTIPLIERS + 32) {
      const uint8_t* x = reinterpret_cast<const uint8_t*>(a.x) + static_cast<size_t>(blockIdx.y) * N * n_steps * STEP * 2;
      produce_rows<N>(x, args.tiles[blockIdx.y].count, n_steps * (STEP / TILE / S::TILES), stages.x, barriers.activations(a));
    }
  } else {
    ptx::setmaxnreg_inc<S::REGISTERS>();
    float sums[N / 8][4] = {};
    if (tid < static_cast<int>(args.tiles[blockIdx.y].count)) {
      scales[tid] = a.x_scales ? a.x_scales[blockIdx.y * N + tid] : fixed_scale(layout_of(a.parts[0].layout));
    }
    accumulate<N, true, true>(a, tile_of(a, 0, 0), steps, sums, stages, barriers.weights(a), barriers.activations(a));
    store_group<N>(args, sums, shared, scales);
  }
#endif
}

#define GROUPED_GEMM(N, OF_AN_SM)                                         \
  KERNEL_##OF_AN_SM(grouped_gemm_##N, GroupedGemmArgs, THREADS) {         \
    static_assert(Shape<N>::BLOCKS == OF_AN_SM, "registers for as many"); \
    grouped_gemm<N>(a);                                                   \
  }
GROUPED_GEMM(16, 2) GROUPED_GEMM(64, 2)
