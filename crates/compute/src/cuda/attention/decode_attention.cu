// Attention of sequences that bring one token each, with what comes before it: the norms and rotation of its queries and key, and the
// key's and value's way into the cache. On the tensor cores, by online softmax (Milakov and Gimelshein 2018), in parts (Dao et al. 2023).
//
// A block owns up to 8 query heads that share a key-value head, over one split of the positions that the token sees. A warp takes 16
// keys at a time: scores are keys times queries, so that the heads fill the short side of a product, and outputs are values times
// weights. Keys and values come to shared memory in the background, the next keys while the scores of the last are weighed. The warps'
// results are merged in shared memory, the splits' by the block that comes last; a short sequence is one split. The first keys and values
// are loaded while the queries are not there yet. The code is short and has few copies of itself: most of it runs once per launch, and a
// multiprocessor waits for instructions that it has not run before.
//
// No block ends before the product that runs beside it, whether it has something to do or not. So each multiprocessor has room for one
// block of the next product, and not some for two and some for none. In large models blocks without work even run the code, for nothing.
// So its instructions are near wherever the next layer's work will be, and the work is done when blocks of the product after next come in
// the places of the others and ask for weights.
//
// Moves: the keys and values of the split, once for all its heads. Shared memory: 78 KiB at most, on Hopper 112.
#include "cached.cuh"
#include "heads.cuh"
#include "../common/tiles.cuh"
#include "decode_attention_args.cuh"

constexpr int HEADS = 8;        // query heads of a block
constexpr int KEYS = 16;        // keys of a tile
constexpr int MIN_SPLIT = 256;  // keys that are worth a block
constexpr int MERGED = 16;      // splits that a thread has in hand at a time
// Tiles of a warp, of keys and of values by turns, that are on their way at the same time.
#if __CUDA_ARCH__ >= 900
constexpr int TILES = 3;
#else
constexpr int TILES = 2;
#endif
constexpr float LOG2_E = 1.4426950408889634f;

// Where the elements of pair `p` are, if `half` pairs of the head turn: those come first.
DEVICE int low_of(int p, int half, bool interleaved) { return p < half && !interleaved ? p : 2 * p; }
DEVICE int high_of(int p, int half, bool interleaved) { return p < half && !interleaved ? p + half : 2 * p + 1; }

// Maxima and sums over the lanes that share a column of a product.
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

// exp2(x - max), 0 where nothing has been seen.
DEVICE float weight_of(float x, float max) { return x == -INFINITY ? 0.0f : exp2f(x - max); }

// `Stored`: the cache's type, which comes by way of `Cache` and is multiplied as `Number`.
template <class Stored, class Cache, class Number, int DIM>
DEVICE void decode_attention(const DecodeAttentionArgs& a) {
  constexpr int WARPS = DIM > 128 ? 4 : 8, THREADS = WARPS * 32;
  // Rows in shared memory are 16 bytes longer, so that reads of 8 of them fall on all banks.
  constexpr int CHUNKS = DIM / 8, ROW = DIM + 8, TILE = KEYS * ROW, OUT = DIM + 4;
  ptx::launch_dependents();
  DYNAMIC_SHARED(shared);
  uint16_t* tiles = reinterpret_cast<uint16_t*>(shared);      // [WARPS, TILES, TILE]
  float* outs = reinterpret_cast<float*>(shared);             // [WARPS, HEADS, OUT], when the tiles are done
  uint16_t* queries = tiles + WARPS * TILES * TILE;           // [HEADS, ROW]
  uint16_t* own = queries + HEADS * ROW;                      // [2, ROW]: the token's own key and value as the cache has them
  float* heads = reinterpret_cast<float*>(own + 2 * ROW);     // [WARPS, DIM]
  __shared__ float maxima[WARPS][HEADS], totals[WARPS][HEADS];
  __shared__ uint32_t own_head;  // where the token's own key and value go
  __shared__ bool is_last;

  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int dim = a.head_dim, n_heads = a.n_heads, n_kv_heads = a.n_kv_heads;
  const int group = n_heads / n_kv_heads, parts = ceil_div(group, HEADS);
  // All tokens' first splits come first.
  const int head_blocks = n_kv_heads * parts, head_block = blockIdx.x % head_blocks;
  const int token = blockIdx.x / head_blocks % a.n_tokens, split = blockIdx.x / head_blocks / a.n_tokens;
  const int kv_head = head_block / parts, first_row = head_block % parts * HEADS;
  const int n_rows = min(group - first_row, HEADS), first_head = kv_head * group + first_row;

  // The batch was there before the step began.
  const int end = a.positions[token] + 1;
  const int start = end > static_cast<int>(a.window) ? end - static_cast<int>(a.window) : 0;
  const int even = ceil_div(ceil_div(end - start, a.n_splits), KEYS) * KEYS, per_split = max(even, MIN_SPLIT);
  const int n_used = ceil_div(end - start, per_split);
  const bool idle = split >= n_used;
  if (idle && !a.all_run) {
    ptx::griddepcontrol_wait();
    return;
  }
  // A block without work that runs has zeros for queries, keys and values.
  const int from = idle ? 0 : start + split * per_split, to = idle ? WARPS * KEYS : min(from + per_split, end);
  const uint32_t* table = a.block_tables + a.table_starts[token];
  // Where a position's head is in both caches.
  const auto head_at = [&](int position) {
    const uint32_t block = static_cast<uint32_t>(position) / a.block_size;
    return (table[block] * n_kv_heads + kv_head) * a.block_size + (position - block * a.block_size);
  };
  const auto byte_of = [&](uint32_t head) { return static_cast<size_t>(head) * a.head_bytes; };

  // Each of the first 16 lanes, and of the others, knows where a key of the next tile is. All but the token's own are from earlier steps.
  const auto locate = [&](int base) {
    const int key = base + lane % KEYS;
    return !idle && key < to && key != end - 1 ? head_at(key) : NOWHERE;
  };
  const auto fetch = [&](uint16_t* tile, const uint8_t* cache, uint32_t located) {
#pragma unroll 2
    for (int i = lane; i < KEYS * CHUNKS; i += 32) {
      const int key = i / CHUNKS, at = i % CHUNKS * 8;
      const uint32_t head = __shfl_sync(ALL_LANES, located, key);
      const bool there = head != NOWHERE && at < dim;
      Cache::bring(tile + key * ROW + at, cache, byte_of(head), at, there);
    }
  };
  // The warp's tiles: the keys of its first 16, their values, the keys of the next, and so on, each in the place that is free.
  uint16_t* places = tiles + warp * TILES * TILE;
  int ahead = 0;
  uint32_t located = 0;
  const auto fetch_next = [&](uint16_t* place) {
    const int base = from + (ahead / 2 * WARPS + warp) * KEYS;
    const bool is_keys = ahead % 2 == 0;
    if (base < to) {
      if (is_keys) located = locate(base);
      fetch(place, is_keys ? a.k_cache : a.v_cache, located);
    }
    ptx::cp_async_commit();
    ahead++;
  };
  if (tid == 0) own_head = head_at(end - 1);
#pragma unroll 1
  for (int i = 0; i < TILES; i++) fetch_next(places + i * TILE);
#pragma unroll 1
  for (int i = tid; i < (HEADS + 2) * ROW / 2; i += THREADS) reinterpret_cast<uint32_t*>(queries)[i] = 0;
  __syncthreads();
  ptx::griddepcontrol_wait();

  // Queries, and where the split has the token itself, its key and value: a head to a warp.
  const int n_here = n_rows + (to == end && !idle ? 2 : 0);
  float* x = heads + warp * DIM;
#pragma unroll 1
  for (int i = warp; i < n_here; i += WARPS) {
    constexpr int PAIRS = DIM / 64;
    const bool is_query = i < n_rows, is_value = i == n_rows + 1;
    const int head = is_query ? first_head + i : n_heads + (i - n_rows) * n_kv_heads + kv_head;
    const float* row = a.qkv + (static_cast<size_t>(token) * (n_heads + 2 * n_kv_heads) + head) * dim;
    const int half = a.angles && !is_value && !idle ? a.rope_dim / 2 : 0;
    const float* angles = a.angles + static_cast<size_t>(token) * a.rope_dim;
    float low[PAIRS], high[PAIRS], cosine[PAIRS], sine[PAIRS];
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
      const int p = lane + 32 * j;
      const bool there = 2 * p < dim && !idle;
      low[j] = there ? __ldcg(row + low_of(p, half, a.interleaved)) : 0.0f;
      high[j] = there ? __ldcg(row + high_of(p, half, a.interleaved)) : 0.0f;
      cosine[j] = p < half ? angles[p] : 1.0f;
      sine[j] = p < half ? angles[half + p] : 0.0f;
    }
    const float* weight = is_query ? a.q_weight : a.k_weight;
    if (weight && !is_value) {
      const float* bias = is_query ? a.q_bias : a.k_bias;
      float mean = 0, squares = 0;
      if (a.layer) {
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
      const float inverse = 1.0f / sqrtf(warp_sum(squares) / dim + (is_query ? a.q_eps : a.k_eps));
#pragma unroll
      for (int j = 0; j < PAIRS; j++) {
        const int p = lane + 32 * j, l = low_of(p, half, a.interleaved), h = high_of(p, half, a.interleaved);
        if (2 * p >= dim) break;
        low[j] = low[j] * inverse * weight[l] + (bias ? bias[l] : 0.0f);
        high[j] = high[j] * inverse * weight[h] + (bias ? bias[h] : 0.0f);
      }
    }
    uint16_t* numbers = is_query ? queries + i * ROW : own + is_value * ROW;
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
      const int p = lane + 32 * j, l = low_of(p, half, a.interleaved), h = high_of(p, half, a.interleaved);
      if (2 * p >= dim) break;
      const float first = low[j] * cosine[j] - high[j] * sine[j], second = low[j] * sine[j] + high[j] * cosine[j];
      if (!Cache::AS_IS) x[l] = first, x[h] = second;
      numbers[l] = Number::from(first), numbers[h] = Number::from(second);
    }
    __syncwarp();
    if (!is_query) {
      uint8_t* cached = (is_value ? a.v_cache : a.k_cache) + byte_of(own_head);
      if constexpr (Cache::AS_IS) {
        if (lane * 8 < dim) reinterpret_cast<uint4*>(cached)[lane] = *reinterpret_cast<const uint4*>(numbers + lane * 8);
      } else {
        write_head<Stored>(cached, x, dim, lane);
        __syncwarp();
        if (lane * 8 < dim) Cache::bring(numbers + lane * 8, cached, 0, lane * 8, true);
      }
      __syncwarp();
    }
  }
  __syncthreads();

  uint32_t q[DIM / 16][2];
#pragma unroll
  for (int i = 0; i < DIM / 32; i++) {
    uint32_t r[4];
    ptx::ldmatrix_x4(r, queries + lane % 8 * ROW + (i * 4 + lane / 8) * 8);
    q[2 * i][0] = r[0], q[2 * i][1] = r[1], q[2 * i + 1][0] = r[2], q[2 * i + 1][1] = r[3];
  }
  // A score times `factor` is the exponent of two of its weight. A lane has heads 2 t and 2 t + 1, t = lane % 4, and of the keys of a tile
  // and the elements of outputs each eighth.
  const bool capped = a.softcap != 0.0f;
  const float factor = capped ? LOG2_E : a.scale * LOG2_E;
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {}, out[DIM / 16][4] = {};
  // The next tile that is wanted, with the token's own row in it, which the cache may not have yet.
  int place = 0;
  const auto next_tile = [&](int fresh, const uint16_t* head) {
    uint16_t* tile = places + place * TILE;
    if (++place == TILES) place = 0;
    ptx::cp_async_wait<TILES - 1>();
    __syncwarp();
    if (fresh < KEYS && lane < CHUNKS) {
      *reinterpret_cast<uint4*>(tile + fresh * ROW + lane * 8) = *reinterpret_cast<const uint4*>(head + lane * 8);
    }
    __syncwarp();
    return tile;
  };
#pragma unroll 1
  for (int base = from + warp * KEYS; base < to; base += WARPS * KEYS) {
    const int fresh = idle ? KEYS : end - 1 - base;  // the tile's row that is the token's own
    uint16_t* k_tile = next_tile(fresh, own);
    float score[4] = {};
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
      uint32_t k[4];
      ptx::ldmatrix_x4(k, k_tile + lane % 16 * ROW + (2 * i + lane / 16) * 8);
      Number::multiply(score, k, q[i][0], q[i][1]);
    }
    __syncwarp();
    fetch_next(k_tile);

    if (capped) {
#pragma unroll
      for (int c = 0; c < 4; c++) score[c] = a.softcap * tanhf(score[c] * a.scale / a.softcap);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
      score[c] = base + lane / 4 + c / 2 * 8 < to ? score[c] * factor : -INFINITY;
    }
    uint32_t p[2];
    float fade[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float largest = column_max(fmaxf(max[h], fmaxf(score[h], score[2 + h])));
      fade[h] = weight_of(max[h], largest);
      max[h] = largest;
      score[h] = exp2f(score[h] - largest), score[2 + h] = exp2f(score[2 + h] - largest);
      sum[h] = sum[h] * fade[h] + score[h] + score[2 + h];
    }
#pragma unroll
    for (int i = 0; i < 2; i++) p[i] = ptx::movmatrix_trans(pair_of<Number>(score[2 * i], score[2 * i + 1]));
    uint16_t* v_tile = next_tile(fresh, own + ROW);
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
      uint32_t v[4];
      ptx::ldmatrix_x4_trans(v, v_tile + (lane % 8 + lane / 16 * 8) * ROW + (2 * i + lane / 8 % 2) * 8);
#pragma unroll
      for (int c = 0; c < 4; c++) out[i][c] *= fade[c % 2];
      Number::multiply(out[i], v, p[0], p[1]);
    }
    __syncwarp();
    fetch_next(v_tile);
  }
  ptx::cp_async_wait<0>();
  __syncthreads();

  // The warps' results.
#pragma unroll
  for (int i = 0; i < DIM / 16; i++) {
#pragma unroll
    for (int c = 0; c < 4; c++) outs[(warp * HEADS + lane % 4 * 2 + c % 2) * OUT + i * 16 + c / 2 * 8 + lane / 4] = out[i][c];
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float total = column_sum(sum[h]);
    if (lane < 4) maxima[warp][lane * 2 + h] = max[h], totals[warp][lane * 2 + h] = total;
  }
  __syncthreads();
  const size_t first_y = static_cast<size_t>(token) * n_heads + first_head;
#pragma unroll 1
  for (int i = tid * 4; i < n_rows * DIM; i += THREADS * 4) {
    const int r = i / DIM, e = i % DIM;
    if (e >= dim) continue;
    float most = -INFINITY, total = 0;
    float4 y = {};
#pragma unroll
    for (int w = 0; w < WARPS; w++) most = fmaxf(most, maxima[w][r]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float f = weight_of(maxima[w][r], most);
      const float4 out = *reinterpret_cast<const float4*>(outs + (w * HEADS + r) * OUT + e);
      total += totals[w][r] * f;
      y.x += out.x * f, y.y += out.y * f, y.z += out.z * f, y.w += out.w * f;
    }
    if (idle) continue;
    if (n_used == 1) {
      const float inverse = 1.0f / total;
      if (a.tile_rows) {
        const float f = inverse / fixed_scale(PACKED_HALF);
        put_packed(reinterpret_cast<uint16_t*>(a.y), a.tile_rows, token, (first_head + r) * dim + e, y.x * f, y.y * f, y.z * f, y.w * f);
      } else {
        *reinterpret_cast<float4*>(a.y + (first_y + r) * dim + e) = float4{y.x * inverse, y.y * inverse, y.z * inverse, y.w * inverse};
      }
      continue;
    }
    float* partial = a.partial + ((first_y + r) * a.n_splits + split) * (dim + 2);
    reinterpret_cast<float2*>(partial + e)[0] = float2{y.x, y.y};
    reinterpret_cast<float2*>(partial + e)[1] = float2{y.z, y.w};
    if (e == 0) partial[dim] = most, partial[dim + 1] = total;
  }
  if (n_used > 1 && !idle) {
    __syncthreads();
    if (tid == 0) {
      uint32_t* count = a.arrived + token * head_blocks + head_block;
      is_last = ptx::count_up(count) == static_cast<uint32_t>(n_used - 1);
      if (is_last) *count = 0;
    }
    __syncthreads();
    if (!is_last) return;
    // Other blocks wrote them: not from this multiprocessor's cache.
    const int stride = dim + 2;
    const float* partial = a.partial + first_y * a.n_splits * stride;
    // A warp has elements of one row. It asks at once for all that it merges, so that it waits for one way to memory and back: a lane for
    // a split's maximum and sum, and for its elements of all splits.
#pragma unroll 1
    for (int i = tid * 2; i < n_rows * DIM; i += THREADS * 2) {
      const int r = i / DIM, e = i % DIM;
      const float* row = partial + r * a.n_splits * stride;
      float most = -INFINITY, total = 0;
      float2 y = {};
#pragma unroll 1
      for (int first = 0; first < n_used; first += MERGED) {
        const int s = first + lane % MERGED;
        const float2 weight = s < n_used ? __ldcg(reinterpret_cast<const float2*>(row + s * stride + dim)) : float2{-INFINITY, 0};
        float2 part[MERGED];
#pragma unroll
        for (int j = 0; j < MERGED; j++) {
          const bool there = e < dim && first + j < n_used;
          part[j] = there ? __ldcg(reinterpret_cast<const float2*>(row + (first + j) * stride + e)) : float2{0, 0};
        }
        const float largest = fmaxf(most, warp_max(weight.x)), fade = weight_of(most, largest), factor = weight_of(weight.x, largest);
        most = largest;
        total = total * fade + warp_sum(lane < MERGED ? weight.y * factor : 0.0f);
        y.x *= fade, y.y *= fade;
#pragma unroll
        for (int j = 0; j < MERGED; j++) {
          const float f = __shfl_sync(ALL_LANES, factor, j);
          y.x += part[j].x * f, y.y += part[j].y * f;
        }
      }
      const float inverse = 1.0f / total;
      if (e < dim) *reinterpret_cast<float2*>(a.y + (first_y + r) * dim + e) = float2{y.x * inverse, y.y * inverse};
    }
  }
}

#define DECODE_ATTENTION(T, CACHE, NUMBER, DIM, THREADS) \
  KERNEL_2(decode_attention_##T##_##DIM, DecodeAttentionArgs, THREADS) { decode_attention<T, CACHE, NUMBER, DIM>(a); }
#define DECODE_ATTENTIONS(T, CACHE, NUMBER)                                                         \
  DECODE_ATTENTION(T, CACHE, NUMBER, 64, 256) DECODE_ATTENTION(T, CACHE, NUMBER, 128, 256) \
  DECODE_ATTENTION(T, CACHE, NUMBER, 256, 128)
DECODE_ATTENTIONS(F16, Plain, Half) DECODE_ATTENTIONS(BF16, Plain, Bfloat) DECODE_ATTENTIONS(Q8_0, Blocks8, Half)
