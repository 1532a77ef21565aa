// What kernels of prefill share: tiles of queries, the online softmax, the store.
#pragma once
#include "cached.cuh"
#include "prefill_attention_args.cuh"

// A block's work: `n_tokens` tokens of a sequence, and `tile_heads` query heads, from `first_head` on of the group that shares a KV head.
// They see positions `start` to `end` - 1. All lanes of a warp make it together.
struct Tile {
  int first_token, n_tokens, sees_to, end, start;  // sees_to: up to where the first token sees, past the last position too
  int group, kv_head, first_head;
  const uint32_t* table;

  Tile() = default;
  // The last tokens see the most keys, so tiles are numbered from the last tokens to the first, all heads of some tokens together.
  DEVICE Tile(const PrefillAttentionArgs& a, int index, int n_tiles) {
    group = a.n_heads / a.n_kv_heads;
    const int head_tiles = ceil_div(group, a.tile_heads);
    const int n_head_tiles = a.n_kv_heads * head_tiles, head_tile = index % n_head_tiles;
    kv_head = head_tile / head_tiles, first_head = head_tile % head_tiles * a.tile_heads;
    int tile = (n_tiles - 1 - index) / n_head_tiles, seq = 0;
    // Each lane counts the tiles of a sequence; those of one are not looked for.
    for (const int n_seqs = a.n_seqs, lane = threadIdx.x % 32; n_seqs > 1; seq += 32) {
      const int of_lane = seq + lane;
      const int n = of_lane < n_seqs ? ceil_div(a.seq_starts[of_lane + 1] - a.seq_starts[of_lane], a.tile_tokens) : 0;
      int sum = n;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int before = __shfl_up_sync(ALL_LANES, sum, d);
        if (lane >= d) sum += before;
      }
      const uint32_t after = __ballot_sync(ALL_LANES, tile < sum);
      if (after) {
        const int first = __ffs(after) - 1;
        tile -= __shfl_sync(ALL_LANES, sum - n, first);
        seq += first;
        break;
      }
      tile -= __shfl_sync(ALL_LANES, sum, 31);
    }
    first_token = a.seq_starts[seq] + tile * a.tile_tokens;
    const int left = a.seq_starts[seq + 1] - first_token;
    n_tokens = left < static_cast<int>(a.tile_tokens) ? left : a.tile_tokens;
    const int position = a.positions[first_token], span = a.span;
    sees_to = position + static_cast<int>(a.ahead);
    end = position + left < sees_to + n_tokens ? position + left : sees_to + n_tokens;
    start = sees_to + 1 > span ? sees_to + 1 - span : 0;
    table = a.block_tables + a.table_starts[first_token];
  }

  // The row of the cache, [n_blocks, n_kv_heads, block_size], that holds a position of the sequence.
  DEVICE uint32_t row_of(const PrefillAttentionArgs& a, int position) const {
    const int block_size = a.block_size;
    return (table[position / block_size] * a.n_kv_heads + kv_head) * block_size + position % block_size;
  }
};

// Element of a tile [rows, DIM] in shared memory where 8 elements of a row are, so that reads of 8 rows fall on all banks.
template <int DIM>
DEVICE int swizzled_row_offset(int row, int chunk) {
  return row * DIM + (chunk ^ (row & 7)) * 8;
}

// A lane's two rows, lane / 4 and lane / 4 + 8, of the 16 of its warp from row `first` of the tile on: a row is a token and a query head.
struct Rows {
  int sees_to[2];
  size_t token[2];
  int head[2];
  bool there[2];

  DEVICE Rows(const PrefillAttentionArgs& a, const Tile& t, int first, int lane) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = first + h * 8 + lane / 4;
      const int in_tile = row / a.tile_heads, in_group = t.first_head + row % a.tile_heads;
      there[h] = in_tile < t.n_tokens && in_group < t.group;
      sees_to[h] = t.sees_to + in_tile;
      token[h] = t.first_token + in_tile, head[h] = t.kv_head * t.group + in_group;
    }
  }
};

// Loads elements 16 i to 16 i + 15 of queries as the first operand of mma, rounded to the cache's type; zeros for rows and elements that
// are not there.
template <class T>
DEVICE void load_queries(uint32_t (&q)[4], const PrefillAttentionArgs& a, const Rows& rows, int i, int lane) {
  const int dim = a.head_dim;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const int at = i * 16 + j / 2 * 8 + lane % 4 * 2, h = j % 2;
    const float* from = a.qkv + rows.token[h] * a.qkv_len + rows.head[h] * dim;
    const float2 v = rows.there[h] && at < dim ? *reinterpret_cast<const float2*>(from + at) : float2{0, 0};
    q[j] = pair_of<T>(v.x, v.y);
  }
}

// The online softmax of a lane's two rows.
struct Softmax {
  static constexpr float LOG2_E = 1.4426950408889634f;
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  // Factor on the outputs summed up before, after `weigh`.
  float correction[2];
  // A score times this is the exponent of two of its weight.
  float factor;

  DEVICE explicit Softmax(const PrefillAttentionArgs& a) {
    factor = a.softcap != 0.0f ? LOG2_E : a.scale * LOG2_E;
  }

  // Caps the scores of 8 * N keys from position `base` on; they are -infinity where a row does not see the key.
  template <int N>
  DEVICE static void mask(float (&score)[N][4], const PrefillAttentionArgs& a, const Tile& t, const Rows& rows, int base, int lane) {
    if (a.softcap != 0.0f) {
#pragma unroll
      for (int j = 0; j < N; j++) {
#pragma unroll
        for (int c = 0; c < 4; c++) score[j][c] = a.softcap * tanhf(score[j][c] * a.scale / a.softcap);
      }
    }
    if (base + 8 * N > t.end) {
#pragma unroll
      for (int j = 0; j < N; j++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
          if (base + j * 8 + lane % 4 * 2 + c % 2 >= t.end) score[j][c] = -INFINITY;
        }
      }
    }
    const int span = a.span;
    if (base + 8 * N > t.sees_to + 1 || base < t.sees_to + static_cast<int>(a.tile_tokens) - span) {
#pragma unroll
      for (int j = 0; j < N; j++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
          const int key = base + j * 8 + lane % 4 * 2 + c % 2, last = rows.sees_to[c / 2];
          if (key > last || last - key >= span) score[j][c] = -INFINITY;
        }
      }
    }
  }

  // The largest score of row h, of these and of all before.
  template <int N>
  DEVICE float largest_of(const float (&score)[N][4], int h) const {
    float largest = max[h];
#pragma unroll
    for (int j = 0; j < N; j++) largest = fmaxf(largest, fmaxf(score[j][2 * h], score[j][2 * h + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
    return fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
  }

  // Makes weights of the scores of row h. `largest`: of these and of all before.
  template <int N>
  DEVICE void weigh_row(float (&score)[N][4], int h, float largest) {
    // A row that sees no key of this tile may have seen none before, too.
    const float offset = largest == -INFINITY ? 0.0f : largest * factor;
    correction[h] = ptx::exp2_fast(max[h] * factor - offset);
    max[h] = largest;
    sum[h] *= correction[h];
#pragma unroll
    for (int j = 0; j < N; j++) {
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const float p = ptx::exp2_fast(fmaf(score[j][2 * h + c], factor, -offset));
        score[j][2 * h + c] = p;
        sum[h] += p;
      }
    }
  }

  // Makes weights of the scores of 8 * N keys from position `base` on.
  template <int N>
  DEVICE void weigh(float (&score)[N][4], const PrefillAttentionArgs& a, const Tile& t, const Rows& rows, int base, int lane) {
    mask(score, a, t, rows, base, lane);
#pragma unroll
    for (int h = 0; h < 2; h++) weigh_row(score, h, largest_of(score, h));
  }

  template <int N>
  DEVICE void correct(float (&out)[N][4]) const {
#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll
      for (int c = 0; c < 4; c++) out[i][c] *= correction[c / 2];
    }
  }

  // Writes the outputs of the two rows.
  template <int N>
  DEVICE void finish(const float (&out)[N][4], const PrefillAttentionArgs& a, const Rows& rows, int lane) {
    const int dim = a.head_dim, row_len = a.n_heads * dim;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], 1);
      sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], 2);
      // The sink's weight by the largest score, as those of keys; infinity where it outweighs them all, and then the output is 0.
      if (a.sinks && rows.there[h]) sum[h] += ptx::exp2_fast(a.sinks[rows.head[h]] * LOG2_E - max[h] * factor);
      const float inverse = 1.0f / sum[h];
      if (a.y_rows) {
        store_tiles(out, h, inverse, a, rows, lane);
        continue;
      }
#pragma unroll
      for (int i = 0; i < N; i++) {
        const int at = i * 8 + lane % 4 * 2, column = rows.head[h] * dim + at;
        if (at >= dim || !rows.there[h]) continue;
        *reinterpret_cast<float2*>(a.y + rows.token[h] * row_len + column) = float2{out[i][2 * h] * inverse, out[i][2 * h + 1] * inverse};
      }
    }
  }

  // Of row h to tiles: four lanes have a word each of 16 bytes, and exchange those of four times 16.
  template <int N>
  DEVICE void store_tiles(const float (&out)[N][4], int h, float inverse, const PrefillAttentionArgs& a, const Rows& rows, int lane) const {
    const bool is_odd = lane % 2, is_high = lane % 4 / 2;
    const int first = rows.head[h] * a.head_dim;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      uint32_t w[4];
#pragma unroll
      for (int j = 0; j < 4; j++) w[j] = tile_pair(a.y_number, out[i + j][2 * h] * inverse, out[i + j][2 * h + 1] * inverse);
      // With the neighbour: of words 0 and 1, or 2 and 3, one's own and the other lane's.
      const uint32_t x = __shfl_xor_sync(ALL_LANES, is_odd ? w[0] : w[1], 1), y = __shfl_xor_sync(ALL_LANES, is_odd ? w[2] : w[3], 1);
      const uint2 low = is_odd ? uint2{x, w[1]} : uint2{w[0], x}, high = is_odd ? uint2{y, w[3]} : uint2{w[2], y};
      const uint2 given = is_high ? low : high;
      const uint2 got = {__shfl_xor_sync(ALL_LANES, given.x, 2), __shfl_xor_sync(ALL_LANES, given.y, 2)};
      const uint4 eight = is_high ? uint4{got.x, got.y, high.x, high.y} : uint4{low.x, low.y, got.x, got.y};
      const int at = (i + lane % 4) * 8;
      if (at >= static_cast<int>(a.head_dim) || !rows.there[h]) continue;
      uint8_t* to = reinterpret_cast<uint8_t*>(a.y) + byte_in_tiles(rows.token[h], 2 * (first + at), a.y_rows);
      *reinterpret_cast<uint4*>(to) = eight;
    }
  }
};

// The weights of keys 16 j to 16 j + 15 as the first operand of mma.
template <class T, int N>
DEVICE void pack_weights(uint32_t (&weights)[4], const float (&score)[N][4], int j) {
  weights[0] = pair_of<T>(score[2 * j][0], score[2 * j][1]), weights[1] = pair_of<T>(score[2 * j][2], score[2 * j][3]);
  weights[2] = pair_of<T>(score[2 * j + 1][0], score[2 * j + 1][1]), weights[3] = pair_of<T>(score[2 * j + 1][2], score[2 * j + 1][3]);
}
