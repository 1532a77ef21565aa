// The attention of prefill_attention.cu for Hopper's tensor cores: warp-specialized, with TMA and wgmma (Shah et al. 2024).
//
//   for each tile of the block:                        rows are tokens times query heads that share a KV head
//     for each step of 128 or 64 keys:                 software pipeline of a math group
//       S = Q Kᵀ of this step    ‖  O += P V of the last       wgmma, asynchronous
//       P = exp2(S - max), correction of O                     while the other group's wgmma run
//
// Mapping. Block: persistent, one per SM, over tiles of up to 128 rows. 16 warps in 4 groups of 4:
//   groups 0 and 1  math: 64 rows each; warp w of a group has rows 16 w to 16 w + 15                            (200 registers)
//   group 2         loads keys and values. A cache of whole boxes comes by TMA, issued by one warp; others by cp.async or decoded by
//                   all 128 threads                                                                              (40 registers)
//   group 3         finds the next tile and loads its queries, QK norm, RoPE, rounding. The math groups do so for the first tile
//                                                                                                                (72 registers)
// Heads of 256 leave no room for group 3: the math groups, with 232 registers, prepare the queries of every tile, and a step is 64 keys.
//
// Shared memory: rings of 2 stages of K [keys, DIM], of V [keys, DIM] and of Q [128, DIM], 16 bits each: 96 KiB for heads of 64, 192 KiB
// for 128 and, with one stage of Q, for 256, and up to 1,024 bytes of alignment; 5,296, 9,392 or 12,976 bytes static. All tiles have the
// 128-byte swizzle of wgmma.
// Moves: K and V that a tile sees, 4 · n_keys · head_dim bytes for 2 · n_keys · head_dim · rows multiply-adds, so that with full tiles the
// tensor cores are the bound; the rows of qkv and of y once.
#include "heads.cuh"
#include "prefill_attention.cuh"
#include "../common/hopper.cuh"
#include "prefill_attention_hopper_args.cuh"

constexpr int ROWS = 128;
constexpr int QUERY_RING = 4;   // first barrier of the ring of queries, after those of keys and of values
constexpr int N_BARRIERS = 6;   // stages of all rings
constexpr int GROUP_BARRIER = 2;  // bar.sync of math group g: GROUP_BARRIER + g; of group 2: 1

// How a block is divided, by the size of its heads.
template <int DIM>
struct Plan {
  static constexpr bool HAS_QUERY_GROUP = DIM <= 128;
  static constexpr int KEYS = DIM <= 128 ? 128 : 64;  // of a step
  static constexpr int THREADS = HAS_QUERY_GROUP ? 512 : 384;
  static constexpr int MATH_REGISTERS = HAS_QUERY_GROUP ? 200 : 232;
  static constexpr int QUERY_STAGES = HAS_QUERY_GROUP ? 2 : 1;
  static constexpr int QUERY_BATCH = HAS_QUERY_GROUP ? 8 : 4;  // rows of queries that a warp of a math group loads at once
};

// Element of a tile of keys or values where 8 elements of a key are, in the layout of `smem_desc`: 64 columns of all keys, then the next.
template <int KEYS>
DEVICE int swizzled_offset(int key, int chunk) {
  return (chunk / 8 * KEYS + key) * 64 + ((chunk ^ key) & 7) * 8;
}

struct HopperHalf : Half {
  template <int N>
  DEVICE static void wgmma_ss(float (&d)[N][4], uint64_t a, uint64_t b, uint32_t add) { ptx::wgmma_ss_f16(d, a, b, add); }
  template <int N>
  DEVICE static void wgmma_rs(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b) { ptx::wgmma_rs_f16<false>(d, a, b, 1); }
};

struct HopperBfloat : Bfloat {
  template <int N>
  DEVICE static void wgmma_ss(float (&d)[N][4], uint64_t a, uint64_t b, uint32_t add) { ptx::wgmma_ss_bf16(d, a, b, add); }
  template <int N>
  DEVICE static void wgmma_rs(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b) { ptx::wgmma_rs_bf16<false>(d, a, b, 1); }
};

// Rows of queries with their angles, by one warp: lane l has elements and pairs l, l + 32, …; the first `n_pairs` pairs rotate.
template <int DIM, int BATCH>
struct QueryBatch {
  static constexpr int PIECES = DIM / 32;
  int dim, n_pairs, lane;
  Head heads[BATCH] = {};
  float cosines[BATCH][PIECES / 2] = {}, sines[BATCH][PIECES / 2] = {};

  // Loads rows `first` to `first` + BATCH - 1 of a tile; zeros for rows that are not there. All loads are issued before any is waited for.
  DEVICE void load(const PrefillAttentionHopperArgs& args, const Tile& t, int first) {
    const PrefillAttentionArgs& a = args.of_all;
    const int tile_heads = a.tile_heads;
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
      const int token = (first + b) / tile_heads, in_group = t.first_head + (first + b) % tile_heads;
      if (token >= t.n_tokens || in_group >= t.group) continue;
      const size_t of_all = t.first_token + token;
      const float* q = a.qkv + of_all * a.qkv_len + (t.kv_head * t.group + in_group) * dim;
      const float* angles = args.angles + of_all * (2 * n_pairs);
#pragma unroll
      for (int j = 0; j < PIECES; j++) heads[b].x[j] = lane + 32 * j < dim ? q[lane + 32 * j] : 0.0f;
#pragma unroll
      for (int j = 0; j < PIECES / 2; j++) {
        if (lane + 32 * j < n_pairs) cosines[b][j] = angles[lane + 32 * j], sines[b][j] = angles[n_pairs + lane + 32 * j];
      }
    }
  }

  // Norms and rotates row `b`, and leaves it in `scratch` [DIM].
  DEVICE void prepare(const PrefillAttentionHopperArgs& args, int b, float* scratch) {
    if (args.q_weight) norm_head(heads[b], dim, lane, args.q_weight, args.q_bias, args.q_layer, args.q_eps);
#pragma unroll
    for (int j = 0; j < PIECES; j++) scratch[lane + 32 * j] = heads[b].x[j];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < PIECES / 2; j++) {
      if (lane + 32 * j < n_pairs) rotate_pair(scratch, lane + 32 * j, n_pairs, args.interleaved, cosines[b][j], sines[b][j]);
    }
    __syncwarp();
  }
};

// Copies N rows of a tile's queries from row `first` on that have 16 bits, by one warp, BATCH vectors of a lane at a time, to `to`, swizzled.
template <int DIM, int N, int BATCH>
DEVICE void copy_queries(const PrefillAttentionHopperArgs& args, const Tile& t, uint8_t* to, int first) {
  constexpr int VECTORS = DIM / 8;  // of a row
  const PrefillAttentionArgs& a = args.of_all;
  const int dim = a.head_dim, tile_heads = a.tile_heads;
#pragma unroll 1
  for (int batch = 0; batch < N * VECTORS; batch += 32 * BATCH) {
    const int lane = ptx::thread_again() % 32;
    uint4 v[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
      const int i = batch + 32 * b + lane, row = first + i / VECTORS, column = i % VECTORS * 8;
      const int token = row / tile_heads, in_group = t.first_head + row % tile_heads;
      const bool is_there = token < t.n_tokens && in_group < t.group && column < dim;
      const size_t head = static_cast<size_t>(t.first_token + token) * a.n_heads + t.kv_head * t.group + in_group;
      v[b] = is_there ? *reinterpret_cast<const uint4*>(args.queries + (head * dim + column) * 2) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
      const int i = batch + 32 * b + lane, row = first + i / VECTORS, vector = i % VECTORS;
      *reinterpret_cast<uint4*>(to + (vector / 8 * ROWS + row) * 128 + ((vector ^ row) & 7) * 16) = v[b];
    }
  }
}

// Prepares N rows of a tile's queries from row `first` on, by one warp, BATCH at a time, and writes them to `to` in 16 bits, swizzled.
template <class T, int DIM, int N, int BATCH>
DEVICE void prepare_queries(const PrefillAttentionHopperArgs& args, const Tile& t, uint8_t* to, int first, float* scratch) {
  if (args.queries) return copy_queries<DIM, N, 4>(args, t, to, first);
  const int dim = args.of_all.head_dim, n_pairs = args.angles ? args.rope_dim / 2 : 0;
#pragma unroll 1
  for (int batch = first; batch < first + N; batch += BATCH) {
    const int lane = ptx::thread_again() % 32;
    QueryBatch<DIM, BATCH> queries = {dim, n_pairs, lane};
    queries.load(args, t, batch);
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
      queries.prepare(args, b, scratch);
      const int row = batch + b;
#pragma unroll
      for (int j = 0; j < DIM / 64; j++) {
        const float2 v = *reinterpret_cast<const float2*>(scratch + 2 * lane + 64 * j);
        uint8_t* at = to + (j * ROWS + row) * 128 + ((lane / 4 ^ row) & 7) * 16 + lane % 4 * 4;
        *reinterpret_cast<uint32_t*>(at) = pair_of<T>(v.x, v.y);
      }
      __syncwarp();
    }
  }
}

// What all groups of a block know. Rings in order: keys (stages 0 and 1), values (2 and 3), queries (4 and 5).
template <int DIM>
struct Block {
  static constexpr int KEYS = Plan<DIM>::KEYS, TILE = KEYS * DIM, QUERY_TILE = ROWS * DIM;
  const PrefillAttentionHopperArgs& args;
  const PrefillAttentionArgs& a;
  uint32_t tiles;            // shared address of the stages of keys, of values, of queries
  uint16_t* tile;            // the same
  uint8_t* queries;
  uint32_t full, empty;      // shared addresses of mbarriers, one of each for each stage
  uint32_t (*key_rows)[KEYS];  // [2, KEYS]: rows of the cache that a step loads, where it comes without TMA
  Tile* described;           // [2]: the tiles whose queries group 3 has brought to the stages
  int box_rows;              // 0: without TMA
  uint32_t done = 0;         // steps of the tiles before
  uint32_t n_done = 0;       // those tiles

  DEVICE Block(const PrefillAttentionHopperArgs& args, unsigned char* shared, uint64_t* barriers, uint32_t (*key_rows)[KEYS],
               Tile* described)
      : args(args), a(args.of_all), key_rows(key_rows), described(described) {
    tiles = (ptx::fixed_address(shared) + 1023) / 1024 * 1024;
    full = ptx::fixed_address(barriers), empty = full + 8 * N_BARRIERS;
    tile = reinterpret_cast<uint16_t*>(shared + (tiles - ptx::shared_address(shared)));
    queries = reinterpret_cast<uint8_t*>(tile + 4 * TILE);
  }

  // A stage is full after one arrival and its bytes where TMA fills it, else after all 128 threads of a group; empty after both math groups.
  DEVICE void init_barriers(int lane) const {
    if (lane < N_BARRIERS) {
      ptx::mbarrier_init(full + 8 * lane, box_rows && lane < QUERY_RING ? 1 : 128), ptx::mbarrier_init(empty + 8 * lane, 2);
    }
    ptx::fence_mbarrier_init();
  }

  // Waits until stage `i` of a ring is free for `step`, a count over all tiles.
  DEVICE void wait_empty(int i, uint32_t step) const {
    if (step >= 2) ptx::mbarrier_wait(empty + 8 * i, (step / 2 - 1) & 1);
  }

  // Calls f(tile, first position that is loaded, steps) for each tile of the block, which find(index) gives. Later tiles are shorter, so
  // every other round of tiles goes to the blocks in reverse order.
  template <class Find, class F>
  DEVICE void for_tiles(Find find, F f) const {
    const int n_tiles = args.n_tiles, n_blocks = gridDim.x, block = blockIdx.x;
    for (int first = 0, is_odd = 0; first < n_tiles; first += n_blocks, is_odd ^= 1) {
      const int index = first + (is_odd ? n_blocks - 1 - block : block);
      if (index >= n_tiles) continue;
      const Tile t = find(index);
      const int start = box_rows ? t.start / box_rows * box_rows : t.start;
      f(t, start, ceil_div(t.end - start, KEYS));
    }
  }
  template <class F>
  DEVICE void for_tiles(F f) const {
    for_tiles([&](int index) { return Tile(a, index, args.n_tiles); }, f);
  }
};

// Group 3: each tile but the first, which several reads of memory find, and its queries, a tile ahead.
template <class T, int DIM>
DEVICE void run_query_group(Block<DIM>& block, int warp, float* scratch) {
  block.for_tiles([&](const Tile& t, int, int) {
    if (block.n_done > 0) {
      const int stage = block.n_done % 2, i = QUERY_RING + stage;
      block.wait_empty(i, block.n_done);
      prepare_queries<T, DIM, 32, 4>(block.args, t, block.queries + stage * (Block<DIM>::QUERY_TILE * 2), warp % 4 * 32, scratch);
      if (threadIdx.x % 128 == 0) block.described[stage] = t;
      ptx::fence_proxy_async_shared();
      ptx::mbarrier_arrive(block.full + 8 * i);
    }
    block.n_done++;
  });
}

// Group 2 with TMA, one warp: lane l loads box l % n_boxes of columns l / n_boxes of 64.
template <int DIM>
DEVICE void run_tma_warp(Block<DIM>& block, int lane) {
  constexpr int TILE = Block<DIM>::TILE, KEYS = Block<DIM>::KEYS;
  const PrefillAttentionHopperArgs& args = block.args;
  const int box_rows = block.box_rows, n_boxes = KEYS / box_rows, box = lane % n_boxes, columns = lane / n_boxes;
  block.for_tiles([&](const Tile& t, int start, int n_steps) {
    for (int position = start + box * box_rows; n_steps > 0; n_steps--, block.done++, position += KEYS) {
      // TMA loads zeros for rows past the end of the cache.
      const uint32_t row = position < t.end ? t.row_of(block.a, position) : args.n_cache_rows;
#pragma unroll
      for (int is_values = 0; is_values < 2; is_values++) {
        const int i = is_values * 2 + block.done % 2;
        block.wait_empty(i, block.done);
        if (lane == 0) ptx::mbarrier_expect_tx(block.full + 8 * i, TILE * 2);
        __syncwarp();
        if (columns >= DIM / 64) continue;
        const uint32_t to = block.tiles + i * TILE * 2 + (columns * KEYS + box * box_rows) * 128;
        ptx::tma_load(to, is_values ? &args.v_map : &args.k_map, columns * 128, row, block.full + 8 * i);
      }
    }
  });
}

// Loads the keys or the values of a step, by the 128 threads of group 2: `loader` has every (128 / CHUNKS)th key's chunk `loader % CHUNKS`.
template <class Cache, int DIM>
DEVICE void load_stage(const Block<DIM>& block, const uint8_t* cache, int is_values, uint32_t step, int loader) {
  constexpr int KEYS = Block<DIM>::KEYS, CHUNKS = DIM / 8, LOADS = KEYS * CHUNKS / 128;
  const int i = is_values * 2 + step % 2, chunk = loader % CHUNKS, dim = block.a.head_dim;
  const bool is_within = chunk * 8 < dim;
  const uint32_t row_bytes = Cache::head_bytes(dim);
  block.wait_empty(i, step);
#pragma unroll 4
  for (int l = 0; l < LOADS; l++) {
    const int key = loader / CHUNKS + l * (128 / CHUNKS);
    const uint32_t row = block.key_rows[step % 2][key];
    // Zeros for keys that are not there, and for what a head lacks of DIM.
    const bool there = row != NO_HEAD && is_within;
    uint16_t* to = block.tile + i * Block<DIM>::TILE + swizzled_offset<KEYS>(key, chunk);
    Cache::load8(to, cache, static_cast<size_t>(row) * row_bytes, chunk * 8, there);
  }
  ptx::cp_async_commit();
}

template <int DIM>
DEVICE void announce_stage(const Block<DIM>& block, int is_values, uint32_t step) {
  ptx::fence_proxy_async_shared();
  ptx::mbarrier_arrive(block.full + 8 * (is_values * 2 + step % 2));
}

// Group 2 without TMA. Values are announced a step late, so that two loads are under way.
template <class Cache, int DIM>
DEVICE void run_load_group(Block<DIM>& block) {
  constexpr int KEYS = Block<DIM>::KEYS;
  const int loader = ptx::thread_again() - 256;
  block.for_tiles([&](const Tile& t, int start, int n_steps) {
    for (int position = start + loader; n_steps > 0; n_steps--, block.done++, position += KEYS) {
      const uint32_t done = block.done;
      if (loader < KEYS) block.key_rows[done % 2][loader] = position < t.end ? t.row_of(block.a, position) : NO_HEAD;
      ptx::sync_threads<128>(1);
      load_stage<Cache>(block, block.a.k_cache, 0, done, loader);
      if (done > 0) {
        ptx::cp_async_wait<1>();
        announce_stage(block, 1, done - 1);
      }
      load_stage<Cache>(block, block.a.v_cache, 1, done, loader);
      ptx::cp_async_wait<1>();
      announce_stage(block, 0, done);
    }
  });
  ptx::cp_async_wait<0>();
  if (block.done > 0) announce_stage(block, 1, block.done - 1);
}

// A tile's work in a math group of 128 threads.
template <class T, int DIM>
struct MathTile {
  static constexpr int TILE = Block<DIM>::TILE, KEYS = Block<DIM>::KEYS;
  const Block<DIM>& block;
  const Tile& t;
  int start, n_steps, tid, group;
  bool arrives;  // one thread of the group
  uint64_t q;
  float score[KEYS / 8][4], out[DIM / 8][4] = {};
  uint32_t weights[KEYS / 16][4];

  DEVICE MathTile(const Block<DIM>& block, const Tile& t, int start, int n_steps, int tid, int group, bool arrives)
      : block(block), t(t), start(start), n_steps(n_steps), tid(tid), group(group), arrives(arrives) {
    const uint32_t stage = block.n_done % Plan<DIM>::QUERY_STAGES;
    q = ptx::smem_desc(block.tiles + 4 * TILE * 2 + stage * Block<DIM>::QUERY_TILE * 2 + group * 64 * 128);
  }

  // The queries of a tile that group 3 does not prepare.
  DEVICE void prepare_own(int warp, float* scratch) const {
    // All warps of the group have multiplied the queries of the tile before.
    if (block.n_done > 0) ptx::sync_threads<128>(GROUP_BARRIER + group);
    prepare_queries<T, DIM, 16, Plan<DIM>::QUERY_BATCH>(block.args, t, block.queries, warp * 16, scratch);
    ptx::fence_proxy_async_shared();
    ptx::sync_threads<128>(GROUP_BARRIER + group);
  }

  // S = Q Kᵀ, asynchronously
  DEVICE void multiply_keys(int step) {
    const uint32_t at = block.done + step;
    ptx::mbarrier_wait(block.full + 8 * (at % 2), at / 2 & 1);
    const uint64_t k = ptx::smem_desc(block.tiles + at % 2 * TILE * 2);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
      // The next 64 columns of all rows, and the next 16 of these.
      const uint64_t of_rows = i / 4 * (ROWS * 128 / 16) + i % 4 * 2, of_keys = i / 4 * (KEYS * 128 / 16) + i % 4 * 2;
      T::wgmma_ss(score, q + of_rows, k + of_keys, i > 0);
    }
    ptx::wgmma_commit();
  }

  // Of the last box, the values of positions that are not there are whatever the cache has: zeros replace them, since 0 times infinity or
  // NaN is NaN.
  DEVICE void clear_values(int step) const {
    const int first = t.end - (start + step * KEYS), box_rows = block.box_rows;
    if (!box_rows || first >= KEYS || first % box_rows == 0) return;
    const int n = (box_rows - first % box_rows) * 8;
    uint4* v = reinterpret_cast<uint4*>(block.tile + (2 + (block.done + step) % 2) * TILE);
    for (int i = tid % 128; i < n * (DIM / 64); i += 128) v[(i / n * KEYS + first) * 8 + i % n] = uint4{0, 0, 0, 0};
    ptx::fence_proxy_async_shared();
    ptx::sync_threads<128>(GROUP_BARRIER + group);
  }

  // O += P V, asynchronously
  DEVICE void multiply_values(int step) {
    const uint32_t at = block.done + step;
    ptx::mbarrier_wait(block.full + 16 + 8 * (at % 2), at / 2 & 1);
    clear_values(step);
    const uint64_t v = ptx::smem_desc_mn_major(block.tiles + (2 + at % 2) * TILE * 2, KEYS * 128);
    ptx::wgmma_fence();
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) T::wgmma_rs(out, weights[j], v + j * (2048 / 16));
    ptx::wgmma_commit();
  }

  DEVICE void pack() {
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) pack_weights<T>(weights[j], score, j);
  }

  // Frees a stage of keys or values, and after the tile's last keys its queries.
  DEVICE void release(int is_values, int step) const {
    if (arrives) ptx::mbarrier_arrive(block.empty + 8 * (is_values * 2 + (block.done + step) % 2));
    const bool frees_queries = Plan<DIM>::HAS_QUERY_GROUP && is_values == 0 && step == n_steps - 1;
    if (arrives && frees_queries) ptx::mbarrier_arrive(block.empty + 8 * (QUERY_RING + block.n_done % 2));
  }
};

// Groups 0 and 1: scores of one step are computed while the weights of the step before are multiplied with their values.
template <class T, int DIM>
DEVICE void run_math_group(Block<DIM>& block, int warp, bool arrives, float* scratch) {
  // The first tile's queries are prepared by the math groups themselves, the others' by group 3 where there is one.
  const auto is_own = [&] { return !Plan<DIM>::HAS_QUERY_GROUP || block.n_done == 0; };
  const auto find = [&](int index) {
    if (is_own()) return Tile(block.a, index, block.args.n_tiles);
    ptx::mbarrier_wait(block.full + 8 * (QUERY_RING + block.n_done % 2), (block.n_done - 1) / 2 & 1);
    return block.described[block.n_done % 2];
  };
  block.for_tiles(find, [&](const Tile& t, int start, int n_steps) {
    // Read again for each tile: what is derived from these would take too many registers.
    const int tid = ptx::thread_again(), lane = tid % 32;
    const Rows rows(block.a, t, warp * 16, lane);
    MathTile<T, DIM> tile(block, t, start, n_steps, tid, warp / 4, arrives);
    Softmax softmax(block.a);
    if (is_own()) tile.prepare_own(warp, scratch);
    tile.multiply_keys(0);
    ptx::wgmma_wait<0>();
    tile.release(0, 0);
    softmax.weigh(tile.score, block.a, t, rows, start, lane);
    tile.pack();
    for (int step = 1; step < n_steps; step++) {
      tile.multiply_keys(step);
      tile.multiply_values(step - 1);
      ptx::wgmma_wait<1>();
      tile.release(0, step);
      softmax.weigh(tile.score, block.a, t, rows, start + step * Block<DIM>::KEYS, lane);
      ptx::wgmma_wait<0>();
      tile.release(1, step - 1);
      softmax.correct(tile.out);
      tile.pack();
    }
    tile.multiply_values(n_steps - 1);
    ptx::wgmma_wait<0>();
    tile.release(1, n_steps - 1);
    softmax.finish(tile.out, block.a, rows, lane);
    block.done += n_steps, block.n_done++;
  });
}

template <class T, class Cache, int DIM>
DEVICE void prefill_attention(const PrefillAttentionHopperArgs& args) {
#if __CUDA_ARCH__ == 900
  DYNAMIC_SHARED(shared);
  using P = Plan<DIM>;
  __shared__ uint32_t key_rows[2][P::KEYS];
  __shared__ float scratch[P::THREADS / 32][DIM];
  __shared__ uint64_t barriers[2 * N_BARRIERS];
  __shared__ Tile described[2];
  Block<DIM> block(args, shared, barriers, key_rows, described);
  const int tid = threadIdx.x, lane = tid % 32;
  const int warp = __shfl_sync(ALL_LANES, tid / 32, 0), group = warp / 4;
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  block.box_rows = Cache::IS_RAW ? args.box_rows : 0;
  if (warp == 0) block.init_barriers(lane);
  __syncthreads();
  if (group == 3) {
    if constexpr (P::HAS_QUERY_GROUP) {
      ptx::setmaxnreg_dec<72>();
      run_query_group<T>(block, warp, scratch[warp]);
    }
  } else if (group == 2) {
    ptx::setmaxnreg_dec<40>();
    if (!block.box_rows) {
      run_load_group<Cache>(block);
    } else if (warp == 8) {
      run_tma_warp(block, lane);
    }
  } else {
    ptx::setmaxnreg_inc<P::MATH_REGISTERS>();
    run_math_group<T>(block, warp, tid % 128 == 0, scratch[warp]);
  }
#endif
}

#define PREFILL_ATTENTION(NAME, T, CACHE, DIM) \
  KERNEL_1(prefill_attention_hopper_##NAME##_##DIM, PrefillAttentionHopperArgs, Plan<DIM>::THREADS) { prefill_attention<T, CACHE, DIM>(a); }
#define PREFILL_ATTENTIONS(NAME, T, CACHE) \
  PREFILL_ATTENTION(NAME, T, CACHE, 64) PREFILL_ATTENTION(NAME, T, CACHE, 128) PREFILL_ATTENTION(NAME, T, CACHE, 256)
PREFILL_ATTENTIONS(F16, HopperHalf, RawCache) PREFILL_ATTENTIONS(BF16, HopperBfloat, RawCache) PREFILL_ATTENTIONS(Q8_0, HopperHalf, Q8Cache)
