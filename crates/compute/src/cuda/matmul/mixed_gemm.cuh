// What mixed_gemm.cu, grouped_gemm.cu and stream_k.cu share: tiles, rings, TMA copies of weights and activations, packed weights multiplied
// as they are decoded, and the epilogue that writes tiles.
//
// Packed columns are multiplied in an order that suits the packed layouts. Of 256 columns, which are four pieces of 64, lane t of each four
// decodes piece t. Step s of 16 takes four weights of each: those of word s / 2 of the piece's 32 bytes, their low nibbles if s is even,
// the high ones if not.
#pragma once
#include "gemm.cuh"
#include "packed.cuh"
#include "../common/pipeline.cuh"
#include "../common/tiles.cuh"
#include "mixed_gemm_args.cuh"

// Outputs of a group of 4 warps, and of a block; threads that multiply, and all.
constexpr int OUTS = 64, ROWS = 2 * OUTS;
constexpr int MULTIPLIERS = 256, THREADS = MULTIPLIERS + 128;
// Columns of a stage of packed weights, and of a tile of activations or of plain weights.
constexpr int STEP = 256, TILE = 64;
constexpr int MAX_STAGES = 16;
static_assert(ROWS == STAGE_ROWS, "fragments are loaded from a stage");

// Whether a box has the outputs of a tile of activations in the order of packed columns, which lie apart.
DEVICE bool gathers(const MixedGemmArgs& a) { return a.tiles == PACKED_HALF; }

DEVICE uint32_t layout_of(uint32_t layout) { return layout == LAYOUT_BF16 ? PLAIN_BFLOAT : layout == LAYOUT_F16 ? PLAIN_HALF : PACKED_HALF; }

// What a kernel for up to N rows is like.
template <int N>
struct Shape {
  // Blocks that an SM has room for.
  static constexpr int BLOCKS = N <= 96 ? 2 : 1;
  // Registers of a thread that multiplies, and of one that copies.
  static constexpr int REGISTERS = BLOCKS == 2 ? 104 : 232, COPY_REGISTERS = BLOCKS == 2 ? 32 : 40;
  // Whether a block of experts takes several items.
  static constexpr bool PERSISTENT = N == 16;
  // Words of packed weights that are decoded and then multiplied together: one, or the two that meet a tile of activations.
  static constexpr int WORDS = 1;
  // Tiles of a stage of activations.
  static constexpr int TILES = N <= 32 ? 4 : N <= 64 ? 2 : 1;
  static constexpr int X_STAGE = TILES * N * 128;
  // Whether its packed weights are not left to stream_k.cu.
  static constexpr bool PACKED = N <= 64;
};

// The mbarriers of both rings: of each stage, whether it is full, and whether the warps that multiply are done with it.
struct RingBarriers {
  uint64_t w_full[MAX_STAGES], w_empty[MAX_STAGES], x_full[MAX_STAGES], x_empty[MAX_STAGES];
  // All threads call it.
  DEVICE void init(const MixedGemmArgs& a) {
    const int tid = threadIdx.x, lane = tid % 32;
    if (tid < static_cast<int>(a.w_stages)) ptx::mbarrier_init(w_full + tid, 1), ptx::mbarrier_init(w_empty + tid, MULTIPLIERS / 32);
    if (tid / 32 == 1 && lane < static_cast<int>(a.x_stages)) {
      ptx::mbarrier_init(x_full + lane, 1), ptx::mbarrier_init(x_empty + lane, MULTIPLIERS / 32);
    }
    if (tid < 64) ptx::fence_mbarrier_init();
    __syncthreads();
  }
  DEVICE Ring weights(const MixedGemmArgs& a) const { return {w_full, w_empty, a.w_stages}; }
  DEVICE Ring activations(const MixedGemmArgs& a) const { return {x_full, x_empty, a.x_stages}; }
};

// The stages of both rings in shared memory.
struct Stages {
  uint8_t *w, *x;
  DEVICE Stages(const MixedGemmArgs& a, uint8_t* shared) : w(shared), x(shared + a.w_stages * a.w_stage_bytes) {}
};

// Steps of 256 columns that a block multiplies: all from `first` to `last`, beginning with `begin`.
struct Steps {
  int first, last, begin;
  DEVICE int count() const { return last - first; }
  DEVICE int after(int step) const { return step + 1 == last ? first : step + 1; }
};

// A tile of outputs: rows of weights, half of its outputs from each of two first rows on.
struct Tile {
  const MixedGemmPart *part, *other;
  int row, other_row;
  DEVICE static Tile of(const MixedGemmArgs& a, int tile) {
    const bool gate = a.epilogue == GATE;
    int p = 0;
    if (!gate) {
      while (p + 1 < static_cast<int>(a.n_parts) && tile >= static_cast<int>(a.parts[p + 1].first_tile)) p++;
    }
    const MixedGemmPart* part = &a.parts[p];
    const int row = (tile - part->first_tile) * (gate ? ROWS / 2 : ROWS), other_row = gate ? a.up_row + row : row + ROWS / 2;
    return {part, gate ? &a.parts[1] : part, row, other_row};
  }
};

// The packed types of a kernel: all; the first N_COMMON, which are met most often; or those that there are registers for in the kernels of
// experts. The more types a kernel takes, the slower is its code for each: by 1 to 4 % with all of them, and with 256 rows there are so few
// registers that the compiler makes each product wait for the one before.
enum Types { ALL_TYPES, COMMON_TYPES, TYPES_OF_EXPERTS };

// Whether a kernel takes a type.
template <class Packed, int N, Types TYPES>
DEVICE constexpr bool takes(int layout) {
  return TYPES == TYPES_OF_EXPERTS ? Packed::OF_EXPERTS
                                   : (N != 128 || Packed::OF_STREAM_K_128) && (TYPES == ALL_TYPES || layout < FIRST_PACKED + N_COMMON);
}

// Brings a box of 64 rows to shared memory, from `row` on or, `INTERLEAVED`, those whose outputs are a tile of activations in the order of
// packed columns.
template <bool INTERLEAVED>
DEVICE void copy_rows(uint32_t to, const ptx::TensorMap* map, int column, int row, Barrier full) {
  if (INTERLEAVED) {
    ptx::tma_load(to, map, column, 0, row / 64 % 4, 0, row / 256 * 4, full.at);
  } else {
    ptx::tma_load(to, map, column, row, full.at);
  }
}

// Brings a step's packed weights of the tile to a stage.
template <class P, bool INTERLEAVED>
DEVICE void load_weights(const Tile& tile, int step, int n_pieces, uint32_t stage, Barrier full) {
  const int group = step / 8, at = step % 8 * 4, size = min(n_pieces - group * 32, 32);
  const int start = group * P::bytes(GROUP);
#pragma unroll 1
  for (int g = 0; g < 2; g++) {
    const MixedGemmPart* part = g == 0 ? tile.part : tile.other;
    const int row = g == 0 ? tile.row : tile.other_row;
#pragma unroll
    for (int i = 0; i < P::Fragment::VECTORS; i++) {
      copy_rows<INTERLEAVED>(stage + (i * ROWS + g * OUTS) * 64, &part->vectors, start + (i * size + at) * 16, row, full);
    }
#pragma unroll
    for (int i = 0; i < P::Fragment::REST; i++) {
      const uint32_t rest = stage + P::Fragment::VECTORS * ROWS * 64 + (i * ROWS + g * OUTS) * 16;
      copy_rows<INTERLEAVED>(rest, &part->rest, start + P::Fragment::rest_at(i, size, at), row, full);
    }
  }
}

// The producer of weights: brings those of all steps. `n_paced`: so many stages of the first round, from the second on, are asked for only
// when the one before is there.
template <class P, bool INTERLEAVED>
DEVICE void copy_weights(const MixedGemmArgs& a, const Tile& tile, const Steps& steps, const uint8_t* stages, Ring& ring, int n_paced) {
  const int n_pieces = a.n_pieces;
  int step = steps.begin;
#pragma unroll 1
  for (int n = steps.count(); n > 0; n--, step = steps.after(step)) {
    ring.wait_empty();
    if (ring.stage > 0 && n_paced > 0) Barrier{ring.full().at - 8}.wait(0), n_paced--;
    ring.expect(ROWS * (64 * P::Fragment::VECTORS + 16 * P::Fragment::REST));
    load_weights<P, INTERLEAVED>(tile, step, n_pieces, ptx::shared_address(stages + ring.stage * a.w_stage_bytes), ring.full());
    ring.next();
  }
}

template <int N, Types TYPES>
DEVICE void copy_packed_weights(const MixedGemmArgs& a, const Tile& tile, const Steps& steps, const uint8_t* stages, Ring& ring, int n_paced) {
#define COPY(Q)                                                                                \
  case LAYOUT_##Q:                                                                             \
    if constexpr (takes<Packed_##Q, N, TYPES>(LAYOUT_##Q)) {                                   \
      if (gathers(a)) copy_weights<Packed_##Q, true>(a, tile, steps, stages, ring, n_paced);   \
      else copy_weights<Packed_##Q, false>(a, tile, steps, stages, ring, n_paced);             \
    }                                                                                          \
    break;
  switch (tile.part->layout) { FOR_EACH_PACKED(COPY) }
#undef COPY
}

// Brings a stage of activations, or as many other bytes.
template <int N>
DEVICE void copy_activations(const uint8_t* stages, const void* from, Ring& ring) {
  constexpr int BYTES = Shape<N>::X_STAGE;
  ring.wait_empty();
  ring.expect(BYTES);
  ptx::cp_async_bulk(ptx::shared_address(stages + ring.stage * BYTES), from, BYTES, ring.full().at);
  ring.next();
}

// Rows of weights in a stage that a thread multiplies.
struct Rows {
  int first, second;
  DEVICE static Rows in_order() {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    return {row, row + 8};
  }
  // Of a gate a thread has both numbers of an output, and its warp the outputs of one vector of a line of the tile that results become.
  DEVICE static Rows by_outputs(const MixedGemmArgs& a, int warp, int lane) {
    if (a.epilogue != GATE) return in_order();
    const int g = lane / 4, local = gathers(a) ? g / 2 * 16 + (warp / 2 % 2 * 2 + warp / 4) * 4 + g % 2 * 2 + warp % 2 : warp * 8 + g;
    return {local, OUTS + local};
  }
};

// The table of a type lies after the rings. A unit before may still read another's.
template <class Packed>
DEVICE void fill_table_again(uint32_t* table) {
  ptx::sync_threads<MULTIPLIERS>(1);
  fill_table<Packed>(table, threadIdx.x, MULTIPLIERS);
  ptx::sync_threads<MULTIPLIERS>(1);
}

template <class Packed, int N>
DEVICE void multiply(const MixedGemmArgs& a, const Steps& steps, Rows rows, float (&sums)[N / 8][4], const Stages& stages, Ring& w,
                     Ring& x) {
  typedef Shape<N> S;
  typedef typename Packed::Fragment P;
  uint32_t* table = reinterpret_cast<uint32_t*>(stages.x + a.x_stages * S::X_STAGE);
  if constexpr (Packed::TABLE > 0) fill_table_again<Packed>(table);
  const int lane = threadIdx.x % 32, t = lane % 4, second = rows.second - rows.first;
  const uint8_t *vectors = stages.w + rows.first * 64 + t * 16, *rest = stages.w + P::VECTORS * ROWS * 64 + rows.first * 16;
  const int n_pieces = a.n_pieces;
  const uint32_t w_bytes = a.w_stage_bytes, w_end = a.w_stages * w_bytes;
  const uint32_t w_full = w.full_at, w_empty = w.empty_at, x_full = x.full_at, x_empty = x.empty_at, x_end = x_full + 8 * x.n;
  const uint32_t x_first = static_cast<uint32_t>(ptx::smem_desc(stages.x));
  uint32_t w_at = w.stage * w_bytes, w_barrier = 8 * w.stage, w_parity = w.parity;
  uint32_t x_at = x_first + x.stage * (S::X_STAGE / 16), x_barrier = x_full + 8 * x.stage, x_parity = x.parity, x_done = 0;
  // The weights of two batches of words, of which one is multiplied while the other is decoded.
  constexpr int WORDS = S::WORDS;
  uint32_t f[2][2 * WORDS][4];
  int step = steps.begin;
#pragma unroll 1
  for (int n = steps.count(); n > 0; n--, step = steps.after(step)) {
    ptx::mbarrier_wait(w_full + w_barrier, w_parity);
    P p[2];
    if constexpr (Packed::TABLE > 0) p[0].table = p[1].table = table;
    const bool valid = step * 4 + t < n_pieces;
    p[0].load(vectors + w_at, rest + w_at, t, step % 8 * 4, valid);
    p[1].load(vectors + w_at + second * 64, rest + w_at + second * 16, t, step % 8 * 4, valid);
#pragma unroll
    for (int i = 0; i < 8; i += WORDS) {
      uint32_t(&now)[2 * WORDS][4] = f[i / WORDS % 2];
#pragma unroll
      for (int u = 0; u < WORDS; u++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const Four v = p[h].word(i + u);
          now[2 * u][h] = v.low[0], now[2 * u][2 + h] = v.low[1];
          now[2 * u + 1][h] = v.high[0], now[2 * u + 1][2 + h] = v.high[1];
        }
      }
      const int tile = i / 2 % S::TILES;
      const bool begins = i % 2 == 0 && tile == 0;
      if (begins) ptx::mbarrier_wait(x_barrier, x_parity);
      ptx::wgmma_fence();
#pragma unroll
      for (int u = 0; u < 2 * WORDS; u++) {
        ptx::wgmma_rs_f16(sums, now[u], ptx::smem_desc_after(x_at, tile * N * 128 + i % 2 * 64 + u * 32));
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      // What was multiplied before this tile is over.
      if (begins) {
        if (x_done && lane == 0) ptx::mbarrier_arrive(x_done);
        x_done = x_barrier + (x_empty - x_full);
      }
      // The stage is free when its loads are over, not when they are under way. Word 4 is of the last vectors.
      if (i == 4 && lane == 0) ptx::mbarrier_arrive(w_empty + w_barrier);
      if ((i + WORDS) % 2 == 0 && tile == S::TILES - 1) {
        x_at += S::X_STAGE / 16, x_barrier += 8;
        if (x_barrier == x_end) x_at = x_first, x_barrier = x_full, x_parity ^= 1;
      }
    }
    w_at += w_bytes, w_barrier += 8;
    if (w_at == w_end) w_at = w_barrier = 0, w_parity ^= 1;
  }
  ptx::wgmma_wait<0>();
  if (x_done && lane == 0) ptx::mbarrier_arrive(x_done);
  w.stage = w_barrier / 8, w.parity = w_parity, x.stage = (x_barrier - x_full) / 8, x.parity = x_parity;
}

template <int N, Types TYPES>
DEVICE void multiply_packed(const MixedGemmArgs& a, const Tile& tile, const Steps& steps, Rows rows, float (&sums)[N / 8][4],
                            const Stages& stages, Ring& w, Ring& x) {
#define MULTIPLY(Q)                                                       \
  case LAYOUT_##Q:                                                        \
    if constexpr (takes<Packed_##Q, N, TYPES>(LAYOUT_##Q)) {              \
      multiply<Packed_##Q, N>(a, steps, rows, sums, stages, w, x);        \
    }                                                                     \
    break;
  switch (tile.part->layout) { FOR_EACH_PACKED(MULTIPLY) }
#undef MULTIPLY
}

// As `copy_weights` and `multiply`, for plain weights.
template <bool INTERLEAVED>
DEVICE void copy_plain_weights(const MixedGemmArgs& a, const Tile& outs, const Steps& steps, const uint8_t* stages, Ring& ring) {
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
DEVICE void multiply_plain(const MixedGemmArgs& a, const Steps& steps, float (&sums)[N / 8][4], const Stages& stages, Ring& w, Ring& x) {
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
  if (lane == 0 && w_done.at) w_done.arrive(), x_done.arrive();
}

// The consumers: sums of the block's outputs over its steps. PACKED: whether weights may be packed.
template <int N, bool PACKED, Types TYPES>
DEVICE void accumulate(const MixedGemmArgs& a, const Tile& outs, const Steps& steps, float (&sums)[N / 8][4], const Stages& stages, Ring& w,
                       Ring& x) {
  switch (outs.part->layout) {
    case LAYOUT_F16: multiply_plain<PlainHalf, N>(a, steps, sums, stages, w, x); break;
    case LAYOUT_BF16: multiply_plain<PlainBfloat, N>(a, steps, sums, stages, w, x); break;
    default:
      if constexpr (PACKED) multiply_packed<N, TYPES>(a, outs, steps, Rows::in_order(), sums, stages, w, x);
  }
}

// The producer of weights, one thread. PACKED: whether weights may be packed.
template <int N, bool PACKED, Types TYPES>
DEVICE void produce_weights(const MixedGemmArgs& a, const Tile& outs, const Steps& steps, const Stages& stages, Ring& ring) {
  if (layout_of(outs.part->layout) != PACKED_HALF) {
    if (gathers(a)) copy_plain_weights<true>(a, outs, steps, stages.w, ring);
    else copy_plain_weights<false>(a, outs, steps, stages.w, ring);
  } else if constexpr (PACKED) {
    copy_packed_weights<N, TYPES>(a, outs, steps, stages.w, ring, 0);
  }
}

// Floats from one row's sums to the next one's.
constexpr int PITCH = ROWS + 4;

// Puts a group's sums of its outputs in shared memory, row by row.
template <int N>
DEVICE void put_sums(const float (&sums)[N / 8][4], uint8_t* shared, int tid) {
  float* to = reinterpret_cast<float*>(shared) + tid / 32 * 16 + tid % 32 / 4 + tid % 4 * 2 * PITCH;
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    float* at = to + j * 8 * PITCH;
    at[0] = sums[j][0], at[PITCH] = sums[j][1], at[8] = sums[j][2], at[PITCH + 8] = sums[j][3];
  }
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

// Writes gated results as the tile of activations that the next matmul reads: 16 outputs of a row to a thread at a time, which are 32 bytes
// of its line. Lanes take rows in an order in which their reads fall on all banks.
template <int N>
DEVICE void store_tile(const MixedGemmArgs& a, uint16_t* y, const Sums& sums, int tile) {
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
    uint16_t* line = y + (static_cast<size_t>(tile) * N + row) * TILE;
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
