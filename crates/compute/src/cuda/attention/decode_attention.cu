// Attention of a decode step, where each sequence brings one token: QK norm, RoPE and the write to the KV cache, then softmax(Q Kᵀ) V
// over the cache. Online softmax (Milakov and Gimelshein 2018) on the tensor cores; positions are cut into splits (Dao et al. 2023).
//
//   prefetch the first tiles of K and V            before the previous kernel has ended
//   prepare  Q, and the token's own K and V        norm, rotate, round, write K and V to the cache
//   for each tile of 16 keys of the warp:          S = K Qᵀ;  P = exp2(S - max);  O = O · correction;  O += Vᵀ P
//   merge    the warps' O, max and sum             in shared memory
//   merge    the splits'                           in global memory, by the block that finishes last
//
// Mapping. Block: up to 8 query heads that share a KV head, over one split after the other of the positions that a token sees. Warp w of
// WARPS (8, or 4 for heads of 256): tiles w, w + WARPS, … of 16 keys, which begin at multiples of 16. Lane, with t = lane % 4 and
// g = lane / 4: heads 2 t and 2 t + 1, rows g and g + 8 of S and of each 16 of O; which keys and elements these are `Tiles` says. Keys are the
// rows of both products, so that the heads fill the short side (n = 8) of mma.
//
// Splits. How positions are cut the host says with each batch (AttentionSplit), since it knows all lengths: a long sequence among short ones
// is cut so that no block is left with it alone. Of layers with a window all tokens have the same number of splits.
//
// Moves: K and V of the split once for all its heads, 2 · n_positions · head_bytes, past what else is in the L2 cache, and the rows of qkv;
// with several splits also (head_dim + 2) floats per head and split, written and read once.
// Shared memory: 58,784 bytes for heads of 64, 111,264 for 128, 110,752 for 256 (before Hopper 40,352, 76,448 and 76,960), or more than half of
// an SM's where there is a block for each, and up to 640 static.
//
// In the deterministic mode the splits of a token depend on its position alone, and steps with several tokens of a sequence, whose keys and
// values `store_heads` has written, run the same kernel.
//
// No block returns before the previous kernel has ended, whether it has work or not. Each SM then has room for exactly one block of the
// next matmul, instead of two on some SMs and none on others. With `all_run`, blocks without work run the whole code on zeros: the next
// layer's attention then finds its instructions in every SM's cache. Loops that run once or twice are not unrolled, since a cold
// instruction cache costs more than the loop.
#include "cached.cuh"
#include "heads.cuh"
#include "../common/tiles.cuh"
#include "decode_attention_args.cuh"

constexpr int HEADS = HEADS_OF_BLOCK, KEYS = KEYS_OF_TILE;
constexpr int MERGE_BATCH = 16;  // splits of which a thread loads the results at once
// Tiles of a warp, of keys and of values by turns, that are loaded at the same time.
#if __CUDA_ARCH__ >= 900
constexpr int STAGES = 3;
#else
constexpr int STAGES = 2;
#endif
constexpr float LOG2_E = 1.4426950408889634f;

// Maxima and sums over the lanes that share a column of a matrix of mma.
DEVICE float column_max(float x) {
#pragma unroll
  for (int d = 4; d < 32; d *= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, d));
  return x;
}
DEVICE float column_sum(float x) {
#pragma unroll
  for (int d = 4; d < 32; d *= 2) x += __shfl_xor_sync(ALL_LANES, x, d);
  return x;
}

// exp2(x - max); 0 for a maximum over no keys.
DEVICE float weight_of(float x, float max) { return x == -INFINITY ? 0.0f : exp2f(x - max); }

// The work of a block: `n_rows` query heads from `first_head` on, of one token, over positions `from` to `to` - 1.
struct Split {
  int token, kv_head, first_head, n_rows;
  int head_block, head_blocks;  // this block's group of heads, and how many there are for a token
  int index, n_used;            // this split, and how many have positions
  int first_result;             // where the results of the token's splits are
  int from, to, end;            // `end` - 1 is the token's own position
  bool idle;                    // no positions: what runs computes with zeros
  size_t first_y;               // `first_head` of the token in y, [n_tokens, n_heads]
  const uint32_t* table;

  DEVICE Split() {}

  // What prepares a token's own key and value.
  DEVICE static Split of_token(const DecodeAttentionArgs& a, int token, int kv_head) {
    Split split;
    split.token = token, split.kv_head = kv_head, split.n_rows = 0, split.idle = false;
    split.end = split.to = a.positions[token] + 1;
    split.table = a.block_tables + a.table_starts[token];
    return split;
  }

  // The heads of item `item`; returns which split it is.
  DEVICE int take_heads(const DecodeAttentionArgs& a, int item) {
    const int n_kv_heads = a.n_kv_heads, group = a.n_heads / n_kv_heads, parts = ceil_div(group, HEADS);
    head_blocks = n_kv_heads * parts, head_block = item % head_blocks;
    const int first_row = head_block % parts * HEADS;
    kv_head = head_block / parts, n_rows = min(group - first_row, HEADS), first_head = kv_head * group + first_row;
    return item / head_blocks;
  }

  // A split of all tokens' as many; the first ones of all tokens have the lowest numbers. The batch may be read before the previous kernel
  // has ended.
  DEVICE static Split of_even(const DecodeAttentionArgs& a, int item, int warps) {
    Split s;
    const int rank = s.take_heads(a, item);
    s.token = rank % a.n_tokens, s.index = rank / a.n_tokens;
    s.first_y = static_cast<size_t>(s.token) * static_cast<int>(a.n_heads) + s.first_head;
    s.end = a.positions[s.token] + 1;
    const int start = s.end > static_cast<int>(a.window) ? s.end - static_cast<int>(a.window) : 0;
    const int even = ceil_div(ceil_div(s.end - start, a.n_splits), KEYS) * KEYS, per_split = max(even, MIN_SPLIT);
    s.n_used = ceil_div(s.end - start, per_split), s.first_result = s.token * a.n_splits;
    // Blocks that only even the number of all out have no splits.
    s.idle = s.index >= min(s.n_used, static_cast<int>(a.n_parallel));
    s.from = s.idle ? 0 : start + s.index * per_split, s.to = s.idle ? warps * KEYS : min(s.from + per_split, s.end);
    s.table = a.block_tables + a.table_starts[s.token];
    return s;
  }

  // One of those that the host has made, of which there are `a.n_splits` at most, from its `entry`; idle where there is none.
  DEVICE static Split of_table(const DecodeAttentionArgs& a, int item, const uint4* entry, int warps) {
    Split s;
    const int rank = s.take_heads(a, item);
    const uint4 v = entry[0], w = entry[1];
    s.token = v.x, s.from = v.z, s.to = v.w, s.end = w.x, s.index = w.y, s.n_used = w.z, s.first_result = w.w;
    s.first_y = static_cast<size_t>(s.token) * static_cast<int>(a.n_heads) + s.first_head;
    s.table = a.block_tables + v.y;
    s.idle = rank >= static_cast<int>(a.n_splits) || s.n_used == 0;
    if (s.idle) s.from = 0, s.to = warps * KEYS, s.end = max(s.end, 1);
    return s;
  }

  // Where the table has the split of an item; the last one's place for those after it.
  DEVICE static const uint4* entry_of(const DecodeAttentionArgs& a, int item) {
    const int rank = min(item / static_cast<int>(a.head_blocks), static_cast<int>(a.n_splits) - 1);
    return reinterpret_cast<const uint4*>(a.splits + rank);
  }

  // Goes on to the split `n` further on, if there is one: all but the last are of one size.
  DEVICE bool advance(int n) {
    if (index + n >= n_used) return false;
    const int size = to - from;
    index += n, from += n * size, to = min(from + size, end);
    return true;
  }

  DEVICE bool has_own_token() const { return to == end && !idle; }

  // How many of its positions the cache has before the step: not the token's own.
  DEVICE int n_cached() const { return idle ? 0 : min(to, end - 1) - from; }

  // The first position of its tiles.
  DEVICE int first_tile() const { return from / KEYS * KEYS; }

  // As `head_at`; of positions that the split does not have, any.
  DEVICE uint32_t first_head_at(const DecodeAttentionArgs& a, int position) const { return head_at(a, position < to && !idle ? position : end - 1); }

  // The number of a position's head in either cache.
  DEVICE uint32_t head_at(const DecodeAttentionArgs& a, int position) const {
    const uint32_t block = static_cast<uint32_t>(position) / a.block_size;
    return (table[block] * static_cast<int>(a.n_kv_heads) + kv_head) * a.block_size + (position - block * a.block_size);
  }
};

DEVICE size_t head_byte(const DecodeAttentionArgs& a, uint32_t head) { return static_cast<size_t>(head) * a.head_bytes; }

// A block's shared memory. Rows of 16-bit elements are 16 bytes longer than a head, so that reads of 8 of them fall on all banks.
template <int DIM>
struct Smem {
  static constexpr int WARPS = DIM > 128 ? 4 : 8, THREADS = WARPS * 32;
  static constexpr int CHUNKS = DIM / 8, ROW = DIM + 8, TILE = KEYS * ROW, OUT = DIM + 4;

  uint16_t* tiles;         // [WARPS, STAGES, TILE]
  float* outs;             // [WARPS, HEADS, OUT], in the place of the tiles after the last of them
  uint16_t* queries;       // [HEADS, ROW]
  uint16_t* own;           // [2, ROW]: the token's own key and value as the cache has them
  float* heads;            // [WARPS, DIM]
  float (*maxima)[HEADS];  // [WARPS, HEADS]
  float (*totals)[HEADS];  // [WARPS, HEADS]
  uint32_t* own_head;      // where the token's own key and value go
  Split* split;            // what the block does, for when all tiles are done: registers are scarce until then
  uint4* next;             // [2]: the table's entry of what it does after that

  DEVICE explicit Smem(unsigned char* shared) {
    tiles = reinterpret_cast<uint16_t*>(shared);
    outs = reinterpret_cast<float*>(shared);
    queries = tiles + WARPS * STAGES * TILE;
    own = queries + HEADS * ROW;
    heads = reinterpret_cast<float*>(own + 2 * ROW);
  }
};

// Tiles of a cache of 16-bit elements: [KEYS, ROW], as ldmatrix reads them. Rows of S are keys in their order, and rows of O elements.
template <class T, int DIM>
struct RawTiles {
  typedef T Number;
  typedef Smem<DIM> S;
  static constexpr bool IS_RAW = true;
  // Which key of a tile row g + 8 half of S is, and which element row g + 8 half of part i of O.
  DEVICE static int key_of(int g, int half) { return g + 8 * half; }
  DEVICE static int element_of(int i, int g, int half) { return 16 * i + 8 * half + g; }

  // Asks for the tile from position `base` on, whose heads lie one after the other, the first at `from`. The token's own key and value come
  // from `own`: the cache may not have them yet.
  DEVICE static void load(uint16_t* tile, const DecodeAttentionArgs& a, const Split& split, const uint8_t* from, int base, int lane) {
    constexpr int STEP = 32 / S::CHUNKS;  // keys that a warp copies at once
    const int at = lane % S::CHUNKS * 8, first = split.from, n = split.n_cached(), head_bytes = a.head_bytes;
    int key = base + lane / S::CHUNKS;
    from += lane / S::CHUNKS * head_bytes + 2 * at, tile += lane / S::CHUNKS * S::ROW + at;
    if (at >= static_cast<int>(a.head_dim)) key = split.to;
#pragma unroll
    for (int i = 0; i < KEYS; i += STEP) {
      const bool there = static_cast<unsigned>(key + i - first) < static_cast<unsigned>(n);
      ptx::cp_async_16_evict_first(tile + i * S::ROW, from, there ? 16 : 0);
      from += STEP * head_bytes;
    }
  }

  DEVICE static void put_own(uint16_t* tile, int row, const uint16_t* own, const DecodeAttentionArgs&, int lane) {
    if (lane < S::CHUNKS) *reinterpret_cast<uint4*>(tile + row * S::ROW + lane * 8) = *reinterpret_cast<const uint4*>(own + lane * 8);
  }

  // Writes a head to the cache, by one warp. `own` has it rounded.
  template <class Stored>
  DEVICE static void store_own(uint8_t* cached, uint16_t* own, const float*, int dim, int lane) {
    if (lane * 8 < dim) reinterpret_cast<uint4*>(cached)[lane] = *reinterpret_cast<const uint4*>(own + lane * 8);
  }

  // The queries as the second operand of mma.
  DEVICE static void load_queries(uint32_t (&q)[DIM / 16][2], const uint16_t* queries, int lane) {
#pragma unroll
    for (int i = 0; i < DIM / 32; i++) {
      uint32_t r[4];
      ptx::ldmatrix_x4(r, queries + lane % 8 * S::ROW + (i * 4 + lane / 8) * 8);
      q[2 * i][0] = r[0], q[2 * i][1] = r[1], q[2 * i + 1][0] = r[2], q[2 * i + 1][1] = r[3];
    }
  }

  // S = K Qᵀ of a tile
  DEVICE static void multiply_keys(float (&score)[4], const uint16_t* tile, const uint32_t (&q)[DIM / 16][2], int, int lane) {
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
      uint32_t k[4];
      ptx::ldmatrix_x4(k, tile + lane % 16 * S::ROW + (2 * i + lane / 16) * 8);
      Number::multiply(score, k, q[i][0], q[i][1]);
    }
  }

  // O += Vᵀ P. `first` and `last`: the keys that are there; values of others are zeros.
  DEVICE static void add_values(float (&out)[DIM / 16][4], const uint16_t* tile, const uint32_t (&p)[2], int, int, int, int lane) {
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
      uint32_t v[4];
      ptx::ldmatrix_x4_trans(v, tile + (lane % 8 + lane / 16 * 8) * S::ROW + (2 * i + lane / 8 % 2) * 8);
      Number::multiply(out[i], v, p[0], p[1]);
    }
  }
};

// Tiles of a cache of Q8_0: the heads of 16 keys as the cache has them, one after the other, which a block of it holds, since its size is a
// multiple of 16. They become numbers of half precision in registers, straight as operands of mma: rows g and g + 8 of S are keys 2 g and
// 2 g + 1, whose bytes 8 t to 8 t + 7 of each 32 a lane has, and rows g and g + 8 of O elements 2 g and 2 g + 1 of each 16.
template <int DIM>
struct Q8Tiles {
  typedef Half Number;
  typedef Smem<DIM> S;
  static constexpr bool IS_RAW = false;
  static constexpr int BLOCK = Q8_0::BYTES;
  static_assert(KEYS * (DIM / 32) * BLOCK <= S::TILE * 2, "a tile has no room");
  DEVICE static int key_of(int g, int half) { return 2 * g + half; }
  DEVICE static int element_of(int i, int g, int half) { return 16 * i + 2 * g + half; }

  DEVICE static void load(uint16_t* tile, const DecodeAttentionArgs& a, const Split& split, const uint8_t* from, int, int lane) {
    // 16 heads: as many vectors of 16 bytes as a head has bytes.
    const int n = a.head_bytes, bytes = split.idle ? 0 : 16;
    from += 16 * lane, tile += 8 * lane;
#pragma unroll 1
    for (int i = lane; i < n; i += 32, from += 512, tile += 256) ptx::cp_async_16_evict_first(tile, from, bytes);
  }

  DEVICE static void put_own(uint16_t* tile, int row, const uint16_t* own, const DecodeAttentionArgs& a, int lane) {
    const int n = a.head_bytes / 2;
#pragma unroll 1
    for (int i = lane; i < n; i += 32) tile[row * n + i] = own[i];
  }

  // Writes a head to the cache and to `own`, by one warp.
  template <class Stored>
  DEVICE static void store_own(uint8_t* cached, uint16_t* own, const float* floats, int dim, int lane) {
    write_head<Stored>(reinterpret_cast<uint8_t*>(own), floats, dim, lane);
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < dim / 32 * BLOCK / 2; i += 32) reinterpret_cast<uint16_t*>(cached)[i] = own[i];
  }

  DEVICE static void load_queries(uint32_t (&q)[DIM / 16][2], const uint16_t* queries, int lane) {
#pragma unroll
    for (int b = 0; b < DIM / 32; b++) {
      const uint4 v = *reinterpret_cast<const uint4*>(queries + lane / 4 * S::ROW + 32 * b + lane % 4 * 8);
      q[2 * b][0] = v.x, q[2 * b][1] = v.y, q[2 * b + 1][0] = v.z, q[2 * b + 1][1] = v.w;
    }
  }

  // Bytes with signs, plus 128.
  DEVICE static uint32_t biased(uint32_t w) { return w ^ 0x80808080u; }
  // Two of four such bytes, which `selector` puts under the exponent of 1024, as numbers of half precision.
  DEVICE static uint32_t pair(uint32_t w, uint32_t selector) { return ptx::add_f16(__byte_perm(w, 0x64646464, selector), 0xe480e480); }

  // Eight bytes from `from` on, where `rest` is what their address is more than a multiple of 4: 0 or 2.
  DEVICE static void load_eight(uint32_t (&w)[2], const uint8_t* from, int rest) {
    const uint32_t selector = rest ? 0x5432 : 0x3210;
    const uint32_t* words = reinterpret_cast<const uint32_t*>(from - rest);
    const uint32_t middle = words[1];
    w[0] = biased(__byte_perm(words[0], middle, selector)), w[1] = biased(__byte_perm(middle, words[2], selector));
  }

  // Heads of DIM elements have offsets that the compiler knows.
  static constexpr int HEAD_BYTES = DIM / 32 * BLOCK;
  DEVICE static void multiply_keys(float (&score)[4], const uint16_t* tile, const uint32_t (&q)[DIM / 16][2], int head_bytes, int lane) {
    if (head_bytes == HEAD_BYTES) multiply_keys_of(score, tile, q, HEAD_BYTES, lane);
    else multiply_keys_of(score, tile, q, head_bytes, lane);
  }
  DEVICE static void add_values(float (&out)[DIM / 16][4], const uint16_t* tile, const uint32_t (&p)[2], int head_bytes, int first, int last,
                                int lane) {
    if (head_bytes == HEAD_BYTES) add_values_of(out, tile, p, HEAD_BYTES, first, last, lane);
    else add_values_of(out, tile, p, head_bytes, first, last, lane);
  }

  DEVICE static void multiply_keys_of(float (&score)[4], const uint16_t* tile, const uint32_t (&q)[DIM / 16][2], int head_bytes, int lane) {
    const uint8_t* rows = reinterpret_cast<const uint8_t*>(tile) + lane / 4 * 2 * head_bytes;
#pragma unroll
    for (int b = 0; b < DIM / 32; b++) {
      if (b * BLOCK >= head_bytes) break;
      const uint8_t* block = rows + b * BLOCK;
      uint32_t w[2][2];
      // Two heads together have a multiple of 4 bytes.
      const int at = b * BLOCK + 2;
      load_eight(w[0], block + 2 + lane % 4 * 8, at % 4), load_eight(w[1], block + head_bytes + 2 + lane % 4 * 8, (head_bytes + at) % 4);
      float of_block[4] = {};
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint32_t k[4] = {pair(w[0][i], 0x4140), pair(w[1][i], 0x4140), pair(w[0][i], 0x4342), pair(w[1][i], 0x4342)};
        Number::multiply(of_block, k, q[2 * b + i][0], q[2 * b + i][1]);
      }
      const float scales[2] = {f16_at(block), f16_at(block + head_bytes)};
#pragma unroll
      for (int c = 0; c < 4; c++) score[c] += of_block[c] * scales[c / 2];
      // The next block's loads wait, so that registers suffice.
      __syncwarp();
    }
  }

  DEVICE static void add_values_of(float (&out)[DIM / 16][4], const uint16_t* tile, const uint32_t (&p)[2], int head_bytes,
                                int first, int last, int lane) {
    const int key = lane % 4 * 4;
    const uint8_t* rows = reinterpret_cast<const uint8_t*>(tile) + key * head_bytes;
    const auto two = [&](const uint8_t* at) { return u16_at(at) | u16_at(at + 2 * head_bytes) << 16; };
    // The scales of keys that are not there may be no numbers.
    uint32_t there[2] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) there[j % 2] |= key + j >= first && key + j < last ? 0xffffu << j / 2 * 16 : 0;
#pragma unroll
    for (int b = 0; b < DIM / 32; b++) {
      if (b * BLOCK >= head_bytes) break;
      const uint8_t* block = rows + b * BLOCK;
      const uint32_t scales[2] = {two(block) & there[0], two(block + head_bytes) & there[1]};
#pragma unroll
      for (int i = 2 * b; i < 2 * b + 2; i++) {
        const uint8_t* at = block + 2 + i % 2 * 16 + lane / 4 * 2;
        const uint32_t even = biased(two(at)), odd = biased(two(at + head_bytes));
        const uint32_t v[4] = {ptx::mul_f16(pair(even, 0x4240), scales[0]), ptx::mul_f16(pair(even, 0x4341), scales[0]),
                               ptx::mul_f16(pair(odd, 0x4240), scales[1]), ptx::mul_f16(pair(odd, 0x4341), scales[1])};
        Number::multiply(out[i], v, p[0], p[1]);
      }
      // The next block's loads wait, so that registers suffice.
      __syncwarp();
    }
  }
};

// A warp's ring of tiles: the keys of its first tile, their values, the keys of its next, and so on.
template <class Tiles, int DIM>
struct TileRing {
  using S = Smem<DIM>;
  const DecodeAttentionArgs& a;
  const Split& split;
  uint16_t* stages;
  int warp, lane;
  int n_loads = 0;    // of keys and of values
  int next = 0;       // stage that is read next
  uint32_t located;   // head of the first key of the tile that is loaded
  uint32_t upcoming;  // and of the warp's tile after it

  DEVICE TileRing(const DecodeAttentionArgs& a, const Split& split, const S& smem, int warp, int lane)
      : a(a), split(split), stages(smem.tiles + warp * STAGES * S::TILE), warp(warp), lane(lane) {
    upcoming = split.first_head_at(a, split.first_tile() + warp * KEYS);
  }

  DEVICE void load_stage(uint16_t* stage) {
    const int base = split.first_tile() + (n_loads / 2 * S::WARPS + warp) * KEYS;
    const bool is_keys = n_loads % 2 == 0;
    if (base < split.to) {
      if (is_keys) {
        located = upcoming;
        // Known when it is wanted.
        upcoming = split.first_head_at(a, base + S::WARPS * KEYS);
      }
      Tiles::load(stage, a, split, (is_keys ? a.k_cache : a.v_cache) + head_byte(a, located), base, lane);
    }
    ptx::cp_async_commit();
    n_loads++;
  }

  DEVICE void prefetch() {
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) load_stage(stages + i * S::TILE);
  }

  // Waits for the next tile, and puts the token's own row in it, if row `own_row` is one.
  DEVICE uint16_t* wait_stage(int own_row, const uint16_t* own) {
    uint16_t* tile = stages + next * S::TILE;
    if (++next == STAGES) next = 0;
    ptx::cp_async_wait<STAGES - 1>();
    __syncwarp();
    if (own_row < KEYS) Tiles::put_own(tile, own_row, own, a, lane);
    __syncwarp();
    return tile;
  }
};

// A head as the pairs that RoPE rotates; lane l has pairs l, l + 32, … The first `half` pairs rotate.
template <int DIM>
struct HeadPairs {
  static constexpr int PAIRS = DIM / 64;
  int dim, half, lane;
  bool interleaved;
  float low[PAIRS], high[PAIRS], cosine[PAIRS], sine[PAIRS];

  // Elements of pair `p`.
  DEVICE int low_of(int p) const { return p < half && !interleaved ? p : 2 * p; }
  DEVICE int high_of(int p) const { return p < half && !interleaved ? p + half : 2 * p + 1; }

  DEVICE void load(const float* row, const float* angles, bool idle) {
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
      const int p = lane + 32 * j;
      const bool there = 2 * p < dim && !idle;
      low[j] = there ? __ldcg(row + low_of(p)) : 0.0f;
      high[j] = there ? __ldcg(row + high_of(p)) : 0.0f;
      cosine[j] = p < half ? angles[p] : 1.0f;
      sine[j] = p < half ? angles[half + p] : 0.0f;
    }
  }

  DEVICE void norm(const float* weight, const float* bias, bool is_layer_norm, float eps) {
    float mean = 0, squares = 0;
    if (is_layer_norm) {
#pragma unroll
      for (int j = 0; j < PAIRS; j++) mean += low[j] + high[j];
      mean = warp_sum(mean) / dim;
    }
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
      if (2 * (lane + 32 * j) >= dim) break;
      low[j] -= mean, high[j] -= mean;
      squares += low[j] * low[j] + high[j] * high[j];
    }
    const float inverse = 1.0f / sqrtf(warp_sum(squares) / dim + eps);
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
      const int p = lane + 32 * j, l = low_of(p), h = high_of(p);
      if (2 * p >= dim) break;
      low[j] = low[j] * inverse * weight[l] + (bias ? bias[l] : 0.0f);
      high[j] = high[j] * inverse * weight[h] + (bias ? bias[h] : 0.0f);
    }
  }

  // Rotates, and stores the head rounded at `rounded`, and as floats at `floats` where the cache's type is made from these.
  template <class Number, bool KEEP_FLOATS>
  DEVICE void rotate_and_store(uint16_t* rounded, float* floats) const {
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
      const int p = lane + 32 * j, l = low_of(p), h = high_of(p);
      if (2 * p >= dim) break;
      const float first = low[j] * cosine[j] - high[j] * sine[j], second = low[j] * sine[j] + high[j] * cosine[j];
      if (KEEP_FLOATS) floats[l] = first, floats[h] = second;
      rounded[l] = Number::from(first), rounded[h] = Number::from(second);
    }
  }
};

// Prepares the queries, and where the split has the token itself, its key and value: a head per warp.
template <class Stored, class Tiles, int DIM>
DEVICE void prepare_heads(const DecodeAttentionArgs& a, const Split& split, const Smem<DIM>& smem, int warp, int lane) {
  using S = Smem<DIM>;
  const int dim = a.head_dim, n_heads = a.n_heads, n_kv_heads = a.n_kv_heads, n_rows = split.n_rows;
  const int n_here = n_rows + (split.has_own_token() ? 2 : 0);
  float* floats = smem.heads + warp * DIM;
#pragma unroll 1
  for (int i = warp; i < n_here; i += S::WARPS) {
    const bool is_query = i < n_rows, is_value = i == n_rows + 1;
    const int head = is_query ? split.first_head + i : n_heads + (i - n_rows) * n_kv_heads + split.kv_head;
    const float* row = a.qkv + (static_cast<size_t>(split.token) * (n_heads + 2 * n_kv_heads) + head) * dim;
    const int half = a.angles && !is_value && !split.idle ? a.rope_dim / 2 : 0;
    HeadPairs<DIM> pairs = {dim, half, lane, a.interleaved != 0};
    pairs.load(row, a.angles + static_cast<size_t>(split.token) * a.rope_dim, split.idle);
    const float* weight = is_query ? a.q_weight : a.k_weight;
    if (weight && !is_value) pairs.norm(weight, is_query ? a.q_bias : a.k_bias, a.layer, is_query ? a.q_eps : a.k_eps);
    uint16_t* rounded = is_query ? smem.queries + i * S::ROW : smem.own + is_value * S::ROW;
    pairs.template rotate_and_store<typename Tiles::Number, !Tiles::IS_RAW>(rounded, floats);
    __syncwarp();
    if (!is_query) {
      uint8_t* cached = (is_value ? a.v_cache : a.k_cache) + head_byte(a, *smem.own_head);
      Tiles::template store_own<Stored>(cached, rounded, floats, dim, lane);
      __syncwarp();
    }
  }
}

// What a lane has of the warp's result: maxima and sums of its two heads, and of the outputs row g + 8 (c / 2) of part i of head c % 2.
template <int DIM>
struct Accumulator {
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {}, out[DIM / 16][4] = {};

  // Makes weights of the scores of two keys, and corrects what has been summed up.
  DEVICE void weigh(float (&score)[4]) {
    float correction[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float largest = column_max(fmaxf(max[h], fmaxf(score[h], score[2 + h])));
      correction[h] = weight_of(max[h], largest);
      max[h] = largest;
      score[h] = exp2f(score[h] - largest), score[2 + h] = exp2f(score[2 + h] - largest);
      sum[h] = sum[h] * correction[h] + score[h] + score[2 + h];
    }
    // After the first tiles maxima rarely change.
    if (__ballot_sync(ALL_LANES, correction[0] != 1.0f || correction[1] != 1.0f) == 0) return;
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
#pragma unroll
      for (int c = 0; c < 4; c++) out[i][c] *= correction[c % 2];
    }
  }
};

// Attention of the warp's tiles.
template <class Tiles, int DIM>
DEVICE void accumulate(Accumulator<DIM>& acc, TileRing<Tiles, DIM>& ring, const Smem<DIM>& smem, int warp, int lane) {
  using S = Smem<DIM>;
  const DecodeAttentionArgs& a = ring.a;
  const Split& split = ring.split;
  const int head_bytes = a.head_bytes;
  uint32_t q[DIM / 16][2];
  Tiles::load_queries(q, smem.queries, lane);
  // A score times `factor` is the exponent of two of its weight.
  const bool capped = a.softcap != 0.0f;
  const float factor = capped ? LOG2_E : a.scale * LOG2_E;
#pragma unroll 1
  for (int base = split.first_tile() + warp * KEYS; base < split.to; base += S::WARPS * KEYS) {
    const int own_row = split.idle ? KEYS : split.end - 1 - base;
    uint16_t* k_tile = ring.wait_stage(own_row, smem.own);
    float score[4] = {};
    Tiles::multiply_keys(score, k_tile, q, head_bytes, lane);
    __syncwarp();
    ring.load_stage(k_tile);

    if (capped) {
#pragma unroll
      for (int c = 0; c < 4; c++) score[c] = a.softcap * tanhf(score[c] * a.scale / a.softcap);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const int key = base + Tiles::key_of(lane / 4, c / 2);
      score[c] = key >= split.from && key < split.to ? score[c] * factor : -INFINITY;
    }
    acc.weigh(score);
    uint32_t p[2];
#pragma unroll
    for (int i = 0; i < 2; i++) p[i] = ptx::movmatrix_trans(pair_of<typename Tiles::Number>(score[2 * i], score[2 * i + 1]));
    uint16_t* v_tile = ring.wait_stage(own_row, smem.own + S::ROW);
    Tiles::add_values(acc.out, v_tile, p, head_bytes, split.idle ? KEYS : split.from - base, split.to - base, lane);
    __syncwarp();
    ring.load_stage(v_tile);
  }
  ptx::cp_async_wait<0>();
}

// Puts a warp's results in shared memory.
template <class Tiles, int DIM>
DEVICE void store_warp(const Smem<DIM>& smem, const Accumulator<DIM>& acc, int warp, int lane) {
#pragma unroll
  for (int i = 0; i < DIM / 16; i++) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
      smem.outs[(warp * HEADS + lane % 4 * 2 + c % 2) * Smem<DIM>::OUT + Tiles::element_of(i, lane / 4, c / 2)] = acc.out[i][c];
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float total = column_sum(acc.sum[h]);
    if (lane < 4) smem.maxima[warp][lane * 2 + h] = acc.max[h], smem.totals[warp][lane * 2 + h] = total;
  }
}

// The sink of row `r` as a score in exponents of two, in the split that counts it; -infinity where there is none.
DEVICE float sink_of(const DecodeAttentionArgs& a, const Split& split, int r) {
  return a.sinks && split.index == 0 ? a.sinks[split.first_head + r] * LOG2_E : -INFINITY;
}

// Elements `e` to `e` + 3 of row `r` of the final result.
DEVICE void store_y(const DecodeAttentionArgs& a, const Split& split, int r, int e, float4 y, float inverse) {
  const int dim = a.head_dim;
  if (a.tile_rows) {
    const float f = inverse / fixed_scale(PACKED_HALF);
    const int column = (split.first_head + r) * dim + e;
    put_packed(reinterpret_cast<uint16_t*>(a.y), a.tile_rows, split.token, column, y.x * f, y.y * f, y.z * f, y.w * f);
  } else {
    *reinterpret_cast<float4*>(a.y + (split.first_y + r) * dim + e) = float4{y.x * inverse, y.y * inverse, y.z * inverse, y.w * inverse};
  }
}

// The result of this split: outputs that are not divided yet, and once per row maximum and sum.
DEVICE void store_partial(const DecodeAttentionArgs& a, const Split& split, int r, int e, float4 y, float max, float total) {
  const int dim = a.head_dim;
  float* partial = a.partial + (static_cast<size_t>(split.first_result + split.index) * static_cast<int>(a.n_heads) + split.first_head + r) * (dim + 2);
  reinterpret_cast<float2*>(partial + e)[0] = float2{y.x, y.y};
  reinterpret_cast<float2*>(partial + e)[1] = float2{y.z, y.w};
  if (e == 0) partial[dim] = max, partial[dim + 1] = total;
}

// Merges the warps' results, 4 elements per thread, and writes them as this split's or as the final ones.
template <int DIM>
DEVICE void merge_warps(const DecodeAttentionArgs& a, const Split& split, const Smem<DIM>& smem, int tid) {
  using S = Smem<DIM>;
  const int dim = a.head_dim;
#pragma unroll 1
  for (int i = tid * 4; i < split.n_rows * DIM; i += S::THREADS * 4) {
    const int r = i / DIM, e = i % DIM;
    if (e >= dim) continue;
    const float sink = sink_of(a, split, r);
    float max = sink;
    float4 y = {};
#pragma unroll
    for (int w = 0; w < S::WARPS; w++) max = fmaxf(max, smem.maxima[w][r]);
    float total = weight_of(sink, max);
#pragma unroll
    for (int w = 0; w < S::WARPS; w++) {
      const float f = weight_of(smem.maxima[w][r], max);
      const float4 out = *reinterpret_cast<const float4*>(smem.outs + (w * HEADS + r) * S::OUT + e);
      total += smem.totals[w][r] * f;
      y.x += out.x * f, y.y += out.y * f, y.z += out.z * f, y.w += out.w * f;
    }
    if (split.idle) continue;
    if (split.n_used == 1) {
      store_y(a, split, r, e, y, 1.0f / total);
    } else {
      store_partial(a, split, r, e, y, max, total);
    }
  }
}

// Whether all other splits of these heads are done; the last block resets the counter for the next launch.
DEVICE bool arrives_last(const DecodeAttentionArgs& a, const Split& split, int tid) {
  __shared__ bool is_last;
  __syncthreads();
  if (tid == 0) {
    uint32_t* arrived = a.arrived + split.token * split.head_blocks + split.head_block;
    is_last = ptx::count_up(arrived) == static_cast<uint32_t>(split.n_used - 1);
    if (is_last) *arrived = 0;
  }
  __syncthreads();
  return is_last;
}

// Merges the splits' results, 2 elements per thread, all of a warp's in one row. Each lane first loads all that it needs of MERGE_BATCH
// splits, maximum and sum of one and its elements of all, so that it waits for memory once. `__ldcg`: other blocks wrote these, which
// this SM's L1 does not know.
template <int DIM>
DEVICE void merge_splits(const DecodeAttentionArgs& a, const Split& split, int tid, int lane) {
  const int dim = a.head_dim, n_used = split.n_used;
  const size_t stride = static_cast<size_t>(a.n_heads) * (dim + 2);  // from one split to the next
  const float* partial = a.partial + split.first_result * stride + split.first_head * (dim + 2);
#pragma unroll 1
  for (int i = tid * 2; i < split.n_rows * DIM; i += Smem<DIM>::THREADS * 2) {
    const int r = i / DIM, e = i % DIM;
    const float* row = partial + r * (dim + 2);
    float max = -INFINITY, total = 0;
    float2 y = {};
#pragma unroll 1
    for (int first = 0; first < n_used; first += MERGE_BATCH) {
      const int s = first + lane % MERGE_BATCH;
      const float2 weight = s < n_used ? __ldcg(reinterpret_cast<const float2*>(row + s * stride + dim)) : float2{-INFINITY, 0};
      float2 part[MERGE_BATCH];
#pragma unroll
      for (int j = 0; j < MERGE_BATCH; j++) {
        const bool there = e < dim && first + j < n_used;
        part[j] = there ? __ldcg(reinterpret_cast<const float2*>(row + (first + j) * stride + e)) : float2{0, 0};
      }
      const float largest = fmaxf(max, warp_max(weight.x)), correction = weight_of(max, largest), factor = weight_of(weight.x, largest);
      max = largest;
      total = total * correction + warp_sum(lane < MERGE_BATCH ? weight.y * factor : 0.0f);
      y.x *= correction, y.y *= correction;
#pragma unroll
      for (int j = 0; j < MERGE_BATCH; j++) {
        const float f = __shfl_sync(ALL_LANES, factor, j);
        y.x += part[j].x * f, y.y += part[j].y * f;
      }
    }
    // Each second thread stores its neighbour's elements, too.
    const float2 more = {__shfl_down_sync(ALL_LANES, y.x, 1), __shfl_down_sync(ALL_LANES, y.y, 1)};
    if (lane % 2 == 0 && e < dim) store_y(a, split, r, e, {y.x, y.y, more.x, more.y}, 1.0f / total);
  }
}

// Attention of one split. `Stored`: the cache's type. `next`: the table's entry of the block's next one, or null.
template <class Stored, class Tiles, int DIM>
DEVICE void attend(const DecodeAttentionArgs& a, const Split& split, const uint4* next, const Smem<DIM>& smem, int tid) {
  using S = Smem<DIM>;
  const int lane = tid % 32, warp = tid / 32;
  TileRing<Tiles, DIM> ring(a, split, smem, warp, lane);
  if (tid == 0) *smem.own_head = split.head_at(a, split.end - 1), *smem.split = split;
  ring.prefetch();
#pragma unroll 1
  for (int i = tid; i < (HEADS + 2) * S::ROW / 2; i += S::THREADS) reinterpret_cast<uint32_t*>(smem.queries)[i] = 0;
  __syncthreads();
  // With the next tile's group of copies.
  if (next && tid < 2) ptx::cp_async_16(smem.next + tid, next + tid, 16);
  ptx::griddepcontrol_wait();
  prepare_heads<Stored, Tiles, DIM>(a, split, smem, warp, lane);
  __syncthreads();

  Accumulator<DIM> acc;
  accumulate(acc, ring, smem, warp, lane);
  __syncthreads();
  store_warp<Tiles>(smem, acc, warp, lane);
  __syncthreads();
  const Split& kept = *smem.split;
  merge_warps(a, kept, smem, tid);
  if (kept.n_used > 1 && !kept.idle && arrives_last(a, kept, tid)) merge_splits<DIM>(a, kept, tid, lane);
}

// Prepares the keys and values of all tokens, a head of each to a block, and writes them to the cache.
template <class Stored, class Tiles, int DIM>
DEVICE void store_heads(const DecodeAttentionArgs& a) {
  using S = Smem<DIM>;
  ptx::launch_dependents();
  __shared__ __align__(16) uint16_t own[2 * S::ROW];
  __shared__ float heads[2 * DIM];
  __shared__ uint32_t own_head;
  const Split split = Split::of_token(a, blockIdx.x / a.n_kv_heads, blockIdx.x % a.n_kv_heads);
  S smem(nullptr);
  smem.own = own, smem.heads = heads, smem.own_head = &own_head;
  if (threadIdx.x == 0) own_head = split.head_at(a, split.end - 1);
  __syncthreads();
  ptx::griddepcontrol_wait();
  prepare_heads<Stored, Tiles, DIM>(a, split, smem, threadIdx.x / 32, threadIdx.x % 32);
}

template <class Stored, class Tiles, int DIM, bool DETERMINISTIC>
DEVICE void decode_attention(const DecodeAttentionArgs& a) {
  using S = Smem<DIM>;
  ptx::launch_dependents();
  DYNAMIC_SHARED(shared);
  __shared__ float maxima[S::WARPS][HEADS], totals[S::WARPS][HEADS];
  __shared__ uint32_t own_head;
  __shared__ Split kept;
  __shared__ uint4 next[2];
  S smem(shared);
  smem.maxima = maxima, smem.totals = totals, smem.own_head = &own_head, smem.split = &kept, smem.next = next;
  const bool is_listed = !DETERMINISTIC && a.splits;
  int item = blockIdx.x;
  Split split = is_listed ? Split::of_table(a, item, Split::entry_of(a, item), S::WARPS) : Split::of_even(a, item, S::WARPS);
  if (split.idle && !a.all_run) {
    ptx::griddepcontrol_wait();
    return;
  }
  if (DETERMINISTIC && a.is_stored) ptx::griddepcontrol_wait();
#pragma unroll 1
  while (true) {
    const int further = item + gridDim.x;
    const bool goes_on = is_listed && !split.idle && further < static_cast<int>(a.n_splits * a.head_blocks);
    attend<Stored, Tiles, DIM>(a, split, goes_on ? Split::entry_of(a, further) : nullptr, smem, threadIdx.x);
    if (DETERMINISTIC) {
      if (!split.advance(a.n_parallel)) return;
    } else {
      if (!goes_on) return;
    }
    // Shared memory is free for the next split.
    __syncthreads();
    if (!DETERMINISTIC) {
      // Splits are in the order of their lengths.
      item = further, split = Split::of_table(a, item, smem.next, S::WARPS);
      if (split.idle) return;
    }
  }
}

#define DECODE_ATTENTION(T, TILES, DIM, THREADS)                                                                                  \
  KERNEL_2(decode_attention_##T##_##DIM, DecodeAttentionArgs, THREADS) { decode_attention<T, TILES, DIM, false>(a); }        \
  KERNEL_2(deterministic_attention_##T##_##DIM, DecodeAttentionArgs, THREADS) { decode_attention<T, TILES, DIM, true>(a); } \
  KERNEL(store_heads_##T##_##DIM, DecodeAttentionArgs, 64) { store_heads<T, TILES, DIM>(a); }
#define RAW(T, NUMBER, DIM, THREADS)               \
  typedef RawTiles<NUMBER, DIM> T##Tiles_##DIM; \
  DECODE_ATTENTION(T, T##Tiles_##DIM, DIM, THREADS)
RAW(F16, Half, 64, 256) RAW(F16, Half, 128, 256) RAW(F16, Half, 256, 128)
RAW(BF16, Bfloat, 64, 256) RAW(BF16, Bfloat, 128, 256) RAW(BF16, Bfloat, 256, 128)
DECODE_ATTENTION(Q8_0, Q8Tiles<64>, 64, 256) DECODE_ATTENTION(Q8_0, Q8Tiles<128>, 128, 256) DECODE_ATTENTION(Q8_0, Q8Tiles<256>, 256, 128)
