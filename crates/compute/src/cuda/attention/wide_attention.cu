// Attention of any number of tokens of a sequence over its cache where heads are wider than 256, on the tensor cores, by online softmax
// (Milakov and Gimelshein 2018; Dao 2023). Values may be the first elements of keys, as in latent attention.
//
//   for each step of KEYS keys:  S = Q Kᵀ;  P = exp2(S - max), which all warps read;  O = O · correction + P V
//
// Mapping. Block of 8 warps: up to ROWS rows, each a token and one of the query heads that share a KV head, over one split of the positions
// that the tile sees (blockIdx.y). For scores a warp has 16 rows and some of the step's keys, so the warps of the same rows tell each other
// their largest scores; for outputs it has all rows and 64 elements, which stay in its registers. Splits are merged by attention_merge.
// ROWS and KEYS are 64 on Hopper, and 32 and 16 where shared memory is smaller.
// Shared memory, by cp.async: queries [ROWS, DIM] in 16 bits and two tiles [KEYS, DIM], keys and values, or keys of two steps where these hold
// the values; P [ROWS, KEYS]: 224 KiB with heads of 576, 200 with 512; elsewhere 73 and 65. Up to 2 KiB static.
// Moves: K and V that a tile sees, once; its rows of queries and outputs.
#include "prefill_attention.cuh"
#include "wide_attention_args.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;
// Elements of outputs that a warp has.
constexpr int COLUMNS = 64;

template <int ROWS>
struct WidePlan {
  static constexpr int KEYS = ROWS == 64 ? 64 : 16;
  static constexpr int ROW_GROUPS = ROWS / 16;
  // Warps that have scores of the same rows, and the keys of each.
  static constexpr int KEY_PARTS = KEYS / 16 < WARPS / ROW_GROUPS ? KEYS / 16 : WARPS / ROW_GROUPS, PART_KEYS = KEYS / KEY_PARTS;
};

// What the warps of a block tell each other of the softmax, and where the keys of two steps are in the cache.
template <int ROWS>
struct WideShared {
  float largest[WidePlan<ROWS>::KEY_PARTS][ROWS], sums[WidePlan<ROWS>::KEY_PARTS][ROWS], correction[ROWS];
  uint32_t key_rows[2][WidePlan<ROWS>::KEYS];
};

// Element of P [ROWS, KEYS] where 8 of a row are.
template <int KEYS>
DEVICE int weights_offset(int row, int chunk) {
  return row * KEYS + (chunk ^ (row & (KEYS / 8 - 1))) * 8;
}

// A block's tiles in shared memory. SHARED: keys hold the values.
template <class Cache, int DIM, int ROWS, bool SHARED>
struct WideTiles {
  static constexpr int KEYS = WidePlan<ROWS>::KEYS;
  const PrefillAttentionArgs& a;
  const Tile& t;
  WideShared<ROWS>& shared;
  uint16_t* queries;  // [ROWS, DIM], then two tiles [KEYS, DIM], then weights [ROWS, KEYS]
  int warp, lane;

  DEVICE uint16_t* tile(int i) const { return queries + (ROWS + i * KEYS) * DIM; }
  DEVICE uint16_t* keys(int step) const { return tile(SHARED ? step % 2 : 0); }
  DEVICE uint16_t* values(int step) const { return tile(SHARED ? step % 2 : 1); }
  DEVICE uint16_t* weights() const { return tile(2); }

  // Finds the rows of a step's keys, by one thread each.
  DEVICE void locate(int step) const {
    const int i = warp * 32 + lane, position = t.start + step * KEYS + i;
    if (i < KEYS) shared.key_rows[step % 2][i] = position < t.end ? t.row_of(a, position) : NO_HEAD;
  }

  // Brings rows of a step from the cache, a row to a warp; zeros for keys that are not there, and for what a head lacks of DIM.
  DEVICE void load(uint16_t* to, const uint8_t* cache, int step) const {
    const int dim = a.head_dim;
    const size_t row_bytes = Cache::head_bytes(dim);
#pragma unroll 2
    for (int key = warp; key < KEYS; key += WARPS) {
      const uint32_t row = shared.key_rows[step % 2][key];
#pragma unroll
      for (int i = 0; i < DIM / 8; i += 32) {
        const int chunk = i + lane;
        if (chunk < DIM / 8) Cache::load8(to + swizzled_row_offset<DIM>(key, chunk), cache, row * row_bytes, chunk * 8, row != NO_HEAD && chunk * 8 < dim);
      }
    }
  }
  DEVICE void load_keys(int step) const { load(keys(step), a.k_cache, step); }
  DEVICE void load_values(int step) const { load(values(step), a.v_cache, step); }

  // Rounds the tile's queries to the cache's type, a row to a warp; zeros for rows and elements that are not there. All loads of two rows are
  // issued before any is waited for.
  template <class T>
  DEVICE void load_queries() const {
    constexpr int BATCH = 2, CHUNKS = (DIM / 8 + 31) / 32;
    const int dim = a.head_dim;
#pragma unroll 1
    for (int first = warp; first < ROWS; first += BATCH * WARPS) {
      float4 v[BATCH][CHUNKS][2] = {};
#pragma unroll
      for (int b = 0; b < BATCH; b++) {
        const int row = first + b * WARPS, in_tile = row / a.tile_heads, in_group = t.first_head + row % a.tile_heads;
        if (in_tile >= t.n_tokens || in_group >= t.group) continue;
        const float* from = a.qkv + static_cast<size_t>(t.first_token + in_tile) * a.qkv_len + (t.kv_head * t.group + in_group) * dim;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
          const int chunk = i * 32 + lane;
          if (chunk * 8 >= dim) continue;
          v[b][i][0] = reinterpret_cast<const float4*>(from)[2 * chunk], v[b][i][1] = reinterpret_cast<const float4*>(from)[2 * chunk + 1];
        }
      }
#pragma unroll
      for (int b = 0; b < BATCH; b++) {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
          const int chunk = i * 32 + lane;
          const float4 low = v[b][i][0], high = v[b][i][1];
          const uint4 eight = {pair_of<T>(low.x, low.y), pair_of<T>(low.z, low.w), pair_of<T>(high.x, high.y), pair_of<T>(high.z, high.w)};
          if (chunk < DIM / 8) *reinterpret_cast<uint4*>(queries + swizzled_row_offset<DIM>(first + b * WARPS, chunk)) = eight;
        }
      }
    }
  }
};

// S = Q Kᵀ of 16 rows from `row` on and 8 * N keys from `key` on.
template <class T, int DIM, int N>
DEVICE void wide_scores(float (&score)[N][4], const uint16_t* queries, const uint16_t* keys, int row, int key, int lane) {
#pragma unroll 4
  for (int i = 0; i < DIM / 16; i++) {
    uint32_t q[4];
    ptx::ldmatrix_x4(q, queries + swizzled_row_offset<DIM>(row + lane % 16, 2 * i + lane / 16));
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
      uint32_t k[4];
      ptx::ldmatrix_x4(k, keys + swizzled_row_offset<DIM>(key + j * 16 + lane % 8 + lane / 16 * 8, 2 * i + lane / 8 % 2));
      T::multiply(score[2 * j], q, k[0], k[1]);
      T::multiply(score[2 * j + 1], q, k[2], k[3]);
    }
  }
}

// O = O · correction + P V, of all rows and COLUMNS elements from `column` on. FULL: all groups of 16 rows are there, and nothing is to be
// asked between their products.
template <class T, int DIM, int ROWS, bool FULL>
DEVICE void wide_values(float (&out)[ROWS / 16][COLUMNS / 8][4], const WideShared<ROWS>& shared, const uint16_t* weights, const uint16_t* values,
                        int n_groups, int column, int lane) {
  constexpr int KEYS = WidePlan<ROWS>::KEYS;
#pragma unroll
  for (int g = 0; g < ROWS / 16; g++) {
    if (!FULL && g >= n_groups) break;
    const float correction[2] = {shared.correction[g * 16 + lane / 4], shared.correction[g * 16 + lane / 4 + 8]};
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; i++) {
#pragma unroll
      for (int c = 0; c < 4; c++) out[g][i][c] *= correction[c / 2];
    }
  }
#pragma unroll
  for (int k = 0; k < KEYS / 16; k++) {
    uint32_t v[COLUMNS / 16][4];
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; i++) {
      ptx::ldmatrix_x4_trans(v[i], values + swizzled_row_offset<DIM>(k * 16 + lane % 16, column / 8 + 2 * i + lane / 16));
    }
#pragma unroll
    for (int g = 0; g < ROWS / 16; g++) {
      if (!FULL && g >= n_groups) break;
      uint32_t p[4];
      ptx::ldmatrix_x4(p, weights + weights_offset<KEYS>(g * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
      for (int i = 0; i < COLUMNS / 16; i++) {
        T::multiply(out[g][2 * i], p, v[i][0], v[i][1]);
        T::multiply(out[g][2 * i + 1], p, v[i][2], v[i][3]);
      }
    }
  }
}

// Writes a row's outputs, those of COLUMNS elements from `column` on, or those of this split. `max`: the row's largest score as the exponent
// of two of its weight; `sum`: of the weights.
DEVICE void store_row(const WideAttentionArgs& args, const Rows& rows, int h, float max, float sum, const float (&out)[COLUMNS / 8][4], int column,
                      int lane) {
  const PrefillAttentionArgs& a = args.of_all;
  const int v_dim = args.v_dim, split = blockIdx.y;
  const size_t head = rows.token[h] * a.n_heads + rows.head[h];
  float factor = 1.0f;
  if (a.sinks && split == 0) {
    // A score of the first split without a value.
    const float sink = a.sinks[rows.head[h]] * Softmax::LOG2_E, largest = fmaxf(max, sink);
    factor = ptx::exp2_fast(max - largest), sum = sum * factor + ptx::exp2_fast(sink - largest), max = largest;
  }
  const bool is_whole = args.n_splits == 1;
  float* to = is_whole ? a.y + head * v_dim : args.partial + (head * args.n_splits + split) * (v_dim + 2);
  if (is_whole) factor /= sum;
#pragma unroll
  for (int i = 0; i < COLUMNS / 8; i++) {
    const int at = column + i * 8 + lane % 4 * 2;
    // Of a split without keys nobody reads outputs.
    if (at < v_dim && sum != 0.0f) *reinterpret_cast<float2*>(to + at) = float2{out[i][2 * h] * factor, out[i][2 * h + 1] * factor};
  }
  if (!is_whole && column == 0 && lane % 4 == 0) to[v_dim] = max / Softmax::LOG2_E, to[v_dim + 1] = sum;
}

template <class T, class Cache, int DIM, int ROWS, bool SHARED>
DEVICE void wide_attention(const WideAttentionArgs& args) {
  constexpr int KEYS = WidePlan<ROWS>::KEYS, ROW_GROUPS = WidePlan<ROWS>::ROW_GROUPS;
  constexpr int KEY_PARTS = WidePlan<ROWS>::KEY_PARTS, PART_KEYS = WidePlan<ROWS>::PART_KEYS;
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  DYNAMIC_SHARED(dynamic);
  __shared__ WideShared<ROWS> shared;
  const PrefillAttentionArgs& a = args.of_all;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Tile t(a, blockIdx.x, gridDim.x);
  const int per_split = ceil_div(ceil_div(t.end - t.start, args.n_splits), KEYS) * KEYS;
  t.start += blockIdx.y * per_split;
  if (t.start + per_split < t.end) t.end = t.start + per_split;
  const int n_steps = t.start < t.end ? ceil_div(t.end - t.start, KEYS) : 0;
  const int n_heads = t.group - t.first_head < static_cast<int>(a.tile_heads) ? t.group - t.first_head : a.tile_heads;
  const int n_groups = ceil_div((t.n_tokens - 1) * static_cast<int>(a.tile_heads) + n_heads, 16);
  const WideTiles<Cache, DIM, ROWS, SHARED> tiles = {a, t, shared, reinterpret_cast<uint16_t*>(dynamic), warp, lane};
  tiles.locate(0), tiles.locate(1);
  __syncthreads();
  if (n_steps > 0) {
    tiles.load_keys(0);
    ptx::cp_async_commit();
    tiles.template load_queries<T>();
  }

  const int group = warp % ROW_GROUPS, part = warp / ROW_GROUPS, column = warp * COLUMNS;
  const bool has_scores = part < KEY_PARTS && group < n_groups, has_values = column < static_cast<int>(args.v_dim);
  const Rows rows(a, t, group * 16, lane);
  const int row = group * 16 + lane / 4;
  Softmax softmax(a);
  float out[ROW_GROUPS][COLUMNS / 8][4] = {};
#pragma unroll 1
  for (int step = 0; step < n_steps; step++) {
    // The step's keys are there, and all warps are done with the values before.
    ptx::cp_async_wait<0>();
    __syncthreads();
    if (!SHARED) {
      tiles.load_values(step);
    } else if (step + 1 < n_steps) {
      tiles.load_keys(step + 1);
    }
    ptx::cp_async_commit();
    float score[PART_KEYS / 8][4] = {};
    if (has_scores) {
      wide_scores<T, DIM>(score, tiles.queries, tiles.keys(step), group * 16, part * PART_KEYS, lane);
      Softmax::mask(score, a, t, rows, t.start + step * KEYS + part * PART_KEYS, lane);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float largest = softmax.largest_of(score, h);
        if (lane % 4 == 0) shared.largest[part][row + 8 * h] = largest;
      }
    }
    __syncthreads();
    if (!SHARED) {
      if (step + 1 < n_steps) tiles.load_keys(step + 1);
      ptx::cp_async_commit();
    }
    tiles.locate(step + 2);
    if (has_scores) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float largest = shared.largest[0][row + 8 * h];
#pragma unroll
        for (int i = 1; i < KEY_PARTS; i++) largest = fmaxf(largest, shared.largest[i][row + 8 * h]);
        softmax.weigh_row(score, h, largest);
        if (part == 0 && lane % 4 == 0) shared.correction[row + 8 * h] = softmax.correction[h];
#pragma unroll
        for (int j = 0; j < PART_KEYS / 8; j++) {
          const int at = weights_offset<KEYS>(row + 8 * h, part * (PART_KEYS / 8) + j) + lane % 4 * 2;
          *reinterpret_cast<uint32_t*>(tiles.weights() + at) = pair_of<T>(score[j][2 * h], score[j][2 * h + 1]);
        }
      }
    }
    if (!SHARED) ptx::cp_async_wait<1>();
    __syncthreads();
    if (!has_values) continue;
    if (n_groups == ROW_GROUPS) {
      wide_values<T, DIM, ROWS, true>(out, shared, tiles.weights(), tiles.values(step), n_groups, column, lane);
    } else {
      wide_values<T, DIM, ROWS, false>(out, shared, tiles.weights(), tiles.values(step), n_groups, column, lane);
    }
  }
  ptx::cp_async_wait<0>();

  if (has_scores) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float sum = softmax.sum[h];
      sum += __shfl_xor_sync(ALL_LANES, sum, 1);
      sum += __shfl_xor_sync(ALL_LANES, sum, 2);
      if (lane % 4 == 0) {
        shared.sums[part][row + 8 * h] = sum;
        if (part == 0) shared.largest[0][row + 8 * h] = softmax.max[h] * softmax.factor;
      }
    }
  }
  __syncthreads();
  if (!has_values) return;
#pragma unroll
  for (int g = 0; g < ROW_GROUPS; g++) {
    if (g >= n_groups) break;
    const Rows of_group(a, t, g * 16, lane);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if (!of_group.there[h]) continue;
      const int i = g * 16 + h * 8 + lane / 4;
      float sum = 0;
#pragma unroll
      for (int p = 0; p < KEY_PARTS; p++) sum += shared.sums[p][i];
      store_row(args, of_group, h, shared.largest[0][i], sum, out[g], column, lane);
    }
  }
}

#define WIDE_ATTENTION(NAME, T, CACHE, DIM, ROWS, SHARED) \
  KERNEL_1(wide_attention_##ROWS##_##NAME##_##DIM, WideAttentionArgs, THREADS) { wide_attention<T, CACHE, DIM, ROWS, SHARED>(a); }
#define WIDE_ATTENTIONS(NAME, T, CACHE)                                                                   \
  WIDE_ATTENTION(NAME, T, CACHE, 512, 64, false) WIDE_ATTENTION(NAME, T, CACHE, 512, 32, false)           \
  WIDE_ATTENTION(NAME, T, CACHE, 576, 64, true) WIDE_ATTENTION(NAME, T, CACHE, 576, 32, true)
WIDE_ATTENTIONS(F16, Half, RawCache) WIDE_ATTENTIONS(BF16, Bfloat, RawCache) WIDE_ATTENTIONS(Q8_0, Half, Q8Cache)
