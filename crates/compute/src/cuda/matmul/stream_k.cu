// Matmuls of M in 65..=256 rows of activations with packed weights, for Hopper (stream-K): as mixed_gemm.cu, but the steps of all tiles are
// divided evenly among the blocks.
//
// A block stays on its SM and goes through its steps: the end of a tile, whole tiles, and the beginning of a tile. Its steps of one tile
// are a work unit. Its rings are filled across the borders of tiles. Of a tile that it shares with others, a block leaves partial sums in
// memory, laid out as in registers. The blocks for which the tile is their last reduce it: each adds up and stores some quarters of the
// rows, and leaves its partial sums of the others. A block that goes on to another tile has left all of its sums long before they are
// wanted. Which block adds what in which order depends on nothing but the shapes. A block waits for others of its launch, so all of them
// must be running: there are no more of them than SMs.
//
// Moves: the weights once; the activations, 2 bytes each, once for each tile; and 128 floats of a row out and in again for each further
// block of a tile.
#include "mixed_gemm.cuh"
#include "stream_k_args.cuh"

// Parts of a tile's rows, each of which one block reduces.
constexpr int QUARTERS = 4;

// Eights of rows of a quarter of the sums, and the vectors that a block leaves of a quarter.
template <int N>
struct Quarter {
  static constexpr int EIGHTS = N / 8 / QUARTERS, VECTORS = EIGHTS * MULTIPLIERS;
};

// A block's steps of one tile.
struct WorkUnit {
  int tile;
  Steps steps;
  int first_block, n_blocks;  // that have steps of this tile
  int n_reducers;             // of these, the first, for which this tile is their last
  int rank;                   // this block's among them
  DEVICE bool is_whole() const { return n_blocks == 1; }
  DEVICE bool reduces() const { return rank < n_reducers; }
  DEVICE bool reduces(int quarter) const { return quarter * n_reducers / QUARTERS == rank; }
};

// The work units of a block, in order.
struct WorkUnits {
  int n_steps, total, n_blocks, block, at, end;
  DEVICE WorkUnits(const StreamKArgs& a, int block) : n_steps(a.n_steps), total(a.n_steps * a.n_tiles), n_blocks(gridDim.x), block(block) {
    at = first_of(block), end = first_of(block + 1);
  }
  DEVICE int first_of(int b) const { return static_cast<int>(static_cast<uint32_t>(total) * b / n_blocks); }
  DEVICE int block_of(int step) const { return static_cast<int>((static_cast<uint32_t>(step + 1) * n_blocks - 1) / total); }
  DEVICE bool more() const { return at < end; }
  DEVICE WorkUnit next() {
    WorkUnit u;
    u.tile = at / n_steps;
    const int tile_at = u.tile * n_steps, tile_end = tile_at + n_steps;
    u.steps.first = at - tile_at, u.steps.last = min(n_steps, end - tile_at);
    at = tile_at + u.steps.last;
    // Blocks begin at different steps, so that they do not all want the same activations at the same time.
    u.steps.begin = u.steps.first + u.tile % u.steps.count();
    u.first_block = block_of(tile_at);
    const int last = block_of(tile_end - 1);
    u.n_blocks = last - u.first_block + 1;
    u.n_reducers = u.n_blocks - (u.n_blocks > 1 && first_of(last + 1) > tile_end ? 1 : 0);
    u.rank = block - u.first_block;
    return u;
  }
};

// Where a block leaves its partial sums of a tile, of its last one or else of its first.
DEVICE int partials_of(int block, bool is_last) { return 2 * block + is_last; }

// The epilogue: stores the sums of a quarter of the rows, from `first_row` on.
template <int N>
struct TileEpilogue {
  const MixedGemmArgs& a;
  const float* scales;
  int first_out, n_out;  // of the tile
  int warp, lane;
  static constexpr int EIGHTS = Quarter<N>::EIGHTS;

  template <class Store>
  DEVICE void for_each_float(const float (&sums)[N / 8][4], int first_row, Store store) const {
    const int local = warp * 16 + lane / 4, row = first_row + lane % 4 * 2, m = a.m;
    const size_t stride = a.y_stride;
    float* y = a.y + row * stride + first_out + local;
    const bool has[2] = {local < n_out, local + 8 < n_out};
    float bias[2] = {};
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if (a.bias && has[h]) bias[h] = a.bias[first_out + local + 8 * h];
    }
#pragma unroll
    for (int j = 0; j < EIGHTS; j++) {
      const float2 scale = *reinterpret_cast<const float2*>(scales + row + 8 * j);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        if (row + 8 * j + i >= m) break;
        if (has[0]) store(y, fmaf(sums[j][i], i ? scale.y : scale.x, bias[0]));
        if (has[1]) store(y + 8, fmaf(sums[j][2 + i], i ? scale.y : scale.x, bias[1]));
        y += i ? 7 * stride : stride;
      }
    }
  }

  // Nobody else writes these outputs, so that their order does not matter.
  DEVICE void store_floats(const float (&sums)[N / 8][4], int first_row) const {
    if (a.epilogue == ADD) {
      for_each_float(sums, first_row, [](float* y, float v) { ptx::add_to(y, v); });
    } else {
      for_each_float(sums, first_row, [](float* y, float v) { *y = v; });
    }
  }

  // `lines`: where the tile is made, if the results are one. Each warp has a vector of all lines.
  DEVICE void store_gated(const float (&sums)[N / 8][4], int first_row, uint32_t lines) const {
    const float factor = a.tiles ? 1.0f / fixed_scale(a.tiles) : 1.0f;
#pragma unroll
    for (int j = 0; j < EIGHTS; j += 4) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = first_row + (j + i) * 8 + lane % 4 * 2;
        const float2 scale = *reinterpret_cast<const float2*>(scales + row);
        const float(&s)[4] = sums[j + i];
        if (a.tiles) {
          const GateSigmoid activate(a.activation);
          const float h0 = activate(s[0] * scale.x) * (s[2] * (scale.x * factor));
          const float h1 = activate(s[1] * scale.y) * (s[3] * (scale.y * factor));
          pairs[i] = a.tiles == PLAIN_BFLOAT ? ptx::f32_to_bf16(h0, h1) : half_pair(h0, h1);
        } else {
          const int local = warp * 8 + lane / 4, m = a.m;
          float* y = a.y + static_cast<size_t>(row) * a.y_stride + first_out + local;
          if (local < n_out && row < m) y[0] = activate_gate(a.activation, s[0] * scale.x) * (s[2] * scale.x);
          if (local < n_out && row + 1 < m) y[a.y_stride] = activate_gate(a.activation, s[1] * scale.y) * (s[3] * scale.y);
        }
      }
      if (a.tiles) {
        const int row = first_row + j * 8 + lane;
        ptx::stmatrix_x4_trans(lines + row * TILE * 2 + ((warp ^ row) & 7) * 16, pairs);
      }
    }
  }
};

// The producer of weights, one thread.
template <int N, Types TYPES>
DEVICE void produce_weights(const StreamKArgs& args, const Stages& stages, Ring ring) {
  const MixedGemmArgs& a = args.of_all;
  WorkUnits units(args, blockIdx.x);
  int n_paced = a.w_stages - 1;
  while (units.more()) {
    const WorkUnit unit = units.next();
    copy_packed_weights<N, TYPES>(a, Tile::of(a, unit.tile), unit.steps, stages.w, ring, n_paced);
    n_paced = 0;
  }
}

// Brings the partial sums that other blocks leave of the quarters that this one reduces.
template <int N>
DEVICE void copy_partials(const StreamKArgs& args, const WorkUnit& unit, const Stages& stages, Ring& ring) {
#pragma unroll 1
  for (int q = 0; q < QUARTERS; q++) {
    if (!unit.reduces(q)) continue;
#pragma unroll 1
    for (int r = 0; r < unit.n_blocks; r++) {
      if (r == unit.rank) continue;
      const int from = partials_of(unit.first_block + r, r < unit.n_reducers);
      ptx::wait_and_clear(args.is_ready + from * QUARTERS + q);
      copy_activations<N>(stages.x, args.partials + (static_cast<size_t>(from) * QUARTERS + q) * Quarter<N>::VECTORS, ring);
    }
  }
}

// The producer of activations and of others' partial sums, one thread.
template <int N>
DEVICE void produce_activations(const StreamKArgs& args, const Stages& stages, Ring ring) {
  constexpr int X_STAGE = Shape<N>::X_STAGE;
  const MixedGemmArgs& a = args.of_all;
  WorkUnits units(args, blockIdx.x);
  while (units.more()) {
    const WorkUnit unit = units.next();
    int step = unit.steps.begin;
#pragma unroll 1
    for (int n = unit.steps.count(); n > 0; n--, step = unit.steps.after(step)) {
      const uint8_t* x = reinterpret_cast<const uint8_t*>(a.x) + static_cast<size_t>(step) * (STEP / TILE) * X_STAGE;
#pragma unroll 1
      for (int i = 0; i < STEP / TILE; i++) copy_activations<N>(stages.x, x + i * X_STAGE, ring);
    }
    if (!unit.reduces()) continue;
    copy_partials<N>(args, unit, stages, ring);
    // An empty stage, where the results become a tile.
    if (a.tiles) {
      ring.wait_empty();
      ring.full().arrive();
      ring.next();
    }
  }
}

// What a block does with its sums of a unit.
template <int N>
struct Reduction {
  typedef Quarter<N> Q;
  const StreamKArgs& args;
  const WorkUnit& unit;
  const Stages& stages;
  int tid, block;

  // Leaves the partial sums of the quarters that other blocks reduce, and tells them.
  DEVICE void leave_partials(const float (&sums)[N / 8][4]) const {
    const int place = partials_of(block, unit.reduces());
    float4* to = args.partials + static_cast<size_t>(place) * QUARTERS * Q::VECTORS + tid;
#pragma unroll
    for (int q = 0; q < QUARTERS; q++) {
      if (unit.reduces(q)) continue;
#pragma unroll
      for (int j = q * Q::EIGHTS; j < (q + 1) * Q::EIGHTS; j++) {
        to[j * MULTIPLIERS] = float4{sums[j][0], sums[j][1], sums[j][2], sums[j][3]};
      }
    }
    ptx::fence_proxy_async_global();
    ptx::sync_threads<MULTIPLIERS>(1);
    if (tid < QUARTERS && !unit.reduces(tid)) ptx::announce(args.is_ready + place * QUARTERS + tid);
  }

  // Adds the partial sums of the other blocks.
  DEVICE void add_partials(float (&sums)[N / 8][4], int lane, Ring& ring) const {
#pragma unroll
    for (int q = 0; q < QUARTERS; q++) {
      if (!unit.reduces(q)) continue;
#pragma unroll 1
      for (int r = 1; r < unit.n_blocks; r++) {
        ring.wait_full();
        const uint32_t from = ptx::shared_address(stages.x + ring.stage * Shape<N>::X_STAGE) + tid * 16;
#pragma unroll
        for (int j = 0; j < Q::EIGHTS; j++) {
          const float4 v = ptx::load_quad(from + j * MULTIPLIERS * 16);
          float(&s)[4] = sums[q * Q::EIGHTS + j];
          s[0] += v.x, s[1] += v.y, s[2] += v.z, s[3] += v.w;
        }
        __syncwarp();
        ring.release(lane);
        ring.next();
      }
    }
  }

  // Stores the quarters that this block reduces. `lines`: where in shared memory the tile is made, if the results are one.
  DEVICE void store_quarters(float (&sums)[N / 8][4], const TileEpilogue<N>& epilogue, uint32_t lines) const {
#pragma unroll 1
    for (int q = 0; q < QUARTERS; q++) {
      if (unit.reduces(q)) {
        if (args.of_all.epilogue == GATE) epilogue.store_gated(sums, q * (N / QUARTERS), lines);
        else epilogue.store_floats(sums, q * (N / QUARTERS));
      }
      // The next quarter to the front, so that one code serves all.
#pragma unroll
      for (int j = 0; j < N / 8 - Q::EIGHTS; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) sums[j][i] = sums[j + Q::EIGHTS][i];
      }
    }
  }

  // Copies the same quarters of a tile of results from shared memory.
  DEVICE void store_tile(uint32_t lines) const {
    constexpr uint32_t BYTES = Shape<N>::X_STAGE / QUARTERS;
    ptx::fence_proxy_async_shared();
    ptx::sync_threads<MULTIPLIERS>(1);
    if (tid == 0) {
      uint8_t* y = reinterpret_cast<uint8_t*>(args.of_all.y) + static_cast<size_t>(unit.tile) * Shape<N>::X_STAGE;
#pragma unroll 1
      for (int q = 0; q < QUARTERS; q++) {
        if (unit.reduces(q)) ptx::cp_async_bulk_store(y + q * BYTES, lines + q * BYTES, BYTES);
      }
      ptx::cp_async_bulk_wait_read();
    }
  }
};

// From the sums of a unit to the results, or to what another block makes them of. The code from here on is short, since most of it runs for
// the first time.
template <int N>
DEVICE void finish_unit(const Reduction<N>& reduction, float (&sums)[N / 8][4], const float* scales, Ring& x) {
  const MixedGemmArgs& a = reduction.args.of_all;
  const WorkUnit& unit = reduction.unit;
  const int lane = reduction.tid % 32, warp = reduction.tid / 32;
  if (!unit.is_whole()) reduction.leave_partials(sums);
  if (!unit.reduces()) return;
  const Tile tile = Tile::of(a, unit.tile);
  const int first_out = tile.part->first_out, n_out = tile.part->n_out;
  const TileEpilogue<N> epilogue{a, scales, first_out + tile.row, n_out - tile.row, warp, lane};
  if (!unit.is_whole()) reduction.add_partials(sums, lane, x);
  const Ring lent = x;
  const uint32_t lines = ptx::shared_address(reduction.stages.x + lent.stage * Shape<N>::X_STAGE);
  if (a.tiles) {
    lent.wait_full();
    x.next();
  }
  reduction.store_quarters(sums, epilogue, lines);
  if (a.tiles) {
    reduction.store_tile(lines);
    lent.release(lane);
  }
}

// The consumers: multiply unit by unit.
template <int N, Types TYPES>
DEVICE void consume(const StreamKArgs& args, const Stages& stages, const float* scales, Ring w, Ring x) {
  const MixedGemmArgs& a = args.of_all;
  const Rows rows = Rows::by_outputs(a, __shfl_sync(ALL_LANES, threadIdx.x / 32, 0), threadIdx.x % 32);
  WorkUnits units(args, blockIdx.x);
  float sums[N / 8][4];
#pragma unroll 1
  while (units.more()) {
    const int at = units.at;
    {
      const WorkUnit unit = units.next();
#pragma unroll
      for (int j = 0; j < N / 8; j++) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0;
      multiply_packed<N, TYPES>(a, Tile::of(a, unit.tile), unit.steps, rows, sums, stages, w, x);
    }
    // Computed anew, so that it takes no registers before.
    const int tid = ptx::thread_again(), block = ptx::block_again().x;
    units = WorkUnits(args, block), units.at = at;
    const WorkUnit unit = units.next();
    finish_unit(Reduction<N>{args, unit, stages, tid, block}, sums, scales, x);
  }
  if (a.tiles && threadIdx.x == 0) ptx::cp_async_bulk_wait();
}

template <int N, Types TYPES>
DEVICE void stream_k(const StreamKArgs& args) {
#if __CUDA_ARCH__ == 900
  typedef Shape<N> S;
  static_assert(S::TILES == 1 && S::BLOCKS == 1, "a stage of activations is a tile, and what a quarter of the rows' sums take");
  const MixedGemmArgs& a = args.of_all;
  DYNAMIC_SHARED_TILES(shared);
  __shared__ RingBarriers barriers;
  __shared__ __align__(16) float scales[N];
  ptx::launch_dependents();
  const int tid = threadIdx.x, warp = __shfl_sync(ALL_LANES, tid / 32, 0);
  barriers.init(a);
  const Stages stages(a, shared);
  if (warp >= MULTIPLIERS / 32) {
    ptx::setmaxnreg_dec<S::COPY_REGISTERS>();
    if (tid == MULTIPLIERS) {
      produce_weights<N, TYPES>(args, stages, barriers.weights(a));
    } else if (tid == MULTIPLIERS + 32) {
      ptx::griddepcontrol_wait();
      produce_activations<N>(args, stages, barriers.activations(a));
    }
  } else {
    ptx::setmaxnreg_inc<S::REGISTERS>();
    ptx::griddepcontrol_wait();
    if (tid < static_cast<int>(a.m)) scales[tid] = a.x_scales ? a.x_scales[tid] : fixed_scale(PACKED_HALF);
    ptx::sync_threads<MULTIPLIERS>(1);
    consume<N, TYPES>(args, stages, scales, barriers.weights(a), barriers.activations(a));
  }
#endif
}

KERNEL_1(stream_k_128, StreamKArgs, THREADS) { stream_k<128, ALL_TYPES>(a); }
KERNEL_1(stream_k_256, StreamKArgs, THREADS) { stream_k<256, ALL_TYPES>(a); }
KERNEL_1(stream_k_128_common, StreamKArgs, THREADS) { stream_k<128, COMMON_TYPES>(a); }
KERNEL_1(stream_k_256_common, StreamKArgs, THREADS) { stream_k<256, COMMON_TYPES>(a); }
