// Attention of a token's queries over its sequence's cache, by online softmax (Milakov and Gimelshein 2018; Dao et al. 2022), in
// f32 without tensor cores: for exact sums, and for caches and heads that the other kernels do not take. Values may be the first elements
// of keys.
//
//   for each tile of 64 keys:  S = Q Kᵀ;  P = exp(S - max);  O = O · correction + P V
//
// Mapping. Block of 4 warps: up to 8 query heads that share a KV head, of one token, over one split of the positions it sees. For scores
// 8 lanes share a key; for outputs a thread owns 8 elements of every n_lines-th key, and these lines are added at the end, in order.
// Splits are merged by attention_merge, of which a block owns 128 elements of a head of a token.
// Shared memory: 24,704 bytes. Moves: K and V of the split once for all its heads, 2 · n_positions · head_bytes.
#include "../common/quant.cuh"
#include "paged_attention_args.cuh"

constexpr int TILE = 64;  // keys
constexpr int THREADS = 128;
constexpr int MAX_ROWS = 8;  // query heads of a block
constexpr int MAX_DIM = 576;

// The work of a block: `n_rows` query heads from `first_head` on, of one token, over positions `from` to `to` - 1.
struct Split {
  int token, at, index, kv_head, first_head, n_rows, from, to;
  const uint32_t* table;

  DEVICE explicit Split(const AttentionArgs& a) {
    const int group = a.n_heads / a.n_kv_heads, chunks = ceil_div(group, MAX_ROWS), first_row = blockIdx.y % chunks * MAX_ROWS;
    token = blockIdx.x, kv_head = blockIdx.y / chunks, index = blockIdx.z;
    n_rows = group - first_row < MAX_ROWS ? group - first_row : MAX_ROWS;
    first_head = kv_head * group + first_row;
    at = a.positions[token];
    const int window = a.window, after = a.ahead ? tokens_after(a) : 0;
    const int end = at + 1 + (after < static_cast<int>(a.ahead) ? after : a.ahead);
    const int start = at + 1 > window ? at + 1 - window : 0;
    const int per_split = ceil_div(ceil_div(end - start, a.n_splits), TILE) * TILE;
    from = start + index * per_split, to = from + per_split < end ? from + per_split : end;
    table = a.block_tables + a.table_starts[token];
  }

  // Tokens of the sequence behind this one in the step.
  DEVICE int tokens_after(const AttentionArgs& a) const {
    int low = 0, high = a.n_seqs;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (static_cast<int>(a.seq_starts[middle]) <= token ? low : high) = middle;
    }
    return static_cast<int>(a.seq_starts[low + 1]) - 1 - token;
  }

  DEVICE const uint8_t* head_at(const AttentionArgs& a, const uint8_t* cache, int position) const {
    const size_t block = table[position / a.block_size];
    return cache + ((block * static_cast<int>(a.n_kv_heads) + kv_head) * a.block_size + position % a.block_size) * a.head_bytes;
  }
};

struct Smem {
  __align__(16) float q[MAX_ROWS][MAX_DIM];
  float scores[MAX_ROWS][TILE];
  float max[MAX_ROWS], sum[MAX_ROWS], correction[MAX_ROWS];
  float slope[MAX_ROWS];  // what a row's scores lose per position of distance
  __align__(16) float merged[THREADS * 8];
};

// The slope of ALiBi of a head: see AttentionParams::slope.
DEVICE float slope_of(int head, int n_heads) {
  const int n = 1 << (31 - __clz(n_heads));
  return exp2f(head < n ? -8.0f * (head + 1) / n : -4.0f * (2 * (head - n) + 1) / n);
}

// Queries times the scale, `padded` elements a row with zeros past the end, and what the softmax begins with.
DEVICE void load_queries(const AttentionArgs& a, const Split& split, Smem& smem, int padded, int tid) {
  const int dim = a.head_dim;
  const float* queries = a.qkv + static_cast<size_t>(split.token) * a.qkv_len + static_cast<size_t>(split.first_head) * dim;
  for (int i = tid; i < split.n_rows * padded; i += THREADS) {
    const int element = i % padded;
    smem.q[i / padded][element] = element < dim ? queries[i / padded * dim + element] * a.scale : 0.0f;
  }
  if (tid < split.n_rows) smem.slope[tid] = a.alibi ? slope_of(split.first_head + tid, a.n_heads) : 0.0f;
  // A sink is a score in the first split, without a value.
  const bool has_sink = a.sinks && split.index == 0 && tid < split.n_rows;
  if (tid < MAX_ROWS) smem.max[tid] = has_sink ? a.sinks[split.first_head + tid] : -INFINITY, smem.sum[tid] = has_sink;
}

// A lane's share of a key's scores, the elements 8 (tid % 8) + 64 i to + 7.
template <class T>
DEVICE void dot_key(float (&dot)[MAX_ROWS], const Smem& smem, const uint8_t* k_head, int n_rows, int dim, int tid) {
  for (int i = tid % 8 * 8; i < dim; i += 64) {
    float k[8];
    load8<T>(k, k_head, i, dim, nullptr);
#pragma unroll
    for (int r = 0; r < MAX_ROWS; r++) {
      if (r < n_rows) {
#pragma unroll
        for (int j = 0; j < 8; j++) dot[r] = fmaf(smem.q[r][i + j], k[j], dot[r]);
      }
    }
  }
}

// S = Q Kᵀ of the tile at `base`; -infinity past its `n_keys` keys.
template <class T>
DEVICE void score_tile(const AttentionArgs& a, const Split& split, Smem& smem, int base, int n_keys, int tid) {
  for (int key = tid / 8; key < TILE; key += THREADS / 8) {
    float dot[MAX_ROWS] = {};
    if (key < n_keys) dot_key<T>(dot, smem, split.head_at(a, a.k_cache, base + key), split.n_rows, a.head_dim, tid);
#pragma unroll
    for (int r = 0; r < MAX_ROWS; r++) {
      if (r < split.n_rows) {
        float s = dot[r];
#pragma unroll
        for (int d = 4; d; d >>= 1) s += __shfl_xor_sync(ALL_LANES, s, d);
        if (a.alibi) s -= smem.slope[r] * abs(split.at - base - key);
        if (a.softcap != 0.0f) s = a.softcap * tanhf(s / a.softcap);
        if (tid % 8 == 0) smem.scores[r][key] = key < n_keys ? s : -INFINITY;
      }
    }
  }
}

// Makes weights of a tile's scores, a row per warp.
DEVICE void weigh(Smem& smem, int n_rows, int warp, int lane) {
  for (int r = warp; r < n_rows; r += THREADS / 32) {
    const float s0 = smem.scores[r][lane], s1 = smem.scores[r][lane + 32], before = smem.max[r];
    const float max = fmaxf(before, warp_max(fmaxf(s0, s1)));
    const float p0 = expf(s0 - max), p1 = expf(s1 - max), sum = warp_sum(p0 + p1);
    smem.scores[r][lane] = p0, smem.scores[r][lane + 32] = p1;
    __syncwarp();
    if (lane == 0) {
      smem.correction[r] = expf(before - max);
      smem.max[r] = max;
      smem.sum[r] = smem.sum[r] * smem.correction[r] + sum;
    }
  }
}

// A thread's share of outputs: elements 8 `slice` to 8 `slice` + 7, of keys `line`, `line` + `n_lines`, …
struct Lines {
  int n_lines, slice, line;
  float out[MAX_ROWS][8] = {};

  DEVICE Lines(int n_slices, int tid) : n_lines(THREADS / n_slices), slice(tid % n_slices), line(tid / n_slices) {}

  // O = O · correction + P V
  template <class T>
  DEVICE void accumulate(const AttentionArgs& a, const Split& split, const Smem& smem, int base, int n_keys) {
    if (line >= n_lines) return;
#pragma unroll
    for (int r = 0; r < MAX_ROWS; r++) {
      if (r < split.n_rows) {
#pragma unroll
        for (int j = 0; j < 8; j++) out[r][j] *= smem.correction[r];
      }
    }
    for (int key = line; key < n_keys; key += n_lines) {
      float v[8];
      load8<T>(v, split.head_at(a, a.v_cache, base + key), slice * 8, a.head_dim, nullptr);
#pragma unroll
      for (int r = 0; r < MAX_ROWS; r++) {
        if (r < split.n_rows) {
          const float p = smem.scores[r][key];
#pragma unroll
          for (int j = 0; j < 8; j++) out[r][j] = fmaf(p, v[j], out[r][j]);
        }
      }
    }
  }
};

// Adds the lines of each row, in order, and writes the result, or that of this split.
DEVICE void store(const AttentionArgs& a, const Split& split, Smem& smem, const Lines& lines, int padded, int tid) {
  const int dim = a.v_dim;
#pragma unroll
  for (int r = 0; r < MAX_ROWS; r++) {
    if (r >= split.n_rows) break;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 8; j++) smem.merged[tid * 8 + j] = lines.out[r][j];
    __syncthreads();
    const size_t row = static_cast<size_t>(split.token) * static_cast<int>(a.n_heads) + split.first_head + r;
    float* partial = a.partial + (row * a.n_splits + split.index) * (dim + 2);
    for (int i = tid; i < dim; i += THREADS) {
      float sum = 0;
      for (int l = 0; l < lines.n_lines; l++) sum += smem.merged[l * padded + i];
      if (a.n_splits == 1) {
        a.y[row * dim + i] = sum / smem.sum[r];
      } else {
        partial[i] = sum;
      }
    }
    if (a.n_splits > 1 && tid == 0) partial[dim] = smem.max[r], partial[dim + 1] = smem.sum[r];
  }
}

template <class T>
DEVICE void attention(const AttentionArgs& a) {
  ptx::griddepcontrol_wait();
  __shared__ Smem smem;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const Split split(a);
  const int n_slices = ceil_div(a.v_dim, 8);
  load_queries(a, split, smem, ceil_div(a.head_dim, 8) * 8, tid);
  Lines lines(n_slices, tid);
  for (int base = split.from; base < split.to; base += TILE) {
    const int n_keys = split.to - base < TILE ? split.to - base : TILE;
    __syncthreads();
    score_tile<T>(a, split, smem, base, n_keys, tid);
    __syncthreads();
    weigh(smem, split.n_rows, warp, lane);
    __syncthreads();
    lines.accumulate<T>(a, split, smem, base, n_keys);
  }
  store(a, split, smem, lines, n_slices * 8, tid);
}

#define ATTENTION(T) \
  KERNEL(attention_##T, AttentionArgs, THREADS) { attention<T>(a); }
ATTENTION(F32) ATTENTION(F16) ATTENTION(BF16) ATTENTION(Q8_0)

// Merges the splits of a head of a token, a thread for each element. The first split is never empty, so the maximum is finite.
KERNEL(attention_merge, AttentionMergeArgs, THREADS) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  __shared__ float factors[MAX_MERGED];
  __shared__ int n_filled;
  const int dim = a.v_dim, n_splits = a.n_splits, tid = threadIdx.x, i = blockIdx.z * THREADS + tid;
  const size_t row = static_cast<size_t>(blockIdx.x) * a.n_heads + blockIdx.y;
  const float* partial = a.partial + row * n_splits * (dim + 2);
  if (tid < 32) {
    constexpr int OF_LANE = MAX_MERGED / 32;
    float maxima[OF_LANE], sums[OF_LANE], max = -INFINITY, sum = 0;
#pragma unroll
    for (int j = 0; j < OF_LANE; j++) {
      const int s = j * 32 + tid;
      const bool there = s < n_splits;
      maxima[j] = there ? partial[s * (dim + 2) + dim] : -INFINITY, sums[j] = there ? partial[s * (dim + 2) + dim + 1] : 0.0f;
      max = fmaxf(max, maxima[j]);
    }
    max = warp_max(max);
    int filled = 0;
#pragma unroll
    for (int j = 0; j < OF_LANE; j++) {
      maxima[j] = expf(maxima[j] - max), sum += sums[j] * maxima[j];
      const uint32_t seen = __ballot_sync(ALL_LANES, maxima[j] != 0.0f);
      if (seen) filled = j * 32 + 32 - __clz(seen);
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int j = 0; j < OF_LANE; j++) factors[j * 32 + tid] = maxima[j] / sum;
    if (tid == 0) n_filled = filled;
  }
  __syncthreads();
  if (i >= dim) return;
  float out = 0;
  const int n = n_filled;
#pragma unroll 8
  for (int s = 0; s < n; s++) {
    // A split that has seen no key has no outputs.
    const float factor = factors[s], x = partial[s * (dim + 2) + i];
    out += factor != 0.0f ? factor * x : 0.0f;
  }
  a.y[row * dim + i] = out;
}
