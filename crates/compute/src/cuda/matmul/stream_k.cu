// Products of 65 to 256 rows of activations with packed weights, for Hopper: those of mixed_gemm.cu, with all tiles' steps shared out evenly.
//
// A block stays on its multiprocessor and goes through its steps, which are a part of a tile, whole tiles, and again a part. Its rings are
// filled across the borders of tiles. What a block has of a tile that it shares, it leaves in memory as it lies in registers. The blocks
// for which the tile is their last add up and write some quarters of the rows each, and leave the other quarters; a block that goes on to
// another tile has left all of its sums long before these want them. Which block adds what in which order depends on nothing but the
// shapes. A block waits for others of its launch, so all of them must be running: there are no more than multiprocessors.
//
// Moves: the weights once, the activations, 2 bytes each, once for each tile, and 128 floats of a row out and in again for each further
// block of a tile.
#ifndef REALIZAR_EMULATION
#include "mixed_gemm.cuh"
#include "stream_k_args.cuh"

constexpr int QUARTERS = 4;

// A block's part of a tile.
struct Share {
  int tile;
  Steps steps;
  int first_block, n_blocks;  // that have steps of this tile
  int n_adders;               // of these, the first, for which this tile is their last
  int rank;                   // this block's among them
  DEVICE bool adds() const { return rank < n_adders; }
  DEVICE bool owns(int quarter) const { return quarter * n_adders / QUARTERS == rank; }
};

struct Shares {
  int n_steps, total, n_blocks, block, at, end;
  DEVICE Shares(const StreamKArgs& a, int block) : n_steps(a.n_steps), total(a.n_steps * a.n_tiles), n_blocks(gridDim.x), block(block) {
    at = first_of(block), end = first_of(block + 1);
  }
  DEVICE int first_of(int b) const { return static_cast<int>(static_cast<uint32_t>(total) * b / n_blocks); }
  DEVICE int block_of(int step) const { return static_cast<int>((static_cast<uint32_t>(step + 1) * n_blocks - 1) / total); }
  DEVICE bool more() const { return at < end; }
  DEVICE Share next() {
    Share s;
    s.tile = at / n_steps;
    const int tile_at = s.tile * n_steps, tile_end = tile_at + n_steps;
    s.steps.first = at - tile_at, s.steps.last = min(n_steps, end - tile_at);
    at = tile_at + s.steps.last;
    // Blocks begin at different steps, so that they do not all want the same activations at the same time.
    s.steps.begin = s.steps.first + s.tile % s.steps.count();
    s.first_block = block_of(tile_at);
    const int last = block_of(tile_end - 1);
    s.n_blocks = last - s.first_block + 1;
    s.n_adders = s.n_blocks - (s.n_blocks > 1 && first_of(last + 1) > tile_end ? 1 : 0);
    s.rank = block - s.first_block;
    return s;
  }
};

// Where a block leaves its sums of a tile: of its last one, or else of its first.
DEVICE int place_of(int block, bool is_last) { return 2 * block + is_last; }

// Writes the sums of a quarter of the rows, from `first_row` on.
template <int N>
struct Writer {
  const MixedGemmArgs& a;
  const float* scales;
  int first_out, n_out;  // of the tile
  int warp, lane;
  static constexpr int EIGHTS = N / 8 / QUARTERS;

  template <class Put>
  DEVICE void put_floats(const float (&sums)[N / 8][4], int first_row, Put put) const {
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
        if (has[0]) put(y, fmaf(sums[j][i], i ? scale.y : scale.x, bias[0]));
        if (has[1]) put(y + 8, fmaf(sums[j][2 + i], i ? scale.y : scale.x, bias[1]));
        y += i ? 7 * stride : stride;
      }
    }
  }

  // Nobody else writes these outputs, so that their order does not matter.
  DEVICE void write_floats(const float (&sums)[N / 8][4], int first_row) const {
    if (a.epilogue == ADD) {
      put_floats(sums, first_row, [](float* y, float v) { ptx::add_to(y, v); });
    } else {
      put_floats(sums, first_row, [](float* y, float v) { *y = v; });
    }
  }

  // `lines`: where the tile is made, if results are one. Each warp has a vector of all lines.
  DEVICE void write_gated(const float (&sums)[N / 8][4], int first_row, uint32_t lines) const {
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

template <int N>
DEVICE void multiply_shares(const StreamKArgs& args) {
#if __CUDA_ARCH__ == 900
  typedef Shape<N> S;
  static_assert(S::TILES == 1 && S::BLOCKS == 1, "a stage of activations is a tile, and what a quarter of the rows' sums take");
  // Of a quarter, eights of rows, and what a block leaves of it.
  constexpr int EIGHTS = N / 8 / QUARTERS, LEFT = EIGHTS * MULTIPLIERS;
  const MixedGemmArgs& a = args.of_all;
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t w_full[MAX_STAGES], w_empty[MAX_STAGES], x_full[MAX_STAGES], x_empty[MAX_STAGES];
  __shared__ __align__(16) float scales[N];
  ptx::launch_dependents();
  const int tid = threadIdx.x, lane = tid % 32, warp = __shfl_sync(ALL_LANES, tid / 32, 0);
  make_rings(a, w_full, w_empty, x_full, x_empty);
  uint8_t* x_ring = shared + a.w_stages * a.w_stage_bytes;
  if (warp >= MULTIPLIERS / 32) {
    ptx::setmaxnreg_dec<S::COPY_REGISTERS>();
    if (tid == MULTIPLIERS) {
      Shares shares(args, blockIdx.x);
      Ring ring(w_full, w_empty, a.w_stages);
      int n_paced = a.w_stages - 1;
      while (shares.more()) {
        const Share share = shares.next();
        copy_packed_weights(a, Tile::of(a, share.tile), share.steps, shared, ring, n_paced);
        n_paced = 0;
      }
    } else if (tid == MULTIPLIERS + 32) {
      ptx::griddepcontrol_wait();
      Shares shares(args, blockIdx.x);
      Ring ring(x_full, x_empty, a.x_stages);
      const auto copy = [&](const void* from) {
        ptx::mbarrier_wait(ring.empty + ring.stage, ring.parity ^ 1);
        ptx::mbarrier_expect_tx(ring.full + ring.stage, 0, S::X_STAGE);
        ptx::cp_async_bulk(x_ring + ring.stage * S::X_STAGE, from, S::X_STAGE, ring.full + ring.stage, 0);
        ring.next();
      };
      while (shares.more()) {
        const Share share = shares.next();
        int step = share.steps.begin;
#pragma unroll 1
        for (int n = share.steps.count(); n > 0; n--, step = share.steps.after(step)) {
          const uint8_t* x = reinterpret_cast<const uint8_t*>(a.x) + static_cast<size_t>(step) * (STEP / TILE) * S::X_STAGE;
#pragma unroll 1
          for (int i = 0; i < STEP / TILE; i++) copy(x + i * S::X_STAGE);
        }
        if (!share.adds()) continue;
        // What others leave of this block's quarters.
#pragma unroll 1
        for (int q = 0; q < QUARTERS; q++) {
          if (!share.owns(q)) continue;
#pragma unroll 1
          for (int r = 0; r < share.n_blocks; r++) {
            if (r == share.rank) continue;
            const int place = place_of(share.first_block + r, r < share.n_adders);
            ptx::wait_and_clear(args.is_left + place * QUARTERS + q);
            copy(args.left + (static_cast<size_t>(place) * QUARTERS + q) * LEFT);
          }
        }
        // A stage for the tile that results are.
        if (a.tiles) {
          ptx::mbarrier_wait(ring.empty + ring.stage, ring.parity ^ 1);
          ptx::mbarrier_arrive(ring.full + ring.stage);
          ring.next();
        }
      }
    }
  } else {
    ptx::setmaxnreg_inc<S::REGISTERS>();
    float sums[N / 8][4];
    ptx::griddepcontrol_wait();
    if (tid < static_cast<int>(a.m)) scales[tid] = a.x_scales ? a.x_scales[tid] : fixed_scale(PACKED_HALF);
    ptx::sync_threads<MULTIPLIERS>(1);
    Shares shares(args, blockIdx.x);
    Ring w(w_full, w_empty, a.w_stages), x(x_full, x_empty, a.x_stages);
    Rows rows = Rows::in_order();
    if (a.epilogue == GATE) {
      // A thread has both numbers of an output, and a warp the outputs of a vector of a tile's lines.
      const int g = lane / 4, local = gathers(a) ? g / 2 * 16 + (warp / 2 % 2 * 2 + warp / 4) * 4 + g % 2 * 2 + warp % 2 : warp * 8 + g;
      rows = {local, OUTS + local};
    }
#pragma unroll 1
    while (shares.more()) {
      const int at = shares.at;
      {
        const Share share = shares.next();
#pragma unroll
        for (int j = 0; j < N / 8; j++) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0;
        multiply_packed<N>(a, Tile::of(a, share.tile), share.steps, rows, sums, shared, x_ring, w, x);
      }
      // What is computed anew needed no registers until here. The code from here on is short, since most of it runs for the first time.
      const int tid = ptx::thread_again(), lane = tid % 32, warp = tid / 32, block = ptx::block_again().x;
      shares = Shares(args, block), shares.at = at;
      const Share share = shares.next();
      if (share.n_blocks > 1) {
        const int place = place_of(block, share.adds());
        float4* left = args.left + static_cast<size_t>(place) * QUARTERS * LEFT + tid;
#pragma unroll
        for (int q = 0; q < QUARTERS; q++) {
          if (share.owns(q)) continue;
#pragma unroll
          for (int j = q * EIGHTS; j < (q + 1) * EIGHTS; j++) {
            left[j * MULTIPLIERS] = float4{sums[j][0], sums[j][1], sums[j][2], sums[j][3]};
          }
        }
        ptx::fence_proxy_async_global();
        ptx::sync_threads<MULTIPLIERS>(1);
        if (tid < QUARTERS && !share.owns(tid)) ptx::announce(args.is_left + place * QUARTERS + tid);
      }
      if (!share.adds()) continue;
      const Tile tile = Tile::of(a, share.tile);
      const int first_out = tile.part->first_out, n_out = tile.part->n_out;
      const Writer<N> writer{a, scales, first_out + tile.row, n_out - tile.row, warp, lane};
      if (share.n_blocks > 1) {
#pragma unroll
        for (int q = 0; q < QUARTERS; q++) {
          if (!share.owns(q)) continue;
#pragma unroll 1
          for (int r = 1; r < share.n_blocks; r++) {
            ptx::mbarrier_wait(x.full + x.stage, x.parity);
            const uint32_t from = ptx::shared_address(x_ring + x.stage * S::X_STAGE) + tid * 16;
#pragma unroll
            for (int j = 0; j < EIGHTS; j++) {
              const float4 v = ptx::load_quad(from + j * MULTIPLIERS * 16);
              float(&s)[4] = sums[q * EIGHTS + j];
              s[0] += v.x, s[1] += v.y, s[2] += v.z, s[3] += v.w;
            }
            __syncwarp();
            if (lane == 0) ptx::mbarrier_arrive(x.empty + x.stage);
            x.next();
          }
        }
      }
      const int lent = x.stage;
      const uint32_t lines = ptx::shared_address(x_ring + lent * S::X_STAGE);
      if (a.tiles) {
        ptx::mbarrier_wait(x.full + lent, x.parity);
        x.next();
      }
#pragma unroll 1
      for (int q = 0; q < QUARTERS; q++) {
        if (share.owns(q)) {
          if (a.epilogue == GATE) writer.write_gated(sums, q * (N / QUARTERS), lines);
          else writer.write_floats(sums, q * (N / QUARTERS));
        }
        // The next quarter to the front, so that one code serves all.
#pragma unroll
        for (int j = 0; j < N / 8 - EIGHTS; j++) {
#pragma unroll
          for (int i = 0; i < 4; i++) sums[j][i] = sums[j + EIGHTS][i];
        }
      }
      if (a.tiles) {
        ptx::fence_proxy_async_shared();
        ptx::sync_threads<MULTIPLIERS>(1);
        if (tid == 0) {
          constexpr uint32_t QUARTER = S::X_STAGE / QUARTERS;
          uint8_t* y = reinterpret_cast<uint8_t*>(a.y) + static_cast<size_t>(share.tile) * S::X_STAGE;
#pragma unroll 1
          for (int q = 0; q < QUARTERS; q++) {
            if (share.owns(q)) ptx::cp_async_bulk_store(y + q * QUARTER, lines + q * QUARTER, QUARTER);
          }
          ptx::cp_async_bulk_wait_read();
        }
        if (lane == 0) ptx::mbarrier_arrive(x.empty + lent);
      }
    }
    if (a.tiles && tid == 0) ptx::cp_async_bulk_wait();
  }
#endif
}

#define SHARES(N)                                                                                               \
  extern "C" __global__ void __launch_bounds__(THREADS, 1) stream_k_##N(const __grid_constant__ StreamKArgs a) { \
    multiply_shares<N>(a);                                                                                      \
  }
SHARES(128) SHARES(256)
#endif
