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
  constexpr float LOG2_E = 1.4426950408889634f;
  ptx::wait_for_previous_kernel();
  DYNAMIC_SHARED(shared);
  __shared__ uint32_t key_rows[2][KEYS];
  uint16_t* tiles = reinterpret_cast<uint16_t*>(shared);
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int dim = a.head_dim, n_heads = a.n_heads, n_kv_heads = a.n_kv_heads, block_size = a.block_size;
  const int group = n_heads / n_kv_heads, head_tiles = ceil_div(group, a.tile_heads);
  const int kv_head = blockIdx.y / head_tiles, first_head = blockIdx.y % head_tiles * a.tile_heads;

  const TokenTile t(a);
  const int first_token = t.first_token, n_tokens = t.n_tokens, first_position = t.first_position, end = t.end, start = t.start;
  const int window = a.window;
  const uint32_t* table = t.table;

  // Where the keys from `base` on are, by one thread each; a row of the cache is a head of a position.
  const auto locate = [&](int step) {
    const int position = start + step * KEYS + tid;
    if (tid < KEYS) {
      key_rows[step % 2][tid] =
          position < end ? (table[position / block_size] * n_kv_heads + kv_head) * block_size + position % block_size : NOWHERE;
    }
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
    ptx::end_copies();
  };
  const int n_steps = ceil_div(end - start, KEYS);
  locate(0);
  __syncthreads();
  fetch(0);
  locate(1);

  // The two rows of this thread: their positions, and where they are among the queries.
  int position[2];
  size_t row_at[2];
  bool is_row[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = warp * 16 + h * 8 + lane / 4;
    const int token = row / a.tile_heads, head = first_head + row % a.tile_heads;
    is_row[h] = token < n_tokens && head < group;
    position[h] = first_position + token;
    row_at[h] = static_cast<size_t>(kv_head * group + head) * dim;
    row_at[h] += static_cast<size_t>(first_token + token) * (n_heads + 2 * n_kv_heads) * dim;
  }
  uint32_t q[DIM / 16][4];
#pragma unroll
  for (int i = 0; i < DIM / 16; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int at = i * 16 + j / 2 * 8 + lane % 4 * 2;
      const bool there = is_row[j % 2] && at < dim;
      const float* p = a.qkv + row_at[j % 2] + at;
      q[i][j] = there ? pair_of<T>(p[0], p[1]) : 0;
    }
  }

  // A score times `factor` is the exponent of two of its weight.
  const bool capped = a.softcap != 0.0f;
  const float factor = capped ? LOG2_E : a.scale * LOG2_E;
  float out[DIM / 8][4] = {};
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  for (int step = 0; step < n_steps; step++) {
    // Locations of the next tile, and the stage that this step's reads will leave, are free since the last barrier.
    __syncthreads();
    if (step + 1 < n_steps) {
      fetch(step + 1);
    } else {
      ptx::end_copies();
    }
    ptx::wait_for_copies<1>();
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
        ptx::load_matrices(b, k + place<DIM>(j * 16 + lane % 8 + lane / 16 * 8, i * 2 + lane / 8 % 2));
        T::multiply(score[2 * j], q[i], b[0], b[1]);
        T::multiply(score[2 * j + 1], q[i], b[2], b[3]);
      }
    }
    if (capped) {
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
        for (int c = 0; c < 4; c++) score[j][c] = a.softcap * tanhf(score[j][c] * a.scale / a.softcap);
      }
    }
    const int base = start + step * KEYS;
    if (base + KEYS > first_position + 1 || base <= end - 1 - window) {
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
          const int key = base + j * 8 + lane % 4 * 2 + c % 2, at = position[c / 2];
          if (key > at || at - key >= window) score[j][c] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float largest = max[h];
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) largest = fmaxf(largest, fmaxf(score[j][2 * h], score[j][2 * h + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
      // A row that sees no key of this tile may have seen none before, too.
      const float offset = largest == -INFINITY ? 0.0f : largest * factor;
      const float correction = exp2f(max[h] * factor - offset);
      max[h] = largest;
      sum[h] *= correction;
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const float p = exp2f(fmaf(score[j][2 * h + c], factor, -offset));
          score[j][2 * h + c] = p;
          sum[h] += p;
        }
      }
#pragma unroll
      for (int i = 0; i < DIM / 8; i++) out[i][2 * h] *= correction, out[i][2 * h + 1] *= correction;
    }
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) {
      const uint32_t p[4] = {pair_of<T>(score[2 * j][0], score[2 * j][1]), pair_of<T>(score[2 * j][2], score[2 * j][3]),
                             pair_of<T>(score[2 * j + 1][0], score[2 * j + 1][1]),
                             pair_of<T>(score[2 * j + 1][2], score[2 * j + 1][3])};
#pragma unroll
      for (int i = 0; i < DIM / 16; i++) {
        uint32_t b[4];
        ptx::load_matrices_transposed(b, v + place<DIM>(j * 16 + lane % 16, i * 2 + lane / 16));
        T::multiply(out[2 * i], p, b[0], b[1]);
        T::multiply(out[2 * i + 1], p, b[2], b[3]);
      }
    }
  }
  ptx::wait_for_copies<0>();

#pragma unroll
  for (int h = 0; h < 2; h++) {
    sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], 1);
    sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], 2);
    if (!is_row[h]) continue;
    const int row = warp * 16 + h * 8 + lane / 4;
    const size_t token = first_token + row / a.tile_heads, head = kv_head * group + first_head + row % a.tile_heads;
    float* y = a.y + (token * n_heads + head) * dim;
    const float inverse = 1.0f / sum[h];
#pragma unroll
    for (int i = 0; i < DIM / 8; i++) {
      const int at = i * 8 + lane % 4 * 2;
      if (at < dim) y[at] = out[i][2 * h] * inverse, y[at + 1] = out[i][2 * h + 1] * inverse;
    }
  }
}

#define PREFILL_ATTENTION(NAME, T, CACHE, DIM) \
  KERNEL(prefill_attention_##NAME##_##DIM, PrefillAttentionArgs, THREADS) { prefill_attention<T, CACHE, DIM>(a); }
PREFILL_ATTENTION(F16, Half, Plain, 64) PREFILL_ATTENTION(F16, Half, Plain, 128)
PREFILL_ATTENTION(BF16, Bfloat, Plain, 64) PREFILL_ATTENTION(BF16, Bfloat, Plain, 128)
PREFILL_ATTENTION(Q8_0, Half, Blocks8, 64) PREFILL_ATTENTION(Q8_0, Half, Blocks8, 128)
