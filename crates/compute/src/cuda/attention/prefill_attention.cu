// Attention of many tokens of a sequence over its cache, on the tensor cores, by online softmax (Milakov and Gimelshein 2018;
// Dao 2023).
//
//   for each step of 64 or 32 keys:  load K and V of the next step;  S = Q Kᵀ;  P = exp2(S - max);  O = O · correction + P V
//
// Mapping. Block of 4 warps: up to 64 rows; a row is a token and one of the query heads that share a KV head. Warp w: rows 16 w to
// 16 w + 15. Lane: rows lane / 4 and lane / 4 + 8 of these. Queries (rounded to the cache's type), scores and outputs stay in registers, but
// queries of heads of 256 in shared memory.
// Shared memory: two stages of K [keys, DIM] and V [keys, DIM] in 16 bits, filled by cp.async: 32 KiB for heads of 64, 64 KiB for 128 and,
// with 32 keys to a step, for 256, which have 32 KiB of queries besides; up to 512 bytes static. Q8_0 is decoded to half precision on the way, which other blocks' mma hide.
// Moves: K and V that a block sees, once: 4 · n_keys · head_dim bytes; its rows of qkv and y.
#include "prefill_attention.cuh"

constexpr int THREADS = 128;
// How a block is divided, by the size of its heads.
template <int DIM>
struct Plan {
  static constexpr bool SHARES_QUERIES = DIM > 128;  // in shared memory: registers hold the outputs
  static constexpr int KEYS = DIM > 128 ? 32 : 64;   // of a step
  static constexpr int PIECES = DIM > 128 ? 4 : DIM / 16;  // of 16 elements of scores' products that are unrolled
};

// The two stages of keys and values in shared memory.
template <class Cache, int DIM>
struct KvStages {
  static constexpr int KEYS = Plan<DIM>::KEYS, CHUNKS = DIM / 8, LOADS = KEYS * CHUNKS / THREADS;
  const PrefillAttentionArgs& a;
  const Tile& t;
  uint16_t* tiles;              // [2, keys and values, KEYS, DIM]
  uint32_t (*key_rows)[KEYS];   // [2, KEYS]: rows of the cache
  int tid;

  DEVICE uint16_t* keys(int step) const { return tiles + step % 2 * 2 * KEYS * DIM; }

  // Finds the rows of a step's keys, by one thread each.
  DEVICE void locate(int step) const {
    const int position = t.start + step * KEYS + tid;
    if (tid < KEYS) key_rows[step % 2][tid] = position < t.end ? t.row_of(a, position) : NO_HEAD;
  }

  DEVICE void load_stage(int step) const {
    const int dim = a.head_dim, chunk = tid % CHUNKS;
    const size_t row_bytes = Cache::head_bytes(dim);
    uint16_t* k = keys(step);
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int key = tid / CHUNKS + i * (THREADS / CHUNKS);
      const uint32_t row = key_rows[step % 2][key];
      // Zeros for keys that are not there, and for what a head lacks of DIM.
      const bool there = row != NO_HEAD && chunk * 8 < dim;
      const size_t at = row * row_bytes;
      Cache::load8(k + swizzled_row_offset<DIM>(key, chunk), a.k_cache, at, chunk * 8, there);
      Cache::load8(k + KEYS * DIM + swizzled_row_offset<DIM>(key, chunk), a.v_cache, at, chunk * 8, there);
    }
    ptx::cp_async_commit();
  }
};

// The queries of a warp's 16 rows as the first operand of mma, in registers.
template <class T, int DIM, bool SHARED = Plan<DIM>::SHARES_QUERIES>
struct Queries {
  uint32_t q[DIM / 16][4];

  DEVICE Queries(const PrefillAttentionArgs& a, const Rows& rows, uint16_t*, int lane) {
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) load_queries<T>(q[i], a, rows, i, lane);
  }

  // Of elements 16 i to 16 i + 15.
  DEVICE void get(uint32_t (&piece)[4], int i) const {
#pragma unroll
    for (int j = 0; j < 4; j++) piece[j] = q[i][j];
  }
};

// The same in shared memory, `tile` [16, DIM].
template <class T, int DIM>
struct Queries<T, DIM, true> {
  const uint16_t* tile;
  int lane;

  DEVICE Queries(const PrefillAttentionArgs& a, const Rows& rows, uint16_t* tile, int lane) : tile(tile), lane(lane) {
#pragma unroll 4
    for (int i = 0; i < DIM / 16; i++) {
      uint32_t piece[4];
      load_queries<T>(piece, a, rows, i, lane);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int at = swizzled_row_offset<DIM>(j % 2 * 8 + lane / 4, 2 * i + j / 2) + lane % 4 * 2;
        *reinterpret_cast<uint32_t*>(tile + at) = piece[j];
      }
    }
    __syncwarp();
  }

  DEVICE void get(uint32_t (&piece)[4], int i) const { ptx::ldmatrix_x4(piece, tile + swizzled_row_offset<DIM>(lane % 16, 2 * i + lane / 16)); }
};

// S = Q Kᵀ
template <class T, int DIM, int N>
DEVICE void multiply_keys(float (&score)[N][4], const Queries<T, DIM>& queries, const uint16_t* k, int lane) {
#pragma unroll Plan<DIM>::PIECES
  for (int i = 0; i < DIM / 16; i++) {
    uint32_t q[4];
    queries.get(q, i);
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
      uint32_t b[4];
      ptx::ldmatrix_x4(b, k + swizzled_row_offset<DIM>(j * 16 + lane % 8 + lane / 16 * 8, i * 2 + lane / 8 % 2));
      T::multiply(score[2 * j], q, b[0], b[1]);
      T::multiply(score[2 * j + 1], q, b[2], b[3]);
    }
  }
}

// O += P V
template <class T, int DIM, int N>
DEVICE void multiply_values(float (&out)[DIM / 8][4], const float (&score)[N][4], const uint16_t* v, int lane) {
#pragma unroll
  for (int j = 0; j < N / 2; j++) {
    uint32_t weights[4];
    pack_weights<T>(weights, score, j);
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
      uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, v + swizzled_row_offset<DIM>(j * 16 + lane % 16, i * 2 + lane / 16));
      T::multiply(out[2 * i], weights, b[0], b[1]);
      T::multiply(out[2 * i + 1], weights, b[2], b[3]);
    }
  }
}

template <class T, class Cache, int DIM>
DEVICE void prefill_attention(const PrefillAttentionArgs& a) {
  constexpr int KEYS = Plan<DIM>::KEYS;
  ptx::griddepcontrol_wait();
  DYNAMIC_SHARED(shared);
  __shared__ uint32_t key_rows[2][KEYS];
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const Tile t(a, blockIdx.x, gridDim.x);
  const KvStages<Cache, DIM> stages = {a, t, reinterpret_cast<uint16_t*>(shared), key_rows, tid};
  const int n_steps = ceil_div(t.end - t.start, KEYS);
  stages.locate(0);
  __syncthreads();
  stages.load_stage(0);
  stages.locate(1);

  const Rows rows(a, t, warp * 16, lane);
  const Queries<T, DIM> queries(a, rows, reinterpret_cast<uint16_t*>(shared) + (4 * KEYS + warp * 16) * DIM, lane);
  Softmax softmax(a);
  float out[DIM / 8][4] = {};
  for (int step = 0; step < n_steps; step++) {
    // All warps have read the stage that the next load overwrites, and written where its keys are.
    __syncthreads();
    if (step + 1 < n_steps) {
      stages.load_stage(step + 1);
    } else {
      ptx::cp_async_commit();
    }
    ptx::cp_async_wait<1>();
    __syncthreads();
    stages.locate(step + 2);
    const uint16_t* k = stages.keys(step);
    float score[KEYS / 8][4] = {};
    multiply_keys(score, queries, k, lane);
    softmax.weigh(score, a, t, rows, t.start + step * KEYS, lane);
    softmax.correct(out);
    multiply_values<T, DIM>(out, score, k + KEYS * DIM, lane);
  }
  ptx::cp_async_wait<0>();
  softmax.finish(out, a, rows, lane);
}

#define PREFILL_ATTENTION(NAME, T, CACHE, DIM) \
  KERNEL(prefill_attention_##NAME##_##DIM, PrefillAttentionArgs, THREADS) { prefill_attention<T, CACHE, DIM>(a); }
#define PREFILL_ATTENTIONS(NAME, T, CACHE) \
  PREFILL_ATTENTION(NAME, T, CACHE, 64) PREFILL_ATTENTION(NAME, T, CACHE, 128) PREFILL_ATTENTION(NAME, T, CACHE, 256)
PREFILL_ATTENTIONS(F16, Half, RawCache) PREFILL_ATTENTIONS(BF16, Bfloat, RawCache) PREFILL_ATTENTIONS(Q8_0, Half, Q8Cache)
