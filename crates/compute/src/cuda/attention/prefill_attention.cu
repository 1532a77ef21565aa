// Causal attention of many tokens of a sequence over its cache, on the tensor cores, by online softmax (Milakov and Gimelshein 2018;
// Dao 2023).
//
// A block of 4 warps owns up to 64 rows, a warp 16: a row is a token and one of the query heads that share a key-value head. It walks
// the positions that its tokens see, 64 at a time, through two stages in shared memory that are filled in the
// background; the 16 bytes of a row lie where `place` says, so that reads of 8 rows fall on all banks. Queries, scores and sums stay
// in registers; queries and weights are rounded to the cache's type. A cache of 8 bits is decoded to half precision on its way to
// shared memory, and then the reads of one block pass in the shadow of another's products. Moves: the keys and values that a block
// sees, once. Shared memory: 64 KiB at most.
#include "prefill_attention.cuh"

constexpr int THREADS = 128;

// Element of a tile where 16 bytes of a row are.
template <int DIM>
DEVICE int place(int row, int chunk) {
  return row * DIM + (chunk ^ (row & 7)) * 8;
}

template <class T, class Cache, int DIM>
DEVICE void prefill_attention(const PrefillAttentionArgs& a) {
  constexpr int KEYS = 64, CHUNKS = DIM / 8, LOADS = KEYS * CHUNKS / THREADS;
  ptx::griddepcontrol_wait();
  DYNAMIC_SHARED(shared);
  __shared__ uint32_t key_rows[2][KEYS];
  uint16_t* tiles = reinterpret_cast<uint16_t*>(shared);
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, dim = a.head_dim;
  const Tile t(a, blockIdx.x, gridDim.x);

  // Where the keys of a step are, by one thread each.
  const auto locate = [&](int step) {
    const int position = t.start + step * KEYS + tid;
    if (tid < KEYS) key_rows[step % 2][tid] = position < t.end ? t.row_of(a, position) : NOWHERE;
  };
  const int chunk = tid % CHUNKS;
  const size_t row_bytes = Cache::row_bytes(dim);
  const auto fetch = [&](int step) {
    uint16_t* k = tiles + step % 2 * 2 * KEYS * DIM;
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int key = tid / CHUNKS + i * (THREADS / CHUNKS);
      const uint32_t row = key_rows[step % 2][key];
      // Zeros stand for keys that are not there, and for what a head lacks.
      const bool there = row != NOWHERE && chunk * 8 < dim;
      const size_t at = row * row_bytes;
      Cache::bring(k + place<DIM>(key, chunk), a.k_cache, at, chunk * 8, there);
      Cache::bring(k + KEYS * DIM + place<DIM>(key, chunk), a.v_cache, at, chunk * 8, there);
    }
    ptx::cp_async_commit();
  };
  const int n_steps = ceil_div(t.end - t.start, KEYS);
  locate(0);
  __syncthreads();
  fetch(0);
  locate(1);

  const Rows rows(a, t, warp * 16, lane);
  uint32_t q[DIM / 16][4];
  load_queries<T, DIM>(q, a, rows, lane);
  Softmax softmax(a);
  float out[DIM / 8][4] = {};
  for (int step = 0; step < n_steps; step++) {
    // Locations of the next tile, and the stage that this step's reads will leave, are free since the last barrier.
    __syncthreads();
    if (step + 1 < n_steps) {
      fetch(step + 1);
    } else {
      ptx::cp_async_commit();
    }
    ptx::cp_async_wait<1>();
    __syncthreads();
    locate(step + 2);
    const uint16_t* k = tiles + step % 2 * 2 * KEYS * DIM;
    const uint16_t* v = k + KEYS * DIM;

    float score[KEYS / 8][4] = {};
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
#pragma unroll
      for (int j = 0; j < KEYS / 16; j++) {
        uint32_t b[4];
        ptx::ldmatrix_x4(b, k + place<DIM>(j * 16 + lane % 8 + lane / 16 * 8, i * 2 + lane / 8 % 2));
        T::multiply(score[2 * j], q[i], b[0], b[1]);
        T::multiply(score[2 * j + 1], q[i], b[2], b[3]);
      }
    }
    softmax.weigh(score, a, t, rows, t.start + step * KEYS, lane);
    softmax.correct(out);
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) {
      uint32_t weights[4];
      pack_weights<T>(weights, score, j);
#pragma unroll
      for (int i = 0; i < DIM / 16; i++) {
        uint32_t b[4];
        ptx::ldmatrix_x4_trans(b, v + place<DIM>(j * 16 + lane % 16, i * 2 + lane / 16));
        T::multiply(out[2 * i], weights, b[0], b[1]);
        T::multiply(out[2 * i + 1], weights, b[2], b[3]);
      }
    }
  }
  ptx::cp_async_wait<0>();
  softmax.finish(out, a, rows, lane);
}

#define PREFILL_ATTENTION(NAME, T, CACHE, DIM) \
  KERNEL(prefill_attention_##NAME##_##DIM, PrefillAttentionArgs, THREADS) { prefill_attention<T, CACHE, DIM>(a); }
PREFILL_ATTENTION(F16, Half, Plain, 64) PREFILL_ATTENTION(F16, Half, Plain, 128)
PREFILL_ATTENTION(BF16, Bfloat, Plain, 64) PREFILL_ATTENTION(BF16, Bfloat, Plain, 128)
PREFILL_ATTENTION(Q8_0, Half, Blocks8, 64) PREFILL_ATTENTION(Q8_0, Half, Blocks8, 128)
