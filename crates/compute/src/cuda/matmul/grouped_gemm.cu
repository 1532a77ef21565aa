// Grouped GEMM for Hopper: rows of activations in 16 bits, sorted by the experts that they use, with the weights of these, packed or plain.
//
// An item of work is 128 outputs of up to N rows of one expert, with all their columns, which a block multiplies as one of mixed_gemm.cu
// does. Items that follow each other share activations, and then weights, in the second-level cache. A block takes every gridDim.x-th: with
// few rows to an expert the items are short, so there are as many blocks as the SMs have room for, and the rings fill with the next item's
// weights while this one's sums are stored. Warps store what they have of packed weights by themselves; sums of plain ones, whose order in
// the tensor cores' operand is that of memory, meet in shared memory, beside the rings. With more rows each block has one item, and such
// sums take the place of the rings. Which expert a tile of rows belongs to, and how many tiles there are, is known when the kernel before
// has ended, so nothing is asked for before.
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
DEVICE void produce_rows(const uint8_t* x, int n_rows, int n_stages, const uint8_t* stages, Ring& ring) {
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

// The items of a block.
struct Items {
  const GroupedGemmArgs& args;
  uint32_t item, end;
  RowTile rows, next_rows;  // of this item and of the next one, which was asked for before this one is multiplied
  DEVICE Items(const GroupedGemmArgs& args) : args(args), item(blockIdx.x) {
    rows = args.tiles[item / args.out_tiles];
    end = *args.n_filled * args.out_tiles;
    ask_for_next();
  }
  DEVICE void ask_for_next() {
    if (item + gridDim.x < end) next_rows = args.tiles[(item + gridDim.x) / args.out_tiles];
  }
  DEVICE bool is_one() const { return item < end; }
  DEVICE void advance() {
    item += gridDim.x, rows = next_rows;
    ask_for_next();
  }
  DEVICE int out_tile() const { return item % args.out_tiles; }
  DEVICE size_t row_tile() const { return item / args.out_tiles; }
};

// Stores what a warp has of an item's sums, with rows of weights `by_outputs`: a lane of rows 2 t and 2 t + 1 of each eight of activations.
template <int N>
DEVICE void store_own(const GroupedGemmArgs& args, uint32_t item, const float (&sums)[N / 8][4]) {
  const MixedGemmArgs& a = args.product;
  const int tid = ptx::thread_again(), warp = tid / 32, g = tid % 32 / 4;
  const uint32_t row_tile = item / args.out_tiles;
  const RowTile rows = args.tiles[row_tile];
  const Tile outs = tile_of(a, item % args.out_tiles, 0);
  const int n_rows = rows.count, n_out = outs.part->n_out - outs.row;
  const bool gate = a.epilogue == GATE;
  const int local = gate ? warp * 8 + g : warp * 16 + g;
  const GateSigmoid activate(a.activation);
  const float factor = a.tiles ? 1.0f / fixed_scale(a.tiles) : 1.0f;
  float bias[2] = {};
  if (args.bias && local < n_out) {
    const float* from = args.bias + static_cast<size_t>(rows.expert) * 2 * a.y_stride + outs.row + local;
    bias[0] = from[0], bias[1] = from[a.y_stride];
  }
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    const int first = j * 8 + tid % 4 * 2;
    if (first >= n_rows) break;
    const float all = fixed_scale(PACKED_HALF);
    const float2 scale = a.x_scales ? *reinterpret_cast<const float2*>(a.x_scales + row_tile * N + first) : float2{all, all};
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int row = first + i;
      if (row >= n_rows) break;
      const float own = sums[j][i] * (i ? scale.y : scale.x), other = sums[j][2 + i] * (i ? scale.y : scale.x);
      if (a.tiles) {
        const float hidden = activate(own) * (other * factor);
        uint16_t* y = reinterpret_cast<uint16_t*>(a.y) + static_cast<size_t>(row_tile) * N * a.y_stride;
        y[(static_cast<size_t>(outs.row / TILE) * N + row) * TILE + ((warp ^ row) & 7) * 8 + g] =
            static_cast<uint16_t>(a.tiles == PLAIN_BFLOAT ? ptx::f32_to_bf16(hidden, 0) : half_pair(hidden, 0));
        continue;
      }
      float* y = a.y + static_cast<size_t>(rows.first + row) * a.y_stride + outs.row + local;
      if (gate) {
        if (local < n_out) y[0] = gate_one(a.activation, own + bias[0], other + bias[1]);
      } else {
        if (local < n_out) y[0] = own;
        if (local + 8 < n_out) y[8] = other;
      }
    }
  }
}

// The same by way of shared memory. `own`: where an item's sums are put.
template <int N>
DEVICE void store_together(const GroupedGemmArgs& args, uint32_t item, const float (&sums)[N / 8][4], uint8_t* own) {
  __shared__ float scales[N];
  const MixedGemmArgs& a = args.product;
  const uint32_t row_tile = item / args.out_tiles;
  // All groups have stored the item before, and where sums take the rings' place, are done with these.
  ptx::sync_threads<MULTIPLIERS>(1);
  const int tid = ptx::thread_again();
  if (tid < N) scales[tid] = a.x_scales ? a.x_scales[row_tile * N + tid] : fixed_scale(layout_of(a.parts[0].layout));
  put_sums<N>(sums, own, tid);
  ptx::sync_threads<MULTIPLIERS>(1);
  const RowTile rows = args.tiles[row_tile];
  const Tile outs = tile_of(a, item % args.out_tiles, 0);
  const Sums all(reinterpret_cast<const float*>(own), scales, 0, 1, rows.count);
  const int n_out = outs.part->n_out - outs.row;
  if (a.tiles) {
    uint16_t* y = reinterpret_cast<uint16_t*>(a.y) + static_cast<size_t>(row_tile) * N * a.y_stride;
    store_tile<N>(a, y, all, outs.row / TILE);
  } else if (a.epilogue == GATE) {
    store_rows<true>(args, rows, all, outs.row, n_out);
  } else {
    store_rows<false>(args, rows, all, outs.row, n_out);
  }
}

// The warps that multiply packed weights in several items: each stores what it has. One loop to a type, since a loop over all types leaves the
// compiler so few registers that it has each product wait for the one before.
template <class Packed, int N>
DEVICE void multiply_items(const GroupedGemmArgs& args, const Steps& steps, const Stages& stages, Ring w, Ring x) {
  const MixedGemmArgs& a = args.product;
  const Rows weights = Rows::by_outputs(a, __shfl_sync(ALL_LANES, threadIdx.x / 32, 0), threadIdx.x % 32);
  const uint32_t end = *args.n_filled * args.out_tiles;
#pragma unroll 1
  for (uint32_t item = blockIdx.x; item < end; item += gridDim.x) {
    float sums[N / 8][4] = {};
    multiply<Packed, N>(a, steps, weights, sums, stages, w, x);
    store_own<N>(args, item, sums);
  }
}

// Those that multiply plain weights. `own`: memory for an item's sums.
template <class T, int N>
DEVICE void multiply_plain_items(const GroupedGemmArgs& args, const Steps& steps, const Stages& stages, Ring w, Ring x, uint8_t* own) {
  const MixedGemmArgs& a = args.product;
  const uint32_t end = *args.n_filled * args.out_tiles;
#pragma unroll 1
  for (uint32_t item = blockIdx.x; item < end; item += gridDim.x) {
    float sums[N / 8][4] = {};
    multiply_plain<T, N>(a, steps, sums, stages, w, x);
    store_together<N>(args, item, sums, own);
  }
}

// The warps that multiply. `own`: memory for an item's sums.
template <int N>
DEVICE void consume(const GroupedGemmArgs& args, const Steps& steps, const Stages& stages, Ring w, Ring x, uint8_t* own) {
  const MixedGemmArgs& a = args.product;
  if constexpr (!Shape<N>::PERSISTENT) {
    if (blockIdx.x >= *args.n_filled * args.out_tiles) return;
    float sums[N / 8][4] = {};
    accumulate<N, true, TYPES_OF_EXPERTS>(a, tile_of(a, 0, 0), steps, sums, stages, w, x);
    return store_together<N>(args, ptx::block_again().x, sums, own);
  }
#define MULTIPLY_ITEMS(Q)                                                                           \
  case LAYOUT_##Q:                                                                                  \
    if constexpr (Packed_##Q::OF_EXPERTS) multiply_items<Packed_##Q, N>(args, steps, stages, w, x); \
    break;
  switch (a.parts[0].layout) {
    FOR_EACH_PACKED(MULTIPLY_ITEMS)
    case LAYOUT_F16: multiply_plain_items<PlainHalf, N>(args, steps, stages, w, x, own); break;
    case LAYOUT_BF16: multiply_plain_items<PlainBfloat, N>(args, steps, stages, w, x, own); break;
  }
#undef MULTIPLY_ITEMS
}

template <int N>
DEVICE void grouped_gemm(const GroupedGemmArgs& args) {
#if __CUDA_ARCH__ == 900
  typedef Shape<N> S;
  DYNAMIC_SHARED_TILES(shared);
  __shared__ RingBarriers barriers;
  const MixedGemmArgs& a = args.product;
  ptx::launch_dependents();
  barriers.init(a);
  ptx::griddepcontrol_wait();
  const int tid = threadIdx.x, warp = __shfl_sync(ALL_LANES, tid / 32, 0), first_step = a.steps[0], n_steps = a.steps[1];
  const Steps steps = {first_step, n_steps, first_step};
  const Stages stages(a, shared);
  if (warp >= MULTIPLIERS / 32) {
    ptx::setmaxnreg_dec<S::COPY_REGISTERS>();
    if (tid == MULTIPLIERS) {
      Ring ring = barriers.weights(a);
#pragma unroll 1
      for (Items items(args); items.is_one(); items.advance()) {
        const Tile outs = tile_of(a, items.out_tile(), items.rows.expert * args.expert_rows);
        produce_weights<N, true, TYPES_OF_EXPERTS>(a, outs, steps, stages, ring);
      }
    } else if (tid == MULTIPLIERS + 32) {
      Ring ring = barriers.activations(a);
#pragma unroll 1
      for (Items items(args); items.is_one(); items.advance()) {
        const uint8_t* x = reinterpret_cast<const uint8_t*>(a.x) + items.row_tile() * N * n_steps * STEP * 2;
        produce_rows<N>(x, items.rows.count, n_steps * (STEP / TILE / S::TILES), stages.x, ring);
      }
    }
  } else {
    ptx::setmaxnreg_inc<S::REGISTERS>();
    consume<N>(args, steps, stages, barriers.weights(a), barriers.activations(a), shared + args.sums_at);
  }
#endif
}

#define GROUPED_GEMM(N, OF_AN_SM)                                         \
  KERNEL_##OF_AN_SM(grouped_gemm_##N, GroupedGemmArgs, THREADS) {         \
    static_assert(Shape<N>::BLOCKS == OF_AN_SM, "registers for as many"); \
    grouped_gemm<N>(a);                                                   \
  }
GROUPED_GEMM(16, 2) GROUPED_GEMM(64, 2) GROUPED_GEMM(96, 2)
