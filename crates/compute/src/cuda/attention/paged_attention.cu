// Causal attention of a token's queries over its sequence's cache, by online softmax (Milakov and Gimelshein 2018; Dao et al. 2022).
//
// A block owns up to 8 query heads that share a key-value head, of one token, over one split of the positions it sees. It walks the
// split 64 keys at a time: 8 lanes share a key for the scores, then a thread owns 8 elements of the values. Splits are merged by
// attention_merge. Moves: the keys and values of the split, once for all its heads. Shared memory: 15 KiB.
#include "../common/quant.cuh"
#include "paged_attention_args.cuh"

constexpr int TILE = 64;     // keys
constexpr int THREADS = 128;
constexpr int MAX_ROWS = 8;  // query heads of a block
constexpr int MAX_DIM = 256;

template <class T>
DEVICE void attention(const AttentionArgs& a) {
  ptx::griddepcontrol_wait();
  __shared__ __align__(16) float q[MAX_ROWS][MAX_DIM];
  __shared__ float scores[MAX_ROWS][TILE];
  __shared__ float row_max[MAX_ROWS], row_sum[MAX_ROWS], correction[MAX_ROWS];
  __shared__ __align__(16) float merged[THREADS * 8];
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int dim = a.head_dim, n_heads = a.n_heads, n_kv_heads = a.n_kv_heads;
  const int group = n_heads / n_kv_heads, chunks = ceil_div(group, MAX_ROWS);
  const int token = blockIdx.x, kv_head = blockIdx.y / chunks, split = blockIdx.z;
  const int first_row = blockIdx.y % chunks * MAX_ROWS;
  const int n_rows = group - first_row < MAX_ROWS ? group - first_row : MAX_ROWS;
  const int first_head = kv_head * group + first_row;

  const int end = a.positions[token] + 1;
  const int start = end > static_cast<int>(a.window) ? end - static_cast<int>(a.window) : 0;
  const int per_split = ceil_div(ceil_div(end - start, a.n_splits), TILE) * TILE;
  const int from = start + split * per_split;
  const int to = from + per_split < end ? from + per_split : end;

  // Heads are padded to whole groups of 8 with zeros.
  const int n_slices = ceil_div(dim, 8), padded = n_slices * 8;
  for (int i = tid; i < n_rows * padded; i += THREADS) {
    const size_t row = static_cast<size_t>(token) * (n_heads + 2 * n_kv_heads) + first_head + i / padded;
    q[i / padded][i % padded] = i % padded < dim ? a.qkv[row * dim + i % padded] * a.scale : 0.0f;
  }
  if (tid < MAX_ROWS) row_max[tid] = -INFINITY, row_sum[tid] = 0;
  const uint32_t* table = a.block_tables + a.table_starts[token];
  const auto head_at = [&](const uint8_t* cache, int position) {
    const size_t block = table[position / a.block_size];
    return cache + ((block * n_kv_heads + kv_head) * a.block_size + position % a.block_size) * a.head_bytes;
  };

  // Values: `n_slices` threads own 8 elements each of a key's values, `n_lines` keys at a time.
  const int n_lines = THREADS / n_slices;
  const int slice = tid % n_slices, line = tid / n_slices;
  float out[MAX_ROWS][8] = {};

  for (int base = from; base < to; base += TILE) {
    const int n_keys = to - base < TILE ? to - base : TILE;
    __syncthreads();
    for (int key = tid / 8; key < TILE; key += THREADS / 8) {
      float dot[MAX_ROWS] = {};
      if (key < n_keys) {
        const uint8_t* k_head = head_at(a.k_cache, base + key);
        for (int i = tid % 8 * 8; i < dim; i += 64) {
          float k[8];
          load8<T>(k, k_head, i, dim, nullptr);
#pragma unroll
          for (int r = 0; r < MAX_ROWS; r++) {
            if (r < n_rows) {
#pragma unroll
              for (int j = 0; j < 8; j++) dot[r] = fmaf(q[r][i + j], k[j], dot[r]);
            }
          }
        }
      }
#pragma unroll
      for (int r = 0; r < MAX_ROWS; r++) {
        if (r < n_rows) {
          float s = dot[r];
#pragma unroll
          for (int d = 4; d; d >>= 1) s += __shfl_xor_sync(ALL_LANES, s, d);
          if (a.softcap != 0.0f) s = a.softcap * tanhf(s / a.softcap);
          if (tid % 8 == 0) scores[r][key] = key < n_keys ? s : -INFINITY;
        }
      }
    }
    __syncthreads();
    for (int r = warp; r < n_rows; r += THREADS / 32) {
      const float s0 = scores[r][lane], s1 = scores[r][lane + 32], before = row_max[r];
      const float max = fmaxf(before, warp_max(fmaxf(s0, s1)));
      const float p0 = expf(s0 - max), p1 = expf(s1 - max), sum = warp_sum(p0 + p1);
      scores[r][lane] = p0, scores[r][lane + 32] = p1;
      __syncwarp();
      if (lane == 0) {
        correction[r] = expf(before - max);
        row_max[r] = max;
        row_sum[r] = row_sum[r] * correction[r] + sum;
      }
    }
    __syncthreads();
    if (line < n_lines) {
#pragma unroll
      for (int r = 0; r < MAX_ROWS; r++) {
        if (r < n_rows) {
#pragma unroll
          for (int j = 0; j < 8; j++) out[r][j] *= correction[r];
        }
      }
      for (int key = line; key < n_keys; key += n_lines) {
        float v[8];
        load8<T>(v, head_at(a.v_cache, base + key), slice * 8, dim, nullptr);
#pragma unroll
        for (int r = 0; r < MAX_ROWS; r++) {
          if (r < n_rows) {
            const float p = scores[r][key];
#pragma unroll
            for (int j = 0; j < 8; j++) out[r][j] = fmaf(p, v[j], out[r][j]);
          }
        }
      }
    }
  }

  // The lines of a row are added in order.
  const int partial_len = dim + 2;
#pragma unroll
  for (int r = 0; r < MAX_ROWS; r++) {
    if (r >= n_rows) break;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 8; j++) merged[tid * 8 + j] = out[r][j];
    __syncthreads();
    const size_t row = static_cast<size_t>(token) * n_heads + first_head + r;
    float* partial = a.partial + (row * a.n_splits + split) * partial_len;
    for (int i = tid; i < dim; i += THREADS) {
      float sum = 0;
      for (int l = 0; l < n_lines; l++) sum += merged[l * padded + i];
      if (a.n_splits == 1) {
        a.y[row * dim + i] = sum / row_sum[r];
      } else {
        partial[i] = sum;
      }
    }
    if (a.n_splits > 1 && tid == 0) partial[dim] = row_max[r], partial[dim + 1] = row_sum[r];
  }
}

#define ATTENTION(T) \
  KERNEL(attention_##T, AttentionArgs, THREADS) { attention<T>(a); }
ATTENTION(F32) ATTENTION(F16) ATTENTION(BF16) ATTENTION(Q8_0)

// A block owns one head of one token. The first split is never empty, so the maximum is finite.
KERNEL(attention_merge, AttentionArgs, THREADS) {
  ptx::griddepcontrol_wait();
  const int dim = a.head_dim, n_splits = a.n_splits;
  const size_t row = static_cast<size_t>(blockIdx.x) * a.n_heads + blockIdx.y;
  const float* partial = a.partial + row * n_splits * (dim + 2);
  float max = -INFINITY;
  for (int s = 0; s < n_splits; s++) max = fmaxf(max, partial[s * (dim + 2) + dim]);
  float sum = 0;
  for (int s = 0; s < n_splits; s++) sum += partial[s * (dim + 2) + dim + 1] * expf(partial[s * (dim + 2) + dim] - max);
  for (int i = threadIdx.x; i < dim; i += THREADS) {
    float out = 0;
    for (int s = 0; s < n_splits; s++) out += partial[s * (dim + 2) + i] * expf(partial[s * (dim + 2) + dim] - max);
    a.y[row * dim + i] = out / sum;
  }
}
