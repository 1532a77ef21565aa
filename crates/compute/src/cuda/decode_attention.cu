// Attention of sequences that bring one token each, with what comes before it: the norms and rotation of its queries and key, and the
// key's and value's way into the cache. By online softmax (Milakov and Gimelshein 2018), in parts (Dao et al. 2023).
//
// A block owns up to 4 query heads that share a key-value head, over one split of the positions that the token sees. A warp takes
// several keys at a time, 8 elements of a key to a lane, and keeps its own maximum, sum and output. The warps' are merged in shared
// memory, the splits' by the block that comes last; a short sequence is one split. Moves: the keys and values of the split, once for
// all its heads. Shared memory: 36 KiB.
#include "heads.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;
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
  uint32_t block_size;
  uint32_t layer;                // 1: the norms take the mean out
  uint32_t n_splits;
  uint32_t window;               // positions that a token sees, itself among them
  float q_eps, k_eps;
  float scale;
  float softcap;                 // 0: none
};

// Of one query head: the largest score, and relative to it the sum of weights and eight elements of the weighted values.
struct Weighted {
  float max, sum, out[8];
  DEVICE Weighted() : max(-INFINITY), sum(0), out{} {}
  DEVICE void merge(float other_max, float other_sum, const float (&other)[8]) {
    const float to = fmaxf(max, other_max);
    const float mine = max == -INFINITY ? 0.0f : __expf(max - to), theirs = other_max == -INFINITY ? 0.0f : __expf(other_max - to);
    max = to;
    sum = sum * mine + other_sum * theirs;
#pragma unroll
    for (int j = 0; j < 8; j++) out[j] = out[j] * mine + other[j] * theirs;
  }
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

template <class T>
DEVICE void decode_attention(const DecodeAttentionArgs& a) {
  constexpr int AT_A_TIME = sizeof(Eight<T>) > 16 ? 2 : 4;  // keys that a lane has under way
  ptx::let_next_kernel_start();
  __shared__ __align__(16) float q[ROWS][MAX_DIM];
  __shared__ __align__(16) float outs[WARPS][ROWS][MAX_DIM];
  __shared__ float maxima[WARPS][ROWS], totals[WARPS][ROWS];
  __shared__ bool is_last;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int dim = a.head_dim, n_heads = a.n_heads, n_kv_heads = a.n_kv_heads;
  const int group = n_heads / n_kv_heads, chunks = ceil_div(group, ROWS);
  const int token = blockIdx.x, kv_head = blockIdx.y / chunks, split = blockIdx.z;
  const int first_row = blockIdx.y % chunks * ROWS;
  const int n_rows = group - first_row < ROWS ? group - first_row : ROWS;
  const int first_head = kv_head * group + first_row;

  // The batch was there before the step began.
  const int end = a.positions[token] + 1;
  const int start = end > static_cast<int>(a.window) ? end - static_cast<int>(a.window) : 0;
  const int even = ceil_div(ceil_div(end - start, a.n_splits), 32) * 32, per_split = even < MIN_SPLIT ? MIN_SPLIT : even;
  const int n_used = ceil_div(end - start, per_split);
  if (split >= n_used) return;
  const int from = start + split * per_split, to = from + per_split < end ? from + per_split : end;
  const uint32_t* table = a.block_tables + a.table_starts[token];
  const auto head_at = [&](const uint8_t* cache, int position) {
    const size_t block = table[position / a.block_size];
    return cache + ((block * n_kv_heads + kv_head) * a.block_size + position % a.block_size) * a.head_bytes;
  };

  // Keys to a warp: 8, 16 or 32 lanes have one.
  const int width = dim <= 64 ? 8 : dim <= 128 ? 16 : 32, per_pass = THREADS / width;
  const int slot = tid / width, at = tid % width * 8;
  // All but the last of the cache is from earlier steps.
  for (int key = from + slot; key < to && key < end - 1 && at < dim; key += per_pass) {
    const int offset = at * static_cast<int>(a.head_bytes) / dim;
    ptx::prefetch(head_at(a.k_cache, key) + offset);
    ptx::prefetch(head_at(a.v_cache, key) + offset);
  }
  ptx::wait_for_previous_kernel();

  // Queries, and where the split has the new position, its key and value.
  const int n_heads_here = n_rows + (to == end ? 2 : 0);
  for (int i = warp; i < n_heads_here; i += WARPS) {
    const bool is_query = i < n_rows, is_value = i == n_rows + 1;
    const int head = is_query ? first_head + i : n_heads + (is_value ? n_kv_heads : 0) + kv_head;
    const float* row = a.qkv + (static_cast<size_t>(token) * (n_heads + 2 * n_kv_heads) + head) * dim;
    float* shared = is_query ? q[i] : outs[i][0];
    Head h;
#pragma unroll
    for (int j = 0; j < 8; j++) h.x[j] = lane + 32 * j < dim ? row[lane + 32 * j] : 0.0f;
    if (!is_value && a.q_weight) {
      norm_head(h, dim, lane, is_query ? a.q_weight : a.k_weight, is_query ? a.q_bias : a.k_bias, a.layer,
                is_query ? a.q_eps : a.k_eps);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) shared[lane + 32 * j] = h.x[j];
    __syncwarp();
    if (!is_value && a.angles) {
      rotate(shared, a.angles + static_cast<size_t>(token) * a.rope_dim, a.rope_dim, a.interleaved, lane);
      __syncwarp();
    }
    if (!is_query) write_head<T>(const_cast<uint8_t*>(head_at(is_value ? a.v_cache : a.k_cache, end - 1)), shared, dim, lane);
  }
  __syncthreads();

  float queries[ROWS][8];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
#pragma unroll
    for (int j = 0; j < 8; j++) queries[r][j] = r < n_rows ? q[r][at + j] * a.scale : 0.0f;
  }
  Weighted state[ROWS];
  // All slots go round equally often, for the shuffles.
#pragma unroll 1
  for (int base = from; base < to; base += AT_A_TIME * per_pass) {
    Eight<T> k[AT_A_TIME], v[AT_A_TIME];
#pragma unroll
    for (int u = 0; u < AT_A_TIME; u++) {
      const int key = base + u * per_pass + slot;
      k[u].clear(), v[u].clear();
      if (key < to && at < dim) {
        k[u].load(head_at(a.k_cache, key), at, dim);
        v[u].load(head_at(a.v_cache, key), at, dim);
      }
    }
    float scores[ROWS][AT_A_TIME];
#pragma unroll
    for (int u = 0; u < AT_A_TIME; u++) {
      float x[8];
      k[u].floats(x);
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        float s = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) s = fmaf(queries[r][j], x[j], s);
        scores[r][u] = s;
      }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      if (r >= n_rows) break;
      float max = state[r].max;
#pragma unroll
      for (int u = 0; u < AT_A_TIME; u++) {
        float s = scores[r][u];
        for (int d = width / 2; d; d >>= 1) s += __shfl_xor_sync(ALL_LANES, s, d);
        if (a.softcap != 0.0f) s = a.softcap * tanhf(s / a.softcap);
        scores[r][u] = base + u * per_pass + slot < to ? s : -INFINITY;
        max = fmaxf(max, scores[r][u]);
      }
      // Where there was no key yet, all weights come out as 0.
      const float shift = max == -INFINITY ? 0.0f : max, fade = __expf(state[r].max - shift);
      state[r].max = max;
      state[r].sum *= fade;
#pragma unroll
      for (int j = 0; j < 8; j++) state[r].out[j] *= fade;
#pragma unroll
      for (int u = 0; u < AT_A_TIME; u++) {
        scores[r][u] = __expf(scores[r][u] - shift);
        state[r].sum += scores[r][u];
      }
    }
#pragma unroll
    for (int u = 0; u < AT_A_TIME; u++) {
      float x[8];
      v[u].floats(x);
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        if (r >= n_rows) break;
#pragma unroll
        for (int j = 0; j < 8; j++) state[r].out[j] = fmaf(scores[r][u], x[j], state[r].out[j]);
      }
    }
  }

  // The keys of a warp, then the warps. The key and value that lay in `outs` are in the cache by now.
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    if (r >= n_rows) break;
    for (int d = width; d < 32; d *= 2) {
      float other[8];
      const float max = __shfl_xor_sync(ALL_LANES, state[r].max, d), sum = __shfl_xor_sync(ALL_LANES, state[r].sum, d);
#pragma unroll
      for (int j = 0; j < 8; j++) other[j] = __shfl_xor_sync(ALL_LANES, state[r].out[j], d);
      state[r].merge(max, sum, other);
    }
    if (lane < width) {
#pragma unroll
      for (int j = 0; j < 8; j++) outs[warp][r][at + j] = state[r].out[j];
    }
    if (lane == 0) maxima[warp][r] = state[r].max, totals[warp][r] = state[r].sum;
  }
  __syncthreads();
  const int partial_len = dim + 2;
  for (int i = tid; i < n_rows * dim; i += THREADS) {
    const int r = i / dim, e = i % dim;
    float max = -INFINITY, sum = 0, out = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) max = fmaxf(max, maxima[w][r]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float factor = maxima[w][r] == -INFINITY ? 0.0f : __expf(maxima[w][r] - max);
      sum += totals[w][r] * factor;
      out += outs[w][r][e] * factor;
    }
    const size_t row = static_cast<size_t>(token) * n_heads + first_head + r;
    if (n_used == 1) {
      a.y[row * dim + e] = out / sum;
      continue;
    }
    float* partial = a.partial + (row * a.n_splits + split) * partial_len;
    partial[e] = out;
    if (e == 0) partial[dim] = max, partial[dim + 1] = sum;
  }
  if (n_used == 1) return;

  __threadfence();
  __syncthreads();
  if (tid == 0) {
    uint32_t* arrived = a.arrived + static_cast<size_t>(token) * gridDim.y + blockIdx.y;
    is_last = atomicAdd(arrived, 1u) == static_cast<uint32_t>(n_used - 1);
    if (is_last) *arrived = 0;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (int i = tid; i < n_rows * dim; i += THREADS) {
    const int r = i / dim, e = i % dim;
    const size_t row = static_cast<size_t>(token) * n_heads + first_head + r;
    // Other blocks wrote them: not from this multiprocessor's cache.
    const float* partial = a.partial + row * a.n_splits * partial_len;
    float max = -INFINITY, sum = 0, out = 0;
    for (int s = 0; s < n_used; s++) max = fmaxf(max, __ldcg(partial + s * partial_len + dim));
    for (int s = 0; s < n_used; s++) {
      const float factor = __expf(__ldcg(partial + s * partial_len + dim) - max);
      sum += __ldcg(partial + s * partial_len + dim + 1) * factor;
      out += __ldcg(partial + s * partial_len + e) * factor;
    }
    a.y[row * dim + e] = out / sum;
  }
}

#define DECODE_ATTENTION(T) \
  KERNEL_2(decode_attention_##T, DecodeAttentionArgs, THREADS) { decode_attention<T>(a); }
DECODE_ATTENTION(F32) DECODE_ATTENTION(F16) DECODE_ATTENTION(BF16) DECODE_ATTENTION(Q8_0)
