// Attention of sequences that bring one token each, with what comes before it: the norms and rotation of its queries and key, and the
// key's and value's way into the cache. By online softmax (Milakov and Gimelshein 2018), in parts (Dao et al. 2023).
//
// A block owns up to 4 query heads that share a key-value head, over one split of the positions that the token sees. 8, 16 or 32 lanes
// share a key, 8 elements to a lane, and keep their own maxima, sums and outputs. These are merged in shared memory, the splits' by the
// block that comes last; a short sequence is one split. The first keys and values are loaded while the queries are not there yet.
//
// Two blocks take what one of a product leaves of a multiprocessor, and no block ends before that product does, whether it has something
// to do or not. So each multiprocessor has room for one block of the next product, and not some for two and some for none.
//
// Moves: the keys and values of the split, once for all its heads. Shared memory: 23 KiB.
#include "heads.cuh"

constexpr int WARPS = 4, THREADS = WARPS * 32;
constexpr int ROWS = 4;         // query heads of a block
constexpr int MAX_DIM = 256;
constexpr int MIN_SPLIT = 128;  // keys that are worth a block

struct DecodeAttentionArgs {
  float* y;                      // [n_tokens, n_heads, head_dim]
  float* partial;                // [n_tokens, n_heads, n_splits, head_dim + 2]: output, maximum, sum
  uint32_t* arrived;             // [n_tokens, blocks of a token's heads]: splits that are done; zero before and after
  const float* qkv;              // [n_tokens, (n_heads + 2 * n_kv_heads) * head_dim]
  uint8_t* k_cache;              // [n_blocks, n_kv_heads, block_size] heads of `head_bytes`
  uint8_t* v_cache;
  const float* q_weight;         // [head_dim], null where heads have no norm
  const float* q_bias;           // [head_dim] or null
  const float* k_weight;
  const float* k_bias;
  const float* angles;           // [n_tokens, rope_dim]: cosines, then sines; null where nothing turns
  const uint32_t* positions;     // [n_tokens]
  const uint32_t* table_starts;  // [n_tokens]
  const uint32_t* block_tables;
  uint32_t n_heads, n_kv_heads, head_dim, head_bytes;
  uint32_t rope_dim, interleaved;
  uint32_t n_tokens;
  uint32_t block_size;
  uint32_t layer;                // 1: the norms take the mean out
  uint32_t n_splits;
  uint32_t window;               // positions that a token sees, itself among them
  float q_eps, k_eps;
  float scale;
  float softcap;                 // 0: none
};

// Eight elements of a head on their way from the cache, as they lie there.
template <class T>
struct Eight {
  float x[8];
  DEVICE void load(const uint8_t* head, int at, int dim) { load8<T>(x, head, at, dim, nullptr); }
  DEVICE void clear() {
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = 0;
  }
  DEVICE void floats(float (&y)[8]) const {
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = x[j];
  }
};

template <class T>
struct EightHalves {
  uint4 bits;
  DEVICE void load(const uint8_t* head, int at, int) { bits = *reinterpret_cast<const uint4*>(head + 2 * at); }
  DEVICE void clear() { bits = uint4{0, 0, 0, 0}; }
  DEVICE void floats(float (&y)[8]) const { T::load8_aligned(y, reinterpret_cast<const uint8_t*>(&bits)); }
};
template <>
struct Eight<F16> : EightHalves<F16> {};
template <>
struct Eight<BF16> : EightHalves<BF16> {};

// exp(x - max), 0 where nothing has been seen.
DEVICE float weight_of(float x, float max) { return x == -INFINITY ? 0.0f : __expf(x - max); }

struct Shared {
  __align__(16) float q[ROWS][MAX_DIM];
  __align__(16) float fresh[2][MAX_DIM];  // the token's own key and value
  __align__(16) float outs[WARPS][ROWS][MAX_DIM];
  float maxima[WARPS][ROWS], totals[WARPS][ROWS];
  bool is_last;
};

template <class T, int WIDTH>
DEVICE void attend(const DecodeAttentionArgs& a, Shared& shared) {
  constexpr int PER_PASS = THREADS / WIDTH;
  // Keys that a lane has under way.
  constexpr int KEYS = sizeof(Eight<T>) <= 16 ? (WIDTH == 16 ? 4 : 2) : (WIDTH == 32 || T::LEN == 1 ? 1 : 2);
  constexpr int SCORES = ROWS * KEYS, REPEAT = WIDTH / SCORES;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int dim = a.head_dim, n_heads = a.n_heads, n_kv_heads = a.n_kv_heads;
  const int group = n_heads / n_kv_heads, chunks = ceil_div(group, ROWS);
  // All tokens' first splits come first.
  const int head_blocks = n_kv_heads * chunks, head_block = blockIdx.x % head_blocks;
  const int token = blockIdx.x / head_blocks % a.n_tokens, split = blockIdx.x / head_blocks / a.n_tokens;
  const int kv_head = head_block / chunks, first_row = head_block % chunks * ROWS;
  const int n_rows = group - first_row < ROWS ? group - first_row : ROWS;
  const int first_head = kv_head * group + first_row;

  // The batch was there before the step began.
  const int end = a.positions[token] + 1;
  const int start = end > static_cast<int>(a.window) ? end - static_cast<int>(a.window) : 0;
  const int even = ceil_div(ceil_div(end - start, a.n_splits), 32) * 32, per_split = even < MIN_SPLIT ? MIN_SPLIT : even;
  const int n_used = ceil_div(end - start, per_split);
  if (split >= n_used) {
    ptx::wait_for_previous_kernel();
    return;
  }
  const int from = start + split * per_split, to = from + per_split < end ? from + per_split : end;
  const uint32_t* table = a.block_tables + a.table_starts[token];
  // Which head of both caches a position's is: their number fits 32 bits.
  const auto head_at = [&](int position) {
    const uint32_t row = static_cast<uint32_t>(position) / a.block_size;
    return (table[row] * n_kv_heads + kv_head) * a.block_size + (position - row * a.block_size);
  };
  const auto byte_of = [&](uint32_t head) { return static_cast<size_t>(head) * a.head_bytes; };
  // The token's own key and value as the cache has them, before there are outputs.
  uint8_t* own = reinterpret_cast<uint8_t*>(shared.outs);

  const int slot = tid / WIDTH, at = tid % WIDTH * 8, in_group = lane % WIDTH;
  Eight<T> k[KEYS], v[KEYS];
  // Loads the keys and values from `base` on; all but the token's own are from earlier steps.
  const auto load = [&](int base) {
#pragma unroll
    for (int u = 0; u < KEYS; u++) {
      const int key = base + u * PER_PASS + slot;
      k[u].clear(), v[u].clear();
      if (key < to && key != end - 1 && at < dim) {
        const size_t head = byte_of(head_at(key));
        k[u].load(a.k_cache + head, at, dim);
        v[u].load(a.v_cache + head, at, dim);
      }
    }
  };
  const auto load_own = [&](int base) {
#pragma unroll
    for (int u = 0; u < KEYS; u++) {
      if (base + u * PER_PASS + slot == end - 1 && at < dim) {
        k[u].load(own, at, dim);
        v[u].load(own + a.head_bytes, at, dim);
      }
    }
  };
  load(from);
  for (int key = from + KEYS * PER_PASS + slot; key < to && key < end - 1 && at < dim; key += PER_PASS) {
    const size_t head = byte_of(head_at(key)) + at * static_cast<int>(a.head_bytes) / dim;
    ptx::prefetch(a.k_cache + head);
    ptx::prefetch(a.v_cache + head);
  }
  ptx::wait_for_previous_kernel();

  // Queries, and where the split has the token itself, its key and value: two heads to a warp, whose loads go side by side.
  const int n_heads_here = n_rows + (to == end ? 2 : 0);
  static_assert(2 * WARPS >= ROWS + 2, "a block has a warp's half for each head");
  Head heads[2];
  constexpr int TURNS = WIDTH / 8;  // pairs of a lane
  float cosines[TURNS], sines[TURNS];
  const int half_turns = a.angles ? a.rope_dim / 2 : 0;
  const float* angles = a.angles + static_cast<size_t>(token) * a.rope_dim;
#pragma unroll
  for (int u = 0; u < 2; u++) {
    const int i = warp + u * WARPS;
    const int head = i < n_rows ? first_head + i : n_heads + (i - n_rows) * n_kv_heads + kv_head;
    const float* row = a.qkv + (static_cast<size_t>(token) * (n_heads + 2 * n_kv_heads) + head) * dim;
#pragma unroll
    for (int j = 0; j < 8; j++) heads[u].x[j] = i < n_heads_here && lane + 32 * j < dim ? row[lane + 32 * j] : 0.0f;
  }
#pragma unroll
  for (int j = 0; j < TURNS; j++) {
    const int i = lane + 32 * j;
    cosines[j] = i < half_turns ? angles[i] : 0.0f;
    sines[j] = i < half_turns ? angles[half_turns + i] : 0.0f;
  }
#pragma unroll
  for (int u = 0; u < 2; u++) {
    const int i = warp + u * WARPS;
    if (i >= n_heads_here) break;
    const bool is_query = i < n_rows, is_value = i == n_rows + 1;
    float* x = is_query ? shared.q[i] : shared.fresh[is_value];
    if (!is_value && a.q_weight) {
      norm_head(heads[u], dim, lane, is_query ? a.q_weight : a.k_weight, is_query ? a.q_bias : a.k_bias, a.layer,
                is_query ? a.q_eps : a.k_eps);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
      if (lane + 32 * j < dim) x[lane + 32 * j] = heads[u].x[j];
    }
    __syncwarp();
    if (!is_value) {
#pragma unroll
      for (int j = 0; j < TURNS; j++) {
        const int pair = lane + 32 * j;
        if (pair < half_turns) rotate_pair(x, pair, half_turns, a.interleaved, cosines[j], sines[j]);
      }
      __syncwarp();
    }
    if (!is_query) {
      write_head<T>(own + is_value * a.head_bytes, x, dim, lane);
      write_head<T>((is_value ? a.v_cache : a.k_cache) + byte_of(head_at(end - 1)), x, dim, lane);
    }
  }
  for (int i = tid; i < ROWS * MAX_DIM; i += THREADS) {
    if (i / MAX_DIM >= n_rows || i % MAX_DIM >= dim) shared.q[i / MAX_DIM][i % MAX_DIM] = 0;
  }
  __syncthreads();
  load_own(from);

  // A lane keeps the maximum of its score's row, and its share of the sum.
  float max = -INFINITY, sum = 0, out[ROWS][8] = {};
  const int score_key = in_group / REPEAT % KEYS;
  // All slots go round equally often, for the shuffles.
#pragma unroll 1
  for (int base = from; base < to; base += KEYS * PER_PASS) {
    if (base > from) {
      load(base);
      load_own(base);
    }
    float scores[SCORES];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const float4 q0 = *reinterpret_cast<const float4*>(&shared.q[r][at]), q1 = *reinterpret_cast<const float4*>(&shared.q[r][at + 4]);
      const float query[8] = {q0.x, q0.y, q0.z, q0.w, q1.x, q1.y, q1.z, q1.w};
#pragma unroll
      for (int u = 0; u < KEYS; u++) {
        float x[8], s = 0;
        k[u].floats(x);
#pragma unroll
        for (int j = 0; j < 8; j++) s = fmaf(query[j], x[j], s);
        scores[r * KEYS + u] = s;
      }
    }
    float score = sums_over<SCORES, WIDTH>(scores, lane) * a.scale;
    if (a.softcap != 0.0f) score = a.softcap * tanhf(score / a.softcap);
    if (base + score_key * PER_PASS + slot >= to) score = -INFINITY;
    float largest = score;
#pragma unroll
    for (int d = REPEAT; d < KEYS * REPEAT; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, d));
    largest = fmaxf(largest, max);
    const float fade = weight_of(max, largest), p = weight_of(score, largest);
    max = largest;
    sum = sum * fade + p;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const float f = __shfl_sync(ALL_LANES, fade, lane - in_group + r * KEYS * REPEAT);
#pragma unroll
      for (int j = 0; j < 8; j++) out[r][j] *= f;
    }
#pragma unroll
    for (int u = 0; u < KEYS; u++) {
      float x[8];
      v[u].floats(x);
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        const float w = __shfl_sync(ALL_LANES, p, lane - in_group + (r * KEYS + u) * REPEAT);
#pragma unroll
        for (int j = 0; j < 8; j++) out[r][j] = fmaf(w, x[j], out[r][j]);
      }
    }
  }
#pragma unroll
  for (int d = REPEAT; d < KEYS * REPEAT; d *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, d);

  // The token's own key and value have been read before outputs lie there.
  __syncthreads();
  // The keys of a warp, then the warps.
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    float row_max = __shfl_sync(ALL_LANES, max, lane - in_group + r * KEYS * REPEAT);
    float row_sum = __shfl_sync(ALL_LANES, sum, lane - in_group + r * KEYS * REPEAT);
#pragma unroll
    for (int d = WIDTH; d < 32; d *= 2) {
      const float other_max = __shfl_xor_sync(ALL_LANES, row_max, d), other_sum = __shfl_xor_sync(ALL_LANES, row_sum, d);
      const float both = fmaxf(row_max, other_max), mine = weight_of(row_max, both), theirs = weight_of(other_max, both);
      row_max = both;
      row_sum = row_sum * mine + other_sum * theirs;
#pragma unroll
      for (int j = 0; j < 8; j++) out[r][j] = out[r][j] * mine + __shfl_xor_sync(ALL_LANES, out[r][j], d) * theirs;
    }
    if (lane < WIDTH && at < dim) {
      float4* to_outs = reinterpret_cast<float4*>(&shared.outs[warp][r][at]);
      to_outs[0] = float4{out[r][0], out[r][1], out[r][2], out[r][3]};
      to_outs[1] = float4{out[r][4], out[r][5], out[r][6], out[r][7]};
    }
    if (lane == 0) shared.maxima[warp][r] = row_max, shared.totals[warp][r] = row_sum;
  }
  __syncthreads();
  const int partial_len = dim + 2;
  for (int i = tid; i < n_rows * dim; i += THREADS) {
    const int r = i / dim, e = i % dim;
    float most = -INFINITY, total = 0, y = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) most = fmaxf(most, shared.maxima[w][r]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float factor = weight_of(shared.maxima[w][r], most);
      total += shared.totals[w][r] * factor;
      y += shared.outs[w][r][e] * factor;
    }
    const size_t row = static_cast<size_t>(token) * n_heads + first_head + r;
    if (n_used == 1) {
      a.y[row * dim + e] = y / total;
      continue;
    }
    float* partial = a.partial + (row * a.n_splits + split) * partial_len;
    partial[e] = y;
    if (e == 0) partial[dim] = most, partial[dim + 1] = total;
  }
  if (n_used > 1) {
    __threadfence();
    __syncthreads();
    if (tid == 0) {
      uint32_t* count = a.arrived + token * head_blocks + head_block;
      shared.is_last = atomicAdd(count, 1u) == static_cast<uint32_t>(n_used - 1);
      if (shared.is_last) *count = 0;
    }
    __syncthreads();
    if (!shared.is_last) return;
    __threadfence();
    for (int i = tid; i < n_rows * dim; i += THREADS) {
      const int r = i / dim, e = i % dim;
      const size_t row = static_cast<size_t>(token) * n_heads + first_head + r;
      // Other blocks wrote them: not from this multiprocessor's cache.
      const float* partial = a.partial + row * a.n_splits * partial_len;
      float most = -INFINITY, total = 0, y = 0;
      for (int s = 0; s < n_used; s++) most = fmaxf(most, __ldcg(partial + s * partial_len + dim));
      for (int s = 0; s < n_used; s++) {
        const float factor = __expf(__ldcg(partial + s * partial_len + dim) - most);
        total += __ldcg(partial + s * partial_len + dim + 1) * factor;
        y += __ldcg(partial + s * partial_len + e) * factor;
      }
      a.y[row * dim + e] = y / total;
    }
  }
}

template <class T>
DEVICE void decode_attention(const DecodeAttentionArgs& a) {
  ptx::let_next_kernel_start();
  __shared__ Shared shared;
  if (a.head_dim <= 64) return attend<T, 8>(a, shared);
  if (a.head_dim <= 128) return attend<T, 16>(a, shared);
  attend<T, 32>(a, shared);
}

#define DECODE_ATTENTION(T) \
  KERNEL_4(decode_attention_##T, DecodeAttentionArgs, THREADS) { decode_attention<T>(a); }
DECODE_ATTENTION(F32) DECODE_ATTENTION(F16) DECODE_ATTENTION(BF16) DECODE_ATTENTION(Q8_0)
